"""Webhooks: what happens to bots, posted to their callback URLs and to their projects' endpoints.

The database writes a delivery with each event. This reserves the deliveries that are due, for a
time that expires, posts them, and records each attempt. A delivery is posted at least once: if a
replica is killed between posting and recording, it is posted again, with the same `webhook-id`. The
deliveries of a bot to one place are posted in order, the next one when the previous one is
delivered or given up. Any number of replicas may run, and no transaction is open while a receiver
is called.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import httpx
import orjson
import structlog
from standardwebhooks import Webhook

from botpool import __version__
from botpool.errors import AddressRefused, BotpoolError
from botpool.feed.addresses import PinnedTransport
from botpool.feed.endpoints import installation_secret
from botpool.logs import log_failure
from botpool.models.replicas import new_replica_name
from botpool.models.webhooks import WebhookAttempt
from botpool.store.installation import WEBHOOKS
from botpool.store.postgres.listening import listening
from botpool.tasks.backoff import spread
from botpool.tasks.finish import finish
from botpool.tasks.loop import Loop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from botpool.feed.addresses import Resolve
    from botpool.models.webhooks import DueWebhook
    from botpool.settings import Settings
    from botpool.store import Database, Store

_log: structlog.stdlib.BoundLogger = structlog.get_logger("botpool")

RETRY_SECONDS = (5, 30, 120, 600, 1800, 3600, 7200, 14400, 28800, 28800)
"""About how long to wait after each failed attempt. After one more, a delivery is given up."""

PAUSE_AFTER = timedelta(days=3)
"""An endpoint at which every attempt has failed for so long is paused."""

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
        replica: str | None = None,
        seed: int | None = None,
    ) -> None:
        self._store = store
        self._settings = settings
        self._resolve = resolve
        self._replica = replica or new_replica_name()
        self._random = random.Random(seed)  # noqa: S311 - spreads retries
        self._installation_secret: str | None = None
        self._transport: PinnedTransport | None = None
        self._loop = Loop(
            self._look,
            poll_seconds=settings.poll_interval_ms / 1000,
            failed="can't reserve webhooks",
        )
        self._under_way: dict[asyncio.Task[None], str] = {}
        self.attempt_seconds = _ATTEMPT_SECONDS
        """How long one attempt may take in all."""
        self.most_at_a_time = _MOST_AT_A_TIME
        self.most_at_a_host = _MOST_AT_A_HOST
        """How many answers it waits for at a time, in all and from one host."""
        self.shutdown_seconds = _SHUTDOWN_SECONDS
        self.counts: Counter[str] = Counter()
        """How many attempts were `delivered`, `failed` and `given_up`, and how many `lost`."""

    async def run_once(self) -> int:
        """Deliver everything that is due or becomes due meanwhile; return how many that was."""
        total = 0
        async with self._connections():
            while taken := await self._take():
                total += taken
                while self._under_way:
                    await asyncio.wait(self._under_way)
        return total

    async def run(self, database: Database) -> None:
        """Deliver until `stop` is called. Then finish within seconds, and hand over the rest."""
        async with (
            self._connections(),
            listening(database, WEBHOOKS, self._loop.wake),
        ):
            try:
                await self._loop.run()
            finally:
                await self._shut_down()

    def stop(self) -> None:
        """Make `run` return."""
        self._loop.stop()

    @property
    def busy(self) -> int:
        """How many answers it waits for now."""
        return len(self._under_way)

    @asynccontextmanager
    async def _connections(self) -> AsyncIterator[None]:
        allow_private = self._settings.allow_private_callbacks
        async with PinnedTransport(allow_private=allow_private, resolve=self._resolve) as transport:
            self._transport = transport
            yield

    async def _look(self) -> float:
        """Take what is due, and return in how many seconds to look again."""
        return 0 if await self._take() else self._loop.poll_seconds

    async def _shut_down(self) -> None:
        """Finish what is nearly done, and hand over the rest."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=self.shutdown_seconds)
        left = list(self._under_way)
        for delivery in left:
            delivery.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        try:
            await self._store.installation.announce([WEBHOOKS])
        except BotpoolError as error:
            log_failure("can't announce that work was handed over", error)

    # One delivery

    async def _take(self) -> int:
        """Take deliveries that are due, no more than can be posted at a time, and post them."""
        free = self.most_at_a_time - len(self._under_way)
        if free <= 0:
            return 0
        if self._installation_secret is None:
            self._installation_secret = await installation_secret(self._store, self._settings)
        # Nothing taken waits for its turn, so no reservation needs to be renewed.
        ttl_ms = self.attempt_seconds * 1000 + self._settings.reservation_ttl_ms
        hosts = list(self._under_way.values())
        taken = await self._store.webhooks.reserve(
            self._replica, ttl_ms, free, hosts, self.most_at_a_host
        )
        for webhook in taken:
            task = asyncio.create_task(self._deliver(webhook))
            self._under_way[task] = webhook.host
            task.add_done_callback(self._delivery_ended)
        return len(taken)

    def _delivery_ended(self, task: asyncio.Task[None]) -> None:
        del self._under_way[task]
        self._loop.wake()
        if not task.cancelled() and (error := task.exception()) is not None:
            # Its reservation expires, and it is posted again.
            self.counts["lost"] += 1
            log_failure(
                "a webhook failed with an unexpected error",
                error,
                logging.ERROR,
                kind=type(error).__name__,
            )

    async def _deliver(self, webhook: DueWebhook) -> None:
        """Post a delivery that we have reserved, and record the attempt."""
        try:
            attempt = await self._attempt(webhook)
        except asyncio.CancelledError:
            await finish(
                self._store.webhooks.give_back(webhook.id, self._replica),
                seconds=self.shutdown_seconds,
            )
            raise
        await finish(self._record(webhook, attempt), seconds=self.shutdown_seconds)

    async def _attempt(self, webhook: DueWebhook) -> WebhookAttempt:
        clock = asyncio.get_running_loop()
        started = clock.time()
        status, error = await self._post(webhook)
        return WebhookAttempt(
            delivery_id=webhook.id,
            number=webhook.tries + 1,
            at=webhook.read_at,
            status=status,
            error=error,
            took_ms=round((clock.time() - started) * 1000),
        )

    async def _post(self, webhook: DueWebhook) -> tuple[int | None, str | None]:
        """Post once. Returns the status of the answer, or why there was none."""
        status = None
        try:
            async with asyncio.timeout(self.attempt_seconds):
                response = await self._send(_signed_request(webhook, self._signers(webhook)))
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
            # Its text may show the URL, which may contain a secret of the receiver.
            error = type(failure).__name__
        else:
            return status, None
        # An error after the status doesn't change the status.
        return (None, error) if status is None else (status, None)

    def _signers(self, webhook: DueWebhook) -> Sequence[Webhook]:
        """What signs a delivery: two while a secret is rotated."""
        return [Webhook(secret) for secret in webhook.secrets or (self._installation_secret or "",)]

    async def _send(self, request: httpx.Request) -> httpx.Response:
        if self._transport is None:
            raise RuntimeError("webhooks are only delivered within `run` and `run_once`")
        return await self._transport.handle_async_request(request)

    async def _record(self, webhook: DueWebhook, attempt: WebhookAttempt) -> None:
        """Record an attempt, and log it without the URL, which may contain a secret."""
        delivered = attempt.status is not None and 200 <= attempt.status < 300  # noqa: PLR2004
        retry_in_ms = None if delivered else self._retry_in_ms(attempt)
        recorded = await self._store.webhooks.record_attempt(
            attempt,
            self._replica,
            delivered=delivered,
            retry_in_ms=retry_in_ms,
            pause_after_ms=PAUSE_AFTER // timedelta(milliseconds=1),
        )
        ours = recorded != "lost"
        outcome = _outcome(ours=ours, delivered=delivered, again=retry_in_ms is not None)
        self.counts[outcome] += 1
        log = _log.info if delivered and ours else _log.warning
        log(
            "webhook",
            outcome=outcome,
            webhook_id=webhook.message_id,
            bot_id=webhook.bot_id,
            correlation_id=webhook.correlation_id,
            host=webhook.host,
            attempt=attempt.number,
            status=attempt.status,
            error=attempt.error,
            took_ms=attempt.took_ms,
            retry_in_ms=retry_in_ms,
        )
        if recorded == "paused":
            _log.warning(
                "a webhook endpoint is paused: everything sent there failed for days",
                endpoint_id=webhook.endpoint_id,
                host=webhook.host,
            )

    def _retry_in_ms(self, attempt: WebhookAttempt) -> int | None:
        """How long to wait after a failed attempt; `None` if there is no further one."""
        if attempt.status == _GONE or attempt.number > len(RETRY_SECONDS):
            return None
        # Spread, so that deliveries that failed together aren't retried together.
        return round(spread(RETRY_SECONDS[attempt.number - 1] * 1000, self._random))


def _outcome(*, ours: bool, delivered: bool, again: bool) -> str:
    if not ours:
        return "lost"  # another replica has reserved it meanwhile
    if delivered:
        return "delivered"
    return "failed" if again else "given_up"


def _signed_request(webhook: DueWebhook, signers: Sequence[Webhook]) -> httpx.Request:
    """The request, signed as Standard Webhooks defines it: once with each secret."""
    body = orjson.dumps(webhook.payload)
    signatures = [
        signer.sign(webhook.message_id, webhook.read_at, body.decode()) for signer in signers
    ]
    return httpx.Request(
        "POST",
        webhook.url,
        content=body,
        headers={
            "content-type": "application/json",
            "user-agent": f"botpool/{__version__}",
            "webhook-id": webhook.message_id,
            "webhook-timestamp": str(int(webhook.read_at.timestamp())),
            "webhook-signature": " ".join(signatures),
        },
    )


async def _read_a_little(response: httpx.Response) -> None:
    """Read the answer, if it is short."""
    size = 0
    async for part in response.aiter_raw():
        size += len(part)
        if size > _MOST_BYTES_READ:
            return
