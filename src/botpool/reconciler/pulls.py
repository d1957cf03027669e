"""One pull of an image on a host at a time, across all replicas.

The record is a row of `image_pulls` with a claim that expires. Whoever takes it pulls in the
background; everybody else, the slot that asked first among them, waits to be woken. When the image
can't be had, the slot that asked for it fails with it, and of those who wait exactly one is next to
try. When the engine doesn't answer, one of them tries after a while; when a replica dies, as soon
as its claim expires.

Where a start brings the image, the row is held by the deployment that starts first, whichever
replica drives it: the image is there once that slot is busy, and the next may try once it is proved
stopped.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from botpool.engines.base import PullProgress
from botpool.errors import (
    BotpoolError,
    DatabaseUnreachable,
    EngineError,
    EngineRefused,
    EngineUnavailable,
    NotFound,
    StaleLease,
)
from botpool.models import WAITS_FOR_IMAGE
from botpool.reconciler.context import NOW, to_the_end
from botpool.reconciler.points import Point
from botpool.states import FailureCause, SlotStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from botpool.models import Slot
    from botpool.reconciler.context import Context
    from botpool.store.work import PullKey

_log: structlog.stdlib.BoundLogger = structlog.get_logger("botpool")

_RENEWALS = 3
_SHORTEST_RETRY_SECONDS = 0.1
_LONGEST_RETRY_SECONDS = 60.0


class Pulls:
    """The pulls that this replica has taken."""

    def __init__(self, context: Context, wake: Callable[[], None]) -> None:
        self._context = context
        self._wake = wake
        self._known: set[PullKey] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def wait_for_image(self, slot: Slot) -> float:
        """How many seconds to wait until the slot's image may be on its host; 0 if it is there.

        If nobody brings it, begin to. What is known to be there is not asked for again.
        """
        key = _key(slot)
        if key is None or key in self._known:
            return NOW
        context = self._context
        if context.engine(slot).traits.pulls_at_start:
            return await self._wait_for_first_start(key, slot)
        pull = await context.store.take_pull(key, context.replica, context.settings.claim_ttl_ms)
        if pull is None:
            return context.safety_net
        if pull.status == "present":
            self._known.add(key)
            return NOW
        if pull.retry_at is not None:
            wait = (pull.retry_at - slot.read_at).total_seconds()
            return min(max(wait, _SHORTEST_RETRY_SECONDS), context.safety_net)
        if pull.claimed_by == context.replica and str(key) not in self._names():
            context.reached(Point.PULL_TAKEN)
            task = asyncio.create_task(self._pull(key, slot, pull.attempts), name=str(key))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return context.safety_net

    async def _wait_for_first_start(self, key: PullKey, slot: Slot) -> float:
        """0 for the deployment that brings the image by its start, and for all once it is there."""
        context = self._context
        await self.settle(slot.engine, key[1])
        pull = await context.store.take_pull(
            key, f"start of {slot.slot_name}", context.settings.deploy_timeout_ms, slot
        )
        if pull is None:
            return context.safety_net
        if pull.status == "present":
            self._known.add(key)
            return NOW
        if (pull.slot_id, pull.lease) == (slot.id, slot.lease):
            context.reached(Point.PULL_TAKEN)
            return NOW
        return context.safety_net

    async def settle(self, engine: str, host: str) -> None:
        """End the pulls on a host whose starts are over, and wake those who wait for the image."""
        for key in await self._context.store.settle_pulls(engine, host):
            await self._context.store.wake_pull(key, WAITS_FOR_IMAGE, 0)
            self._wake()

    def _names(self) -> set[str]:
        return {task.get_name() for task in self._tasks}

    async def forget_image(self, slot: Slot) -> None:
        """The engine says that the image is not there."""
        key = _key(slot)
        if key is not None:
            self._known.discard(key)
            await self._context.store.forget_pull(key)

    async def close(self) -> None:
        """Stop pulling. Others may take over at once."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def finished(self) -> None:
        """Wait until no pull is under way."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _pull(self, key: PullKey, slot: Slot, attempts: int) -> None:
        try:
            await self._pull_and_record(key, slot, attempts)
        except BotpoolError as failure:
            # Whatever became of the claim, it expires, and somebody takes over.
            _log.warning("pull lost", key=key, error=str(failure))

    async def _pull_and_record(self, key: PullKey, slot: Slot, attempts: int) -> None:
        engine, host, image = key
        log = _log.bind(engine=engine, host=host, image=image)
        log.info("pull started", slot_name=slot.slot_name)
        error: str | None = None
        retry_in = 0.0
        try:
            fetched = await self._pull_while_ours(key)
            log.info("pull done", fetched=fetched)
        except asyncio.CancelledError:
            await to_the_end(self._finish(key, "its replica shut down", 0.0))
            raise
        except EngineRefused as failure:
            # The image can't be had. Whoever waits finds out for itself, one after the other.
            error = str(failure)
            await self._fail(slot, error)
        except EngineError as failure:
            error = str(failure)
            retry_in = self._context.jittered(min(2.0 ** (attempts - 1), _LONGEST_RETRY_SECONDS))
        if error is not None:
            log.warning("pull failed", error=error, attempts=attempts)
        self._context.reached(Point.PULL_DONE)
        await self._finish(key, error, retry_in)
        self._context.reached(Point.PULL_RECORDED)

    async def _pull_while_ours(self, key: PullKey) -> bool:
        """Pull, while the claim is renewed with the progress of it."""
        engine, host, image = key
        settings = self._context.settings
        progress = PullProgress(current=0, total=0)

        def note(new: PullProgress) -> None:
            nonlocal progress
            progress = new

        # Whoever was paused before this may find that others have gone on.
        renewed = await self._renew(key, progress, asyncio.get_running_loop().time())
        pulling = asyncio.create_task(self._context.engines[engine].pull(host, image, note))
        try:
            async with asyncio.timeout(settings.deploy_timeout_ms / 1000):
                while not pulling.done():
                    await asyncio.wait({pulling}, timeout=settings.claim_ttl_ms / 1000 / _RENEWALS)
                    renewed = await self._renew(key, progress, renewed)
                return await pulling
        except TimeoutError:
            raise EngineUnavailable(
                f"{image} was not there after {settings.deploy_timeout_ms} ms."
            ) from None
        finally:
            pulling.cancel()

    async def _renew(self, key: PullKey, progress: PullProgress, renewed: float) -> float:
        """Renew the claim and return when; a database that is away for a moment is waited for."""
        context = self._context
        ttl_ms = context.settings.claim_ttl_ms
        now = asyncio.get_running_loop().time()
        try:
            if not await context.store.renew_pull(
                key, context.replica, ttl_ms, progress.current, progress.total
            ):
                raise StaleLease(f"The pull of {key[2]} was taken over by another replica.")
        except DatabaseUnreachable:
            if now - renewed > ttl_ms / 1000:
                raise
            return renewed
        return now

    async def _fail(self, slot: Slot, error: str) -> None:
        try:
            reason, was = f"image not pulled: {error}", SlotStatus.DEPLOYING
            await self._context.pool.mark_error(
                slot.id, slot.lease, FailureCause.IMAGE_PULL, reason, was=was
            )
        except (StaleLease, NotFound):
            _log.info("nobody waits for the pull", slot_name=slot.slot_name, lease=slot.lease)

    async def _finish(self, key: PullKey, error: str | None, retry_in: float) -> None:
        store, retry_in_ms = self._context.store, retry_in * 1000
        await store.finish_pull(key, self._context.replica, error, retry_in_ms)
        await store.wake_pull(key, WAITS_FOR_IMAGE, retry_in_ms)
        self._wake()


def _key(slot: Slot) -> PullKey | None:
    if slot.image is None or slot.host is None:
        return None
    return slot.engine, slot.host, slot.image
