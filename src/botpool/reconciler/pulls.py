"""One pull of an image on a host at a time, across all replicas.

A pull is a row of `image_pulls` with a reservation that expires. The replica that has it pulls in
the background; every slot that needs the image, the first one included, waits to be woken. If the
image can't be pulled, the slot that asked for it fails, and exactly one of the waiting slots tries
next. If the engine doesn't answer, one of them tries again after a while. If the replica dies, one
of them tries when its reservation has expired.

Images are also brought to hosts before a bot asks, one at a time, and behind those that bots wait
for: such a pull gives way if a bot on its host waits for another image.

On engines whose starts bring the image, the first deployment holds the row, not a replica. The
image is there once that slot is busy; if it fails, the next one may try once it is proved stopped.
There, a slot is started without a bot to bring an image ahead: warming.py.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
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
from botpool.logs import log_failure
from botpool.models.assignments import FailedLaunch
from botpool.models.pulls import PullKey, PullOutcome
from botpool.reconciler.checkpoints import Checkpoint
from botpool.reconciler.context import NOW
from botpool.reconciler.telling import bot_in_log, worded
from botpool.states import FailureCause, Platform, SlotStatus
from botpool.tasks.backoff import Backoff
from botpool.tasks.finish import finish

if TYPE_CHECKING:
    from collections.abc import Callable

    from botpool.models.pulls import ImagePull
    from botpool.models.slots import Slot
    from botpool.reconciler.context import Context

_log: structlog.stdlib.BoundLogger = structlog.get_logger("botpool")

_RENEWALS = 3
_TOLD_SECONDS = 1.0
"""How often the progress of a pull is recorded."""
_FINISH_SECONDS = 5.0
_SHORTEST_RETRY_SECONDS = 0.1
_RETRIES = Backoff(1.0, 60.0)

TRIES_IN_VAIN = 4
"""After so many, a bot goes to another host that could serve it. That takes about eight seconds:
longer than a container engine takes to restart."""


class _GaveWay(Exception):
    """A pull that no bot waits for was put off for one that a bot waits for."""


class Pulls:
    """The pulls of this replica."""

    def __init__(self, context: Context, wake: Callable[[], None]) -> None:
        self._context = context
        self._wake = wake
        self._known: set[PullKey] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def wait_for_image(self, slot: Slot) -> float:
        """How many seconds to wait before looking for the slot's image again; 0 if it is there.

        If no replica pulls it, this one begins to. An image that is known to be there is not
        checked again.
        """
        key = _key(slot)
        context = self._context
        # Each node fetches what is started there, and once.
        if key is None or key in self._known or context.engine(slot).traits.has_nodes:
            return NOW
        if context.engine(slot).traits.pulls_at_start:
            return await self._wait_for_first_start(key, slot)
        pull = await context.store.pulls.take(
            key, context.replica, context.settings.reservation_ttl_ms
        )
        if pull is None:
            return context.safety_net
        if pull.status == "present":
            self._known.add(key)
            return NOW
        if pull.retry_at is not None:
            if pull.error is not None:
                await context.pool.hosts.tell_failed_pull(key, pull.error, pull.attempts, slot)
            wait = (pull.retry_at - slot.read_at).total_seconds()
            return min(max(wait, _SHORTEST_RETRY_SECONDS), context.safety_net)
        if pull.reserved_by == context.replica:
            self._begin(pull, slot)
        return context.safety_net

    async def bring_asked(self, pull: ImagePull) -> None:
        """Bring an image that somebody asked for to its host, or tell that it is there.

        It does not give way to what bots wait for. Raises `EngineError`.
        """
        context, key = self._context, pull.key
        engine = context.engines[pull.engine]
        if engine.traits.pulls_at_start:
            await self._bring_asked_by_start(pull)
            return
        if pull.status == "present":
            if await engine.has_image(pull.host, pull.image):
                await context.pool.hosts.answer_pull(key)
                return
            self._known.discard(key)
            await context.store.pulls.lost(key)
        taken = await context.store.pulls.take(
            key, context.replica, context.settings.reservation_ttl_ms
        )
        if taken is not None and taken.reserved_by == context.replica:
            self._begin(taken, None, asked=True)

    async def _bring_asked_by_start(self, pull: ImagePull) -> None:
        """Let a slot be started without a bot for an image that somebody asked for."""
        context, settings = self._context, self._context.settings
        await self.settle(pull.engine, pull.host)
        if pull.image not in {settings.image(platform) for platform in Platform}:
            await context.store.pulls.refuse(
                pull.key,
                f"{pull.engine} brings an image only by the start of a slot, and no platform has"
                " this image",
            )
        elif pull.status == "asked":
            await context.pool.hosts.start_ahead(
                pull.engine, pull.host, settings.recovery_interval_ms
            )
        await context.pool.hosts.answer_pull(pull.key)

    async def bring_ahead(self, engine: str, host: str) -> None:
        """Bring the next image to a host that no bot has asked for yet, if one is missing there.

        One image at a time, behind those that bots wait for. Raises `EngineError`.
        """
        context, settings = self._context, self._context.settings
        if not settings.pull_ahead or engine != settings.engine:
            return
        again_ms = settings.recovery_interval_ms
        if context.engines[engine].traits.pulls_at_start:
            await self.settle(engine, host)
            await context.pool.hosts.start_ahead(engine, host, again_ms)
            return
        if await context.store.installation.take_duty(f"images {engine}/{host}", again_ms):
            await self._forget_lost(engine, host)
        pull = await context.store.pulls.take_ahead(
            engine, host, context.replica, ttl_ms=settings.reservation_ttl_ms, again_ms=again_ms
        )
        if pull is not None:
            self._begin(pull, None)

    async def _forget_lost(self, engine: str, host: str) -> None:
        """Forget the images of a host that are not there any more: somebody may clean up there."""
        wanted = {self._context.settings.image(platform) for platform in Platform}
        for pull in await self._context.store.pulls.all():
            if (pull.engine, pull.host, pull.status) != (engine, host, "present"):
                continue
            if pull.image in wanted and not await self._context.engines[engine].has_image(
                host, pull.image
            ):
                self._known.discard(pull.key)
                await self._context.store.pulls.forget(pull.key)

    def _begin(self, pull: ImagePull, slot: Slot | None, *, asked: bool = False) -> None:
        """Begin a pull that this replica has reserved.

        If it is under way, nothing happens: what has reserved it and what finds it reserved may be
        two tasks of this replica, and either may come here first.
        """
        if any(task.get_name() == str(pull.key) for task in self._tasks):
            return
        self._context.reached(Checkpoint.PULL_TAKEN)
        task = asyncio.create_task(self._pull(pull, slot, asked=asked), name=str(pull.key))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _wait_for_first_start(self, key: PullKey, slot: Slot) -> float:
        """0 if the slot's own start brings the image, or if the image is there."""
        context = self._context
        await self.settle(slot.engine, key.host)
        pull = await context.store.pulls.take(
            key, f"start of {slot.slot_name}", context.settings.deployment_limit_ms, slot
        )
        if pull is None:
            return context.safety_net
        if pull.status == "present":
            self._known.add(key)
            return NOW
        if (pull.slot_id, pull.lease) == (slot.id, slot.lease):
            context.reached(Checkpoint.PULL_TAKEN)
            return NOW
        return context.safety_net

    async def settle(self, engine: str, host: str) -> None:
        """End the pulls on a host whose starts are over, and wake the slots that wait for them."""
        if await self._context.pool.hosts.settle_pulls(engine, host):
            self._wake()

    async def forget_image(self, slot: Slot) -> None:
        """Forget that the image is on the host: the engine says that it is not."""
        key = _key(slot)
        if key is not None:
            self._known.discard(key)
            await self._context.store.pulls.forget(key)

    async def close(self) -> None:
        """Stop pulling. Other replicas may take over at once."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def finished(self) -> None:
        """Wait until no pull is under way."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _pull(self, pull: ImagePull, slot: Slot | None, *, asked: bool) -> None:
        try:
            await self._pull_and_record(pull, slot, asked=asked)
        except BotpoolError as failure:
            # The reservation expires in any case, and another replica takes over.
            log_failure("pull lost", failure, key=pull.key)

    async def _pull_and_record(self, pull: ImagePull, slot: Slot | None, *, asked: bool) -> None:
        """Pull for a slot whose bot waits, for somebody who asked, or ahead of any bot."""
        context, key = self._context, pull.key
        log = _log.bind(engine=pull.engine, host=pull.host, image=pull.image)
        if slot is not None:
            log = log.bind(slot_name=slot.slot_name, **await bot_in_log(context, slot))
            log.info("pull started")
        error: str | None = None
        retry_in = 0.0
        clock = asyncio.get_running_loop().time
        began, fetched = clock(), False
        try:
            fetched = await self._pull_while_ours(key, ahead=slot is None and not asked)
            if fetched or slot is not None:
                log.info("pull done", fetched=fetched)
        except asyncio.CancelledError:
            shut_down = "its replica shut down"
            over = self.end(key, context.replica, shut_down) if slot else self._give_up(key)
            await finish(over, seconds=_FINISH_SECONDS)
            raise
        except _GaveWay:
            log.info("pull put off: a bot waits for another image there")
            await self._give_up(key)
            return
        except EngineRefused as failure:
            # The image can't be pulled. The waiting slots find that out one after the other.
            error = worded(failure)
            if slot is not None:
                await self._fail(slot, error)
        except EngineError as failure:
            error = worded(failure)
            retry_in = _RETRIES.seconds(pull.attempts, context.random) if slot else 0.0
        if error is not None:
            log.warning("pull failed", error=error, attempts=pull.attempts)
        context.reached(Checkpoint.PULL_DONE)
        took = clock() - began
        # Those who could go to another host need not wait for the next try here.
        wake_in = retry_in if pull.attempts < TRIES_IN_VAIN else 0.0
        await self.end(key, context.replica, error, pull.attempts, retry_in, wake_in)
        outcome = PullOutcome.of(fetched=fetched, failed=error is not None)
        context.metrics.pulled(pull.engine, pull.host, outcome, took)
        context.reached(Checkpoint.PULL_RECORDED)

    async def _pull_while_ours(self, key: PullKey, *, ahead: bool) -> bool:
        """Pull, and meanwhile renew the reservation and record the progress.

        A pull `ahead` of any bot raises `_GaveWay` when a bot on the host waits for another image.
        """
        engine, host, image = key
        settings = self._context.settings
        now = asyncio.get_running_loop().time
        progress, news = PullProgress(current=0, total=0), asyncio.Event()

        def note(new: PullProgress) -> None:
            nonlocal progress
            progress = new
            if now() - renewed >= _TOLD_SECONDS:
                news.set()

        # If this replica was paused before this, another one may have taken over.
        renewed = await self._renew(key, progress, now())
        pulling = asyncio.create_task(self._context.engines[engine].pull(host, image, note))
        pulling.add_done_callback(lambda _: news.set())
        try:
            async with asyncio.timeout(settings.deployment_limit_ms / 1000):
                while not pulling.done():
                    with suppress(TimeoutError):
                        async with asyncio.timeout(settings.reservation_ttl_ms / 1000 / _RENEWALS):
                            await news.wait()
                    news.clear()
                    renewed = await self._renew(key, progress, renewed)
                    if ahead and not pulling.done() and await self._context.store.pulls.urgent(key):
                        raise _GaveWay
                return await pulling
        except TimeoutError:
            raise EngineUnavailable(
                f"{image} was not pulled within {settings.deployment_limit_ms} ms."
            ) from None
        finally:
            pulling.cancel()

    async def _renew(self, key: PullKey, progress: PullProgress, renewed: float) -> float:
        """Renew the reservation and return when. A short outage of the database is no error."""
        context = self._context
        ttl_ms = context.settings.reservation_ttl_ms
        now = asyncio.get_running_loop().time()
        try:
            if not await context.store.pulls.renew(
                key, context.replica, ttl_ms, progress.current, progress.total
            ):
                raise StaleLease(f"Another replica has taken over the pull of {key.image}.")
        except DatabaseUnreachable:
            if now - renewed > ttl_ms / 1000:
                raise
            return renewed
        return now

    async def _fail(self, slot: Slot, error: str) -> None:
        try:
            await self._context.pool.relaunch.fail_launch(
                FailedLaunch(
                    slot_id=slot.id,
                    lease=slot.lease,
                    cause=FailureCause.IMAGE_PULL,
                    reason=f"the image can't be pulled: {error}",
                    was=SlotStatus.DEPLOYING,
                    elsewhere=True,
                )
            )
        except (StaleLease, NotFound):
            _log.info(
                "the slot doesn't wait for the pull any more",
                slot_name=slot.slot_name,
                lease=slot.lease,
                **await bot_in_log(self._context, slot),
            )

    async def _give_up(self, key: PullKey) -> None:
        """Let go of a pull ahead of any bot. A bot that has come to wait for it pulls it itself."""
        await self._context.store.pulls.give_up(key, self._context.replica)
        await self._context.store.pulls.wake(key, 0)
        self._wake()

    async def end(
        self,
        key: PullKey,
        owner: str,
        error: str | None,
        failed_attempt: int | None = None,
        retry_in: float = 0.0,
        wake_in: float = 0.0,
    ) -> None:
        """End a pull of this owner: the image is there, or there was an error. Wake who waits.

        If an attempt has failed, those who wait are told. Who comes to wait only now finds the
        error recorded.
        """
        store = self._context.store
        await store.pulls.finish(key, owner, error, retry_in * 1000)
        if error is not None and failed_attempt is not None:
            await self._context.pool.hosts.tell_failed_pull(key, error, failed_attempt)
        await store.pulls.wake(key, wake_in * 1000)
        await self._context.pool.hosts.answer_pull(key)
        self._wake()


def _key(slot: Slot) -> PullKey | None:
    if slot.image is None or slot.host is None:
        return None
    return PullKey(slot.engine, slot.host, slot.image)
