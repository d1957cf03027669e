"""The reconciler: whatever the database says should be, it brings about at the engines.

It takes slots that are due under a claim that expires, does what can be done for each, records the
outcome under the slot's lease, and gives it back with the time at which to look again. It is woken
by announcements, and by a poll behind them. No transaction is open while an engine is called. Any
number of replicas may run.
"""

from __future__ import annotations

import asyncio
import os
import platform
import random
import secrets
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import structlog

from botpool.changes import WORK
from botpool.errors import (
    BotpoolError,
    ClaimLost,
    EngineError,
    EngineUnavailable,
    NotFound,
    StaleLease,
)
from botpool.models import WAITS_FOR_ROOM
from botpool.reconciler.claims import Claims
from botpool.reconciler.context import NOW, Context
from botpool.reconciler.deploy import deploy
from botpool.reconciler.descriptions import Descriptions
from botpool.reconciler.points import go_on
from botpool.reconciler.pulls import Pulls
from botpool.reconciler.recovery import Decision, carry_out, counted, decide
from botpool.reconciler.release import end_late, recover, release
from botpool.reconciler.sync import SyncCounts, sync
from botpool.states import SLOT_NEEDS_WORK, Platform, SlotStatus
from botpool.store.listening import listening
from botpool.texts import storable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from botpool.engines.base import Engine
    from botpool.models import Slot
    from botpool.pool import Pool
    from botpool.reconciler.points import Reached
    from botpool.settings import Settings
    from botpool.store import Database, Store

_log: structlog.stdlib.BoundLogger = structlog.get_logger("botpool")

_MOST_AT_A_TIME = 1000
_MOST_STEPS_IN_A_ROW = 50
_SHUTDOWN_SECONDS = 5.0
_LONGEST_BACK_OFF_SECONDS = 15.0
_FIRST_BACK_OFF_SECONDS = 0.5
_PRUNE_EVERY_MS = 3_600_000
_LONGEST_ERROR = 1000


class Reconciler:
    """One replica. `run` works until `stop` is called; `run_once` does what is due now."""

    def __init__(
        self,
        store: Store,
        pool: Pool,
        engines: Mapping[str, Engine],
        settings: Settings,
        *,
        installation: str,
        reached: Reached = go_on,
        seed: int | None = None,
    ) -> None:
        self._context = Context(
            store=store,
            pool=pool,
            engines=engines,
            settings=settings,
            replica=f"{platform.node()}/{os.getpid()}/{secrets.token_hex(4)}",
            installation=installation,
            reached=reached,
            random=random.Random(seed),  # noqa: S311 - spreads retries
        )
        self._awake = asyncio.Event()
        self._stopping = False
        self._claims = Claims(self._context)
        self._pulls = Pulls(self._context, self._awake.set)
        self._descriptions = Descriptions(self._context)
        self._drives: set[asyncio.Task[None]] = set()
        self.step_seconds: float | None = None
        """How long one look at a slot may take, if that is not its engine's patience."""
        self.shutdown_seconds = _SHUTDOWN_SECONDS
        self.counts: Counter[str] = Counter()
        """How many slots were taken, how many steps were done, and how many of them failed."""

    # Once

    async def run_once(self) -> int:
        """Do all that is due, what becomes due by it included; return how many slots that was."""
        total = 0
        while taken := await self._take():
            total += len(taken)
            while self._drives:
                await asyncio.wait(self._drives)
            await self._pulls.finished()
            await self._descriptions.settle()
        return total

    async def sync_once(self) -> SyncCounts:
        """Compare every host with the slots, unless that was done lately."""
        counts = SyncCounts()
        for found in await asyncio.gather(
            *(self._sync(engine, host) for engine, host in self._context.hosts())
        ):
            counts += found
        return counts

    async def _sync(self, engine: str, host: str) -> SyncCounts:
        context = self._context
        every_ms = self._sync_interval_ms(engine)
        if not await context.store.take_duty(f"sync {engine}/{host}", every_ms):
            return SyncCounts()
        try:
            async with asyncio.timeout(self._patience(engine)):
                counts = await sync(
                    context, self._claims, self._descriptions, context.engines[engine], host
                )
        except (EngineError, TimeoutError) as error:
            # Not to know is no news: nothing is changed for it.
            _log.warning("no comparison", engine=engine, host=host, error=str(error))
            if isinstance(error, EngineUnavailable):
                await context.host_is_silent(engine, host, str(error))
            return SyncCounts()
        await context.host_answers(engine, host)
        return counts

    def _sync_interval_ms(self, engine: str) -> int:
        """Seldom where what is seen is old in any case."""
        settings = self._context.settings
        lags = self._context.engines[engine].traits.lags
        slowest = settings.deploy_poll_interval_ms if lags else 0
        return max(settings.sync_interval_ms, slowest)

    def _patience(self, engine: str) -> float:
        """After how many seconds a step counts as one that hangs."""
        if self.step_seconds is not None:
            return self.step_seconds
        found = self._context.engines.get(engine)
        seconds = found.traits.patience_seconds if found else 0.0
        return seconds + self._context.settings.stop_grace_ms / 1000

    async def recover_once(self, *, dry_run: bool = False, by_hand: bool = False) -> list[Decision]:
        """Find what is stuck, and do what is to be done about it, unless `dry_run`."""
        decisions = await decide(self._context, by_hand=by_hand)
        if dry_run:
            return decisions
        done = [await carry_out(decision) for decision in decisions]
        await self._context.pool.probe_hosts()
        counts = counted(done)
        if any(counts.values()):
            _log.info("recovered", **{name.value: count for name, count in counts.items()})
        self._awake.set()
        return done

    async def _recover(self) -> None:
        every_ms = self._context.settings.recovery_interval_ms
        if await self._context.store.take_duty("recovery", every_ms):
            await self.recover_once()

    # For ever

    async def run(self, database: Database) -> None:
        """Work until `stop` is called. What then isn't done within seconds is handed over."""
        settings = self._context.settings
        every = self._repeat
        async with listening(database, WORK, self._awake.set):
            # Each by itself: none waits for another, nor one host for another.
            rounds: list[tuple[float, Callable[[], Awaitable[object]]]] = [
                (settings.claim_ttl_ms / 3, self._claims.renew),
                (settings.poll_interval_ms, self._look_after_queue),
                (settings.recovery_interval_ms, self._recover),
                (_PRUNE_EVERY_MS / 6, self._prune),
                *(
                    (self._sync_interval_ms(engine), partial(self._sync, engine, host))
                    for engine, host in self._context.hosts()
                ),
            ]
            beside = [asyncio.create_task(every(each_ms, what)) for each_ms, what in rounds]
            try:
                await self._work()
            finally:
                await self._shut_down()
                for task in beside:
                    task.cancel()
                await asyncio.gather(*beside, return_exceptions=True)

    def stop(self) -> None:
        """Let `run` come to its end."""
        self._stopping = True
        self._awake.set()

    async def _work(self) -> None:
        while not self._stopping:
            self._awake.clear()
            try:
                taken = await self._take()
            except Exception as error:  # noqa: BLE001 - whatever it is, the loop goes on
                _log.warning("no work taken", error=str(error))
                taken = []
            if not taken:
                await self._until_awake()

    async def _until_awake(self) -> None:
        try:
            async with asyncio.timeout(self._context.settings.poll_interval_ms / 1000):
                await self._awake.wait()
        except TimeoutError:
            return

    async def _repeat(self, every_ms: float, what: Callable[[], Awaitable[object]]) -> None:
        while True:
            try:
                await what()
            except Exception as error:  # noqa: BLE001 - a failed round must not end the rounds
                self.counts["failed"] += 1
                _log.warning("failed, and tried again", what=repr(what), error=str(error))
            await asyncio.sleep(every_ms / 1000)

    async def _look_after_queue(self) -> None:
        pool = self._context.pool
        if await self._context.store.take_duty("queue", self._context.settings.poll_interval_ms):
            await pool.expire_queue()
            for waiting in Platform:
                await pool.assign_waiting(waiting)

    async def _prune(self) -> None:
        if await self._context.store.take_duty("prune", _PRUNE_EVERY_MS):
            await self._context.pool.prune()

    async def _shut_down(self) -> None:
        """Finish what is nearly done, and hand over the rest."""
        if self._drives:
            await asyncio.wait(self._drives, timeout=self.shutdown_seconds)
        for drive in self._drives:
            drive.cancel()
        await asyncio.gather(*self._drives, return_exceptions=True)
        await self._pulls.close()
        await self._descriptions.close()
        try:
            await self._context.store.announce([WORK])
        except BotpoolError as error:
            _log.warning("handed over in silence", error=str(error))

    # One slot

    async def _take(self) -> list[Slot]:
        """Take what is due, as far as there are hands for it, and set to work."""
        free = _MOST_AT_A_TIME - len(self._drives)
        taken = await self._claims.take_due(free) if free > 0 else []
        for slot in taken:
            drive = asyncio.create_task(self._drive(slot))
            self._drives.add(drive)
            drive.add_done_callback(self._drive_ended)
        self.counts["taken"] += len(taken)
        return taken

    def _drive_ended(self, drive: asyncio.Task[None]) -> None:
        self._drives.discard(drive)
        self._awake.set()
        if not drive.cancelled() and (error := drive.exception()) is not None:
            self.counts["failed"] += 1
            _log.error("a slot was let go of by an error", error=repr(error))

    async def _drive(self, slot: Slot) -> None:
        """Work on a slot that is ours until it has to wait, and give it back."""
        due_in: float | None = NOW
        failed: str | None = None
        self._descriptions.show(slot)
        try:
            async with self._claims.working_on(slot):
                slot, due_in = await self._steps(slot)
        except ClaimLost:
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, the slot is tried again
            failed = storable(str(error) or type(error).__name__, _LONGEST_ERROR)
            due_in = self._back_off(slot, error)
            await self._note_failure(slot, error)
        finally:
            await self._claims.give_back(slot, due_in, failed)

    async def _steps(self, slot: Slot) -> tuple[Slot, float | None]:
        """Do one step after another; the slot as it is then, and in how many seconds to go on."""
        for _ in range(_MOST_STEPS_IN_A_ROW):
            due_in = await self._step(slot)
            if due_in != NOW:
                return slot, due_in
            before, found = slot, await self._context.store.get_slot(slot.id)
            if found is None or found.claimed_by != self._context.replica:
                raise ClaimLost
            slot = found
            await self._make_room(before, slot)
            self._descriptions.show(slot)
            if slot.status not in SLOT_NEEDS_WORK:
                return slot, None
        return slot, NOW

    async def _step(self, slot: Slot) -> float | None:
        """One look at a slot: in how many seconds to look again, or `None` for never."""
        self.counts["steps"] += 1
        try:
            async with asyncio.timeout(self._patience(slot.engine)):
                match slot.status:
                    case SlotStatus.DEPLOYING:
                        return await deploy(self._context, self._pulls, slot)
                    case SlotStatus.RELEASING:
                        return await release(self._context, slot)
                    case SlotStatus.ERROR:
                        return await recover(self._context, slot)
                    case SlotStatus.BUSY:
                        return await end_late(self._context, slot)
                    case _:
                        return None
        except ClaimLost:
            raise
        except (StaleLease, NotFound):
            return NOW  # somebody changed it meanwhile

    async def _make_room(self, before: Slot, now: Slot) -> None:
        """Let the next deployment onto a host when one has left it."""
        if now.host is not None and before.status is not now.status:
            await self._context.store.wake_deployments(
                now.engine,
                now.host,
                self._context.settings.max_concurrent_deployments,
                WAITS_FOR_ROOM,
            )
            if self._context.engine(now).traits.pulls_at_start:
                await self._pulls.settle(now.engine, now.host)

    def _back_off(self, slot: Slot, error: Exception) -> float:
        """Count and log a failed step, and return how long to wait after it."""
        self.counts["failed"] += 1
        seconds = _FIRST_BACK_OFF_SECONDS * 2 ** min(slot.failed_steps, 16)
        seconds = self._context.jittered(min(seconds, _LONGEST_BACK_OFF_SECONDS))
        _log.warning(
            "step failed",
            slot_id=slot.id,
            slot_name=slot.slot_name,
            status=slot.status,
            lease=slot.lease,
            failures=slot.failed_steps + 1,
            retry_in_ms=round(seconds * 1000),
            error=str(error) or type(error).__name__,
            kind=type(error).__name__,
        )
        return seconds

    async def _note_failure(self, slot: Slot, error: Exception) -> None:
        """An engine that does not answer is its host's failure, where each host has its own."""
        engine = self._context.engines.get(slot.engine)
        if engine is None or engine.traits.one_api:
            return
        if isinstance(error, EngineUnavailable):
            with suppress(BotpoolError):
                # It may have been put on its host in this very step.
                now = await self._context.pool.get_slot(slot.id)
                await self._context.note_failure(now, str(error))

    @property
    def busy(self) -> int:
        """How many slots it works on now."""
        return len(self._drives)
