"""The reconciler: it makes the engines match what the database says.

It reserves slots that are due, for a time that expires, does what can be done for each, records the
outcome under the slot's lease, and gives the slot back with the time of the next look.
Announcements wake it, and so does a poll as a safety net. No transaction is open while an engine is
called. Any number of replicas may run.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import structlog

from botpool.errors import (
    BotpoolError,
    EngineError,
    EngineUnavailable,
    HostUnreachable,
    NotFound,
    ReservationLost,
    StaleLease,
)
from botpool.logs import log_failure
from botpool.metrics import Metrics
from botpool.models.replicas import new_replica_name
from botpool.reconciler.asked import Asked
from botpool.reconciler.checkpoints import go_on
from botpool.reconciler.compare import CompareCounts, compare
from botpool.reconciler.container_logs import LiveLogs
from botpool.reconciler.context import NOW, Context
from botpool.reconciler.decisions import Decision, DecisionLog, Outcome
from botpool.reconciler.deploy import deploy
from botpool.reconciler.health import HostHealth
from botpool.reconciler.pulls import Pulls
from botpool.reconciler.recovery import IN_ERROR, carry_out, decide
from botpool.reconciler.release import end_late, release, repair
from botpool.reconciler.reservations import Reservations
from botpool.reconciler.shown_status import LOOK_SECONDS, ShownStatus
from botpool.reconciler.telling import bot_in_log, worded
from botpool.states import SLOT_NEEDS_WORK, Platform, SlotStatus
from botpool.store.installation import ASKED, FEED, LOGS, WORK
from botpool.store.postgres.listening import listening
from botpool.tasks.backoff import Backoff
from botpool.tasks.loop import Loop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from botpool.engines.base import Engine
    from botpool.models.slots import Slot
    from botpool.pool import Pool
    from botpool.reconciler.checkpoints import Reached
    from botpool.settings import Settings
    from botpool.store import Database, Store

_log: structlog.stdlib.BoundLogger = structlog.get_logger("botpool")

_MOST_AT_A_TIME = 1000
_MOST_STEPS_IN_A_ROW = 50
_SHUTDOWN_SECONDS = 5.0
_STEP_BACKOFF = Backoff(0.5, 15.0)
_PRUNE_EVERY_MS = 3_600_000
_READ_LOGS_SECONDS = 60.0
"""Whoever wants a container's output announces it, so this is only a safety net."""
_ASKED_SECONDS = 60.0
"""The same for what operators ask for."""
_STILL_ASKED_SECONDS = 5.0
"""But what could not be done yet, such as a pull by a start, waits for its moment."""


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
        replica: str | None = None,
        reached: Reached = go_on,
        seed: int | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._context = Context(
            store=store,
            pool=pool,
            engines=engines,
            health=HostHealth(store, pool, engines, settings),
            settings=settings,
            replica=replica or new_replica_name(),
            installation=installation,
            reached=reached,
            random=random.Random(seed),  # noqa: S311 - spreads retries
            metrics=metrics or Metrics(),
        )
        self._loop = Loop(
            self._look,
            poll_seconds=settings.poll_interval_ms / 1000,
            failed="can't reserve slots",
        )
        self.reservations = Reservations(self._context)
        """The slots that it works on."""
        self._pulls = Pulls(self._context, self._loop.wake)
        self._shown = ShownStatus(self._context)
        self._live_logs = LiveLogs(self._context)
        self._asked = Asked(self._context, self.reservations, self._pulls)
        self._decision_log = DecisionLog()
        self._drives: set[asyncio.Task[None]] = set()
        self.step_seconds: float | None = None
        """How long one step of a slot may take. By default as long as its engine allows."""
        self.shutdown_seconds = _SHUTDOWN_SECONDS
        self.hosts_reported = asyncio.Event()
        """Set when it has first reported its hosts: from then on a bot can be given a slot."""
        self.counts: Counter[str] = Counter()
        """How many slots were taken, how many steps were done, and how many of them failed."""

    # Once

    async def run_once(self) -> int:
        """Do everything that is due or becomes due meanwhile; return how many slots that was."""
        total = 0
        while taken := await self._take():
            total += len(taken)
            while self._drives:
                await asyncio.wait(self._drives)
            await self._pulls.finished()
        await self.show_once()
        return total

    async def show_once(self) -> None:
        """Show what slots do, where that is not shown yet."""
        await self._shown.look()
        await self._shown.settle()

    async def pulls_finished(self) -> None:
        """Wait until no pull of this replica is under way."""
        await self._pulls.finished()

    async def compare_once(self) -> CompareCounts:
        """Compare every host with the slots, unless that was done recently."""
        counts = CompareCounts()
        for found in await asyncio.gather(
            *(self._compare(engine, host) for engine, host in self._context.hosts())
        ):
            counts += found or CompareCounts()
        return counts

    async def _look_after_host(self, engine: str, host: str) -> None:
        """Compare a host with its slots, and bring the next image there that is missing."""
        if (engine, host) not in self._context.hosts():
            return  # it is gone since
        counts = await self._compare(engine, host)
        # A slot that is made for an image would take the name of one that is to be imported.
        if counts is not None and not counts.foreign:
            await self.bring_images(engine, host)

    async def _compare(self, engine: str, host: str) -> CompareCounts | None:
        """Compare a host with its slots. `None` if that was done recently, or can't be done."""
        context = self._context
        every_ms = self._compare_interval_ms(engine)
        if not await context.store.installation.take_duty(f"compare {engine}/{host}", every_ms):
            return None
        try:
            async with asyncio.timeout(self._patience(engine)):
                counts = await compare(context, self.reservations, context.engines[engine], host)
        except (EngineError, TimeoutError) as error:
            # Not knowing is not zero: nothing changes.
            _log.warning("can't compare a host", engine=engine, host=host, error=str(error))
            if isinstance(error, EngineUnavailable):
                await context.health.no_answer(engine, host, str(error))
            return None
        await context.health.answers(engine, host)
        return counts

    async def bring_images(self, engine: str, host: str) -> None:
        """Bring the next image to a host that no bot has asked for yet, if one is missing there."""
        try:
            async with asyncio.timeout(self._patience(engine)):
                await self._pulls.bring_ahead(engine, host)
        except (EngineError, TimeoutError) as error:
            _log.warning("can't check the images of a host", host=host, error=worded(error))

    def _compare_interval_ms(self, engine: str) -> int:
        """How often to compare: less often if the engine's answers are old anyway."""
        settings = self._context.settings
        lags = self._context.engines[engine].traits.lags
        slowest = settings.deploy_poll_interval_ms if lags else 0
        return max(settings.sync_interval_ms, slowest)

    def _patience(self, engine: str) -> float:
        """After how many seconds a step counts as hanging."""
        if self.step_seconds is not None:
            return self.step_seconds
        found = self._context.engines.get(engine)
        seconds = found.traits.patience_seconds if found else 0.0
        return seconds + self._context.settings.stop_grace_ms / 1000

    async def report_hosts(self) -> None:
        """Report which hosts new slots can be on, and how many slots each may have."""
        engine = self._context.settings.engine
        await self._context.health.report(engine, self._context.engines[engine].hosts())
        self.hosts_reported.set()

    async def keep_hosts(self) -> None:
        """Say which hosts this replica keeps. One that no replica keeps for long is given up."""
        every_ms = self._compare_interval_ms(self._context.settings.engine)
        await self._context.pool.hosts.keep(self._context.hosts(), every_ms)

    async def recover_once(self, *, dry_run: bool = False, by_hand: bool = False) -> list[Decision]:
        """Find what is stuck, and recover it unless `dry_run`."""
        decisions = await decide(self._context, self._repair_now if by_hand else None)
        if dry_run:
            return decisions
        self._decision_log.forget_others(decisions)
        done = []
        for decided in decisions:
            decision = await carry_out(decided)
            done.append(decision)
            if decision.step != IN_ERROR:  # a repair counts itself
                self._context.metrics.recovered(decision.outcome)
            self._decision_log.write(decision)
        await self._context.pool.hosts.probe()
        self._loop.wake()
        return done

    async def _repair_now(self, slot: Slot) -> Outcome:
        """Repair a slot in error, as if no attempt had failed, and return what came of it."""
        await self._context.pool.slots.retry(slot.id)
        async with self.reservations.take(slot.id) as taken:
            if taken is None or taken.status is not SlotStatus.ERROR:
                raise StaleLease
            patience = self._patience(taken.engine)
            try:
                async with asyncio.timeout(patience):
                    await repair(self._context, taken)
            except TimeoutError:
                raise EngineUnavailable(f"no answer within {patience:g} s") from None
        now = await self._context.store.slots.find(slot.id)
        if now is None:
            return Outcome.DELETED
        return Outcome.FAILED if now.status is SlotStatus.ERROR else Outcome.RECOVERED

    async def _recover(self) -> None:
        every_ms = self._context.settings.recovery_interval_ms
        if await self._context.store.installation.take_duty("recovery", every_ms):
            await self.recover_once()

    # For ever

    async def run(self, database: Database) -> None:
        """Work until `stop` is called. Then finish within seconds, and hand over the rest."""
        settings = self._context.settings
        every = self._repeat
        async with listening(database, WORK, self._loop.wake):
            # Each in its own task, so that none waits for another, nor one host for another.
            rounds: list[tuple[str, float, Callable[[], Awaitable[object]]]] = [
                ("reservations", settings.reservation_ttl_ms / 3, self.reservations.renew),
                ("queue", settings.poll_interval_ms, self._look_after_queue),
                ("recovery", settings.recovery_interval_ms, self._recover),
                ("retention", _PRUNE_EVERY_MS / 6, self._prune),
                ("hosts", self._compare_interval_ms(settings.engine), self.report_hosts),
                # Apart from what asks the engine: a call that hangs says nothing of our settings.
                ("keep", self._compare_interval_ms(settings.engine), self.keep_hosts),
            ]
            beside = [asyncio.create_task(every(*each)) for each in rounds]
            beside.append(asyncio.create_task(self._look_after_hosts()))
            beside.append(asyncio.create_task(self._read_logs(database)))
            if self._shown.needed:
                beside.append(asyncio.create_task(self._show(database)))
            beside.append(asyncio.create_task(self._do_asked(database)))
            try:
                await self._loop.run()
            finally:
                await self._finish_drives()
                for task in beside:
                    task.cancel()
                await asyncio.gather(*beside, return_exceptions=True)
                await self._hand_over()

    async def _look_after_hosts(self) -> None:
        """Look after each host in a task of its own, also after one that comes later."""
        known: set[tuple[str, str]] = set()
        async with asyncio.TaskGroup() as group:
            while True:
                for engine, host in self._context.hosts():
                    if (engine, host) not in known:
                        known.add((engine, host))
                        every_ms = self._compare_interval_ms(engine)
                        look = partial(self._look_after_host, engine, host)
                        what = f"compare {engine}/{host}"
                        group.create_task(self._repeat(what, every_ms, look))
                await asyncio.sleep(self._compare_interval_ms(self._context.settings.engine) / 1000)

    async def _read_logs(self, database: Database) -> None:
        """Read what running containers wrote, whenever somebody wants it."""
        reading = Loop(
            self._look_for_logs,
            poll_seconds=_READ_LOGS_SECONDS,
            failed="can't read what containers wrote",
        )
        async with listening(database, LOGS, reading.wake):
            try:
                await reading.run()
            finally:
                await self._live_logs.close()

    async def _show(self, database: Database) -> None:
        """Show what slots do, whichever replica changed it, in the engines' own interfaces."""
        showing = Loop(
            self._shown.look, poll_seconds=LOOK_SECONDS, failed="can't look for what is to be shown"
        )
        async with listening(database, FEED, showing.wake):
            await showing.run()

    async def _do_asked(self, database: Database) -> None:
        """Do what operators ask for, whenever they do."""
        doing = Loop(
            self._look_for_asked, poll_seconds=_ASKED_SECONDS, failed="can't do what was asked for"
        )
        async with listening(database, ASKED, doing.wake):
            try:
                await doing.run()
            finally:
                await self._asked.close()

    async def _look_for_asked(self) -> float:
        return _STILL_ASKED_SECONDS if await self._asked.look() else _ASKED_SECONDS

    async def do_asked_once(self) -> None:
        """Do what operators asked for at the engines."""
        await self._asked.look()
        await self._asked.finished()
        await self._pulls.finished()

    async def _look_for_logs(self) -> float:
        await self._live_logs.look()
        return _READ_LOGS_SECONDS

    async def read_logs_once(self) -> None:
        """Read the output of running containers that somebody wants."""
        await self._live_logs.look()
        await self._live_logs.finished()

    def stop(self) -> None:
        """Make `run` return."""
        self._loop.stop()

    async def _look(self) -> float:
        """Take slots that are due, and return in how many seconds to look again."""
        return NOW if await self._take() else self._loop.poll_seconds

    async def _repeat(
        self, what: str, every_ms: float, do: Callable[[], Awaitable[object]]
    ) -> None:
        while True:
            try:
                await do()
            except Exception as error:  # noqa: BLE001 - a failed round must not end the rounds
                self.counts["failed"] += 1
                log_failure("a round failed", error, what=what)
            await asyncio.sleep(every_ms / 1000)

    async def _look_after_queue(self) -> None:
        pool = self._context.pool
        if await self._context.store.installation.take_duty(
            "queue", self._context.settings.poll_interval_ms
        ):
            await pool.queue.expire()
            for waiting in Platform:
                await pool.queue.assign_waiting(waiting)

    async def _prune(self) -> None:
        if await self._context.store.installation.take_duty("prune", _PRUNE_EVERY_MS):
            await self._context.pool.retention.prune()

    async def _finish_drives(self) -> None:
        """Finish what is nearly done."""
        if self._drives:
            await asyncio.wait(self._drives, timeout=self.shutdown_seconds)
        for drive in self._drives:
            drive.cancel()
        await asyncio.gather(*self._drives, return_exceptions=True)

    async def _hand_over(self) -> None:
        """Let other replicas have the pulls at once. Nothing here begins another one any more."""
        await self._pulls.close()
        await self._shown.close()
        try:
            await self._context.store.installation.announce([WORK])
        except BotpoolError as error:
            log_failure("can't announce that work was handed over", error)

    # One slot

    async def _take(self) -> list[Slot]:
        """Take slots that are due, no more than can be worked on at a time, and begin."""
        free = _MOST_AT_A_TIME - len(self._drives)
        taken = await self.reservations.take_due(free) if free > 0 else []
        for slot in taken:
            drive = asyncio.create_task(self._drive(slot))
            self._drives.add(drive)
            drive.add_done_callback(self._drive_ended)
        self.counts["taken"] += len(taken)
        return taken

    def _drive_ended(self, drive: asyncio.Task[None]) -> None:
        self._drives.discard(drive)
        self._loop.wake()
        if not drive.cancelled() and (error := drive.exception()) is not None:
            self.counts["failed"] += 1
            log_failure(
                "work on a slot failed with an unexpected error",
                error,
                logging.ERROR,
                kind=type(error).__name__,
            )

    async def _drive(self, slot: Slot) -> None:
        """Work on a slot that we have reserved until it has to wait, then give it back."""
        due_in: float | None = NOW
        failed: str | None = None
        try:
            async with self.reservations.working_on(slot):
                slot, due_in = await self._steps(slot)
        except ReservationLost:
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, the slot is tried again
            failed = worded(error)
            due_in = await self._back_off(slot, error)
            await self._note_failure(slot, error)
        finally:
            await self.reservations.give_back(slot, due_in, failed)

    async def _steps(self, slot: Slot) -> tuple[Slot, float | None]:
        """Do one step after another. Returns the slot, and in how many seconds to go on."""
        for _ in range(_MOST_STEPS_IN_A_ROW):
            due_in = await self.step(slot)
            if due_in != NOW:
                return slot, due_in
            before, found = slot, await self._context.store.slots.find(slot.id)
            if found is None or found.reserved_by != self._context.replica:
                raise ReservationLost
            slot = found
            await self._pass_turn(before, slot)
            if slot.status not in SLOT_NEEDS_WORK:
                return slot, None
        return slot, NOW

    async def step(self, slot: Slot) -> float | None:
        """Do one step for a slot that this replica has reserved.

        Returns in how many seconds to look again, `None` for never. Raises `ReservationLost`.
        """
        self.counts["steps"] += 1
        try:
            async with asyncio.timeout(self._patience(slot.engine)):
                match slot.status:
                    case SlotStatus.DEPLOYING:
                        return await deploy(self._context, self._pulls, slot)
                    case SlotStatus.RELEASING:
                        return await release(self._context, self._pulls, slot)
                    case SlotStatus.ERROR:
                        return await repair(self._context, slot)
                    case SlotStatus.BUSY:
                        return await end_late(self._context, slot)
                    case _:
                        return None
        except ReservationLost:
            raise
        except (StaleLease, NotFound):
            return NOW  # the slot has changed meanwhile

    async def _pass_turn(self, before: Slot, now: Slot) -> None:
        """Let the next deployment on a host begin if one has ended there."""
        if now.host is not None and before.status is not now.status:
            await self._context.store.hosts.wake_deployments(
                now.engine,
                now.host,
                self._context.settings.admitted_deployments,
            )
            engine = self._context.engines.get(now.engine)
            if engine is not None and engine.traits.pulls_at_start:
                await self._pulls.settle(now.engine, now.host)

    async def _back_off(self, slot: Slot, error: Exception) -> float:
        """Count, log and tell a failed step, and return how long to wait after it."""
        self.counts["failed"] += 1
        seconds = _STEP_BACKOFF.seconds(slot.failed_steps + 1, self._context.random)
        whose: dict[str, object] = {"bot_id": slot.assigned_bot_id}
        with suppress(BotpoolError):
            whose = await bot_in_log(self._context, slot)
            await self._context.pool.slots.tell_error(slot, worded(error), slot.failed_steps + 1)
        log_failure(
            "step failed",
            error,
            slot_id=slot.id,
            slot_name=slot.slot_name,
            status=slot.status,
            lease=slot.lease,
            **whose,
            failures=slot.failed_steps + 1,
            retry_in_ms=round(seconds * 1000),
            kind=type(error).__name__,
        )
        return seconds

    async def _note_failure(self, slot: Slot, error: Exception) -> None:
        """Count no answer as a failure of the slot's host, if each host has its own API."""
        engine = self._context.engines.get(slot.engine)
        if engine is None or engine.traits.one_api:
            return
        if isinstance(error, EngineUnavailable):
            with suppress(BotpoolError):
                # Read again: this very step may have put it on its host.
                now = await self._context.store.slots.get(slot.id)
                await self._context.health.failed(
                    now, str(error), answered=not isinstance(error, HostUnreachable)
                )

    @property
    def replica(self) -> str:
        """Its name in its reservations."""
        return self._context.replica

    @property
    def busy(self) -> int:
        """How many slots it works on now."""
        return len(self._drives)
