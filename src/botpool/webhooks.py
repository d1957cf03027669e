"""Webhooks: every change of a bot's status, posted to the bot's callback address.

The database has written a delivery with each change. This takes those that are due under a claim
that expires, posts them, and records each attempt. A delivery is posted at least once: whoever is
killed between the two leaves it to be posted again, under the same `webhook-id`. Those of a bot are
posted in order, the next one when the one before is delivered or given up. Any number of replicas
may run, and no transaction is open while a receiver is called.
"""

from __future__ import annotations

import asyncio
import os
import platform
import random
import secrets
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx
import orjson
import structlog
from standardwebhooks import Webhook

from botpool import __version__
from botpool.addresses import PinnedTransport
from botpool.changes import WEBHOOKS
from botpool.deliveries import WebhookAttempt
from botpool.errors import AddressRefused, BotpoolError
from botpool.store.listening import listening

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from botpool.addresses import Resolve
    from botpool.deliveries import DueWebhook
    from botpool.settings import Settings
    from botpool.store import Database, Store

_log: structlog.stdlib.BoundLogger = structlog.get_logger("botpool")

RETRY_SECONDS = (5, 30, 120, 600, 1800, 3600, 7200, 14400, 28800, 28800)
"""How long to wait after each failed attempt, about; after one more, a delivery is given up."""

_ATTEMPT_SECONDS = 15.0
_MOST_AT_A_TIME = 500
_MOST_AT_A_HOST = 10
_MOST_BYTES_READ = 4096
_SHUTDOWN_SECONDS = 5.0
_GONE = 410


class Webhooks:
    """One replica. `run` delivers until `stop` is called; `run_once` delivers what is due now."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        *,
        resolve: Resolve | None = None,
        seed: int | None = None,
    ) -> None:
        self._store = store
        self._settings = settings
        self._resolve = resolve
        self._replica = f"{platform.node()}/{os.getpid()}/{secrets.token_hex(4)}"
        self._random = random.Random(seed)  # noqa: S311 - spreads retries
        self._signer: Webhook | None = None
        self._transport: PinnedTransport | None = None
        self._awake = asyncio.Event()
        self._stopping = False
        self._under_way: dict[asyncio.Task[None], str] = {}
        self.attempt_seconds = _ATTEMPT_SECONDS
        """How long one attempt may take in all."""
        self.most_at_a_time = _MOST_AT_A_TIME
        self.most_at_a_host = _MOST_AT_A_HOST
        """How many receivers, and how many at one host, are waited for at a time."""
        self.shutdown_seconds = _SHUTDOWN_SECONDS
        self.counts: Counter[str] = Counter()
        """How many attempts were `delivered`, `failed` and `given_up`, and how many `lost`."""

    async def run_once(self) -> int:
        """Deliver all that is due, what becomes due by it included; return how many that was."""
        total = 0
        async with self._connections():
            while taken := await self._take():
                total += taken
                while self._under_way:
                    await asyncio.wait(self._under_way)
        return total

    async def run(self, database: Database) -> None:
        """Deliver until `stop` is called. What then isn't done within seconds is handed over."""
        async with (
            self._connections(),
            listening(database, WEBHOOKS, self._awake.set),
        ):
            try:
                await self._work()
            finally:
                await self._shut_down()

    def stop(self) -> None:
        """Let `run` come to its end."""
        self._stopping = True
        self._awake.set()

    @property
    def busy(self) -> int:
        """How many receivers it waits for now."""
        return len(self._under_way)

    @asynccontextmanager
    async def _connections(self) -> AsyncIterator[None]:
        allow_private = self._settings.allow_private_callbacks
        async with PinnedTransport(allow_private=allow_private, resolve=self._resolve) as transport:
            self._transport = transport
            yield

    async def _work(self) -> None:
        while not self._stopping:
            self._awake.clear()
            try:
                taken = await self._take()
            except BotpoolError as error:
                _log.warning("no webhooks taken", error=str(error))
                taken = 0
            if not taken:
                await self._until_awake()

    async def _until_awake(self) -> None:
        try:
            async with asyncio.timeout(self._settings.poll_interval_ms / 1000):
                await self._awake.wait()
        except TimeoutError:
            return

    async def _shut_down(self) -> None:
        """Finish what is nearly done, and hand over the rest."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=self.shutdown_seconds)
        left = list(self._under_way)
        for delivery in left:
            delivery.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        try:
            await self._store.announce([WEBHOOKS])
        except BotpoolError as error:
            _log.warning("handed over in silence", error=str(error))

    # One delivery

    async def _take(self) -> int:
        """Take what is due, as far as there are hands for it, and set to work."""
        free = self.most_at_a_time - len(self._under_way)
        if free <= 0:
            return 0
        signer = await self._get_signer()
        # Nothing taken waits for its turn, so no claim needs to be renewed.
        ttl_ms = self.attempt_seconds * 1000 + self._settings.claim_ttl_ms
        hosts = list(self._under_way.values())
        taken = await self._store.claim_deliveries(
            self._replica, ttl_ms, free, hosts, self.most_at_a_host
        )
        for webhook in taken:
            task = asyncio.create_task(self._deliver(webhook, signer))
            self._under_way[task] = webhook.host
            task.add_done_callback(self._delivery_ended)
        return len(taken)

    async def _get_signer(self) -> Webhook:
        if self._signer is None:
            chosen = self._settings.webhook_secret
            self._signer = Webhook(
                await self._store.get_webhook_secret()
                if chosen is None
                else chosen.get_secret_value()
            )
        return self._signer

    def _delivery_ended(self, task: asyncio.Task[None]) -> None:
        del self._under_way[task]
        self._awake.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            # Its claim expires, and it is posted again.
            self.counts["lost"] += 1
            _log.error("a webhook was let go of by an error", error=repr(error))

    async def _deliver(self, webhook: DueWebhook, signer: Webhook) -> None:
        """Post a delivery that is ours, and record how it went."""
        try:
            attempt = await self._attempt(webhook, signer)
        except asyncio.CancelledError:
            await _to_the_end(self._store.return_delivery(webhook.id, self._replica))
            raise
        await _to_the_end(self._record(webhook, attempt))

    async def _attempt(self, webhook: DueWebhook, signer: Webhook) -> WebhookAttempt:
        clock = asyncio.get_running_loop()
        started = clock.time()
        status, error = await self._post(webhook, signer)
        return WebhookAttempt(
            delivery_id=webhook.id,
            number=webhook.attempts + 1,
            at=webhook.read_at,
            status=status,
            error=error,
            took_ms=round((clock.time() - started) * 1000),
        )

    async def _post(self, webhook: DueWebhook, signer: Webhook) -> tuple[int | None, str | None]:
        """Post once: the status that it was answered with, or why there was none."""
        status = None
        try:
            async with asyncio.timeout(self.attempt_seconds):
                response = await self._send(_signed_request(webhook, signer))
                try:
                    status = response.status_code
                    await _read_a_little(response)
                finally:
                    await response.aclose()
        except TimeoutError:
            error = f"no answer within {self.attempt_seconds:g} s"
        except (AddressRefused, httpx.TransportError) as failure:
            error = str(failure) or type(failure).__name__
        except Exception as failure:  # noqa: BLE001 - whatever it is, it is tried again
            # Its text may show the address, which may hold a secret of the receiver's.
            error = type(failure).__name__
        else:
            return status, None
        # What goes wrong after the status doesn't change it.
        return (None, error) if status is None else (status, None)

    async def _send(self, request: httpx.Request) -> httpx.Response:
        if self._transport is None:
            raise RuntimeError("webhooks are delivered by `run` and `run_once`")
        return await self._transport.handle_async_request(request)

    async def _record(self, webhook: DueWebhook, attempt: WebhookAttempt) -> None:
        """Record an attempt, and log it: never the address, which may hold a secret."""
        delivered = attempt.status is not None and 200 <= attempt.status < 300  # noqa: PLR2004
        retry_in_ms = None if delivered else self._retry_in_ms(attempt)
        ours = await self._store.record_attempt(
            webhook.id, self._replica, attempt, delivered=delivered, retry_in_ms=retry_in_ms
        )
        outcome = _outcome(ours=ours, delivered=delivered, again=retry_in_ms is not None)
        self.counts[outcome] += 1
        log = _log.debug if delivered and ours else _log.warning
        log(
            "webhook",
            outcome=outcome,
            webhook_id=webhook.message_id,
            bot_id=webhook.bot_id,
            host=webhook.host,
            attempt=attempt.number,
            status=attempt.status,
            error=attempt.error,
            took_ms=attempt.took_ms,
            retry_in_ms=retry_in_ms,
        )

    def _retry_in_ms(self, attempt: WebhookAttempt) -> int | None:
        """How long to wait after a failed attempt; `None` if there is no further one."""
        if attempt.status == _GONE or attempt.number > len(RETRY_SECONDS):
            return None
        # Those that failed together don't come back together.
        return round(RETRY_SECONDS[attempt.number - 1] * 1000 * self._random.uniform(0.8, 1.2))


def _outcome(*, ours: bool, delivered: bool, again: bool) -> str:
    if not ours:
        return "lost"  # somebody else has taken it meanwhile
    if delivered:
        return "delivered"
    return "failed" if again else "given_up"


def _signed_request(webhook: DueWebhook, signer: Webhook) -> httpx.Request:
    """The request as Standard Webhooks has it."""
    body = orjson.dumps(webhook.payload)
    return httpx.Request(
        "POST",
        webhook.callback_url,
        content=body,
        headers={
            "content-type": "application/json",
            "user-agent": f"botpool/{__version__}",
            "webhook-id": webhook.message_id,
            "webhook-timestamp": str(int(webhook.read_at.timestamp())),
            "webhook-signature": signer.sign(webhook.message_id, webhook.read_at, body.decode()),
        },
    )


async def _read_a_little(response: httpx.Response) -> None:
    """Let a receiver end its answer, if that is short."""
    size = 0
    async for part in response.aiter_raw():
        size += len(part)
        if size > _MOST_BYTES_READ:
            return


async def _to_the_end(write: Coroutine[None, None, None]) -> None:
    """Finish a last write even if the current task is cancelled meanwhile."""
    task = asyncio.ensure_future(write)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise
