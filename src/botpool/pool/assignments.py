"""Assignments: what is written for a bot on its slot, from the claim to the end.

Every write carries the lease of its assignment. With an old lease nothing changes, and `StaleLease`
is raised. A call that is repeated changes nothing the second time and returns an empty list.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from botpool.errors import BotLive, BotNotFound, InvalidRequest, StaleLease
from botpool.models.assignments import Ending, Progress
from botpool.states import (
    BOT_ENDED,
    BOT_MAY_BLAME,
    BOT_MAY_SAY,
    BotStatus,
    FailureCause,
    SlotStatus,
    bot_sources,
)
from botpool.store.installation import FEED, WEBHOOKS, WORK
from botpool.tasks.batches import Batcher

if TYPE_CHECKING:
    from collections.abc import Sequence

    from botpool.models.assignments import Heartbeat, Lease
    from botpool.models.bots import Bot
    from botpool.models.json import Json
    from botpool.models.slots import Slot, WaitsFor
    from botpool.models.transitions import Transition
    from botpool.pool.lease_check import LeaseCheck
    from botpool.pool.publisher import Publisher
    from botpool.settings import Settings
    from botpool.store import Store

_MOST_EVENTS = 5000
_MOST_LOG_LINES = 5000


class Assignments:
    """Writes for assignments. Heartbeats that arrive together are one write; so are ends."""

    def __init__(
        self, store: Store, settings: Settings, publisher: Publisher, leases: LeaseCheck
    ) -> None:
        self._store = store
        self._settings = settings
        self._publisher = publisher
        self._leases = leases
        self._end = Batcher(self._end_assignments)
        self._heartbeat = Batcher(self._record_heartbeats)

    # The bot speaks

    async def claim(self, slot: Slot) -> Bot:
        """The bot that a slot's container claims. The claim proves that the container runs.

        A container that restarts claims the same bot again. Raises `StaleLease` if the assignment
        in `slot` is over.
        """
        if slot.assigned_bot_id is None:
            raise StaleLease(f"{slot.slot_name} has no bot: it is {slot.status}.")
        await self.advance(slot.id, slot.lease, BotStatus.JOINING_CALL, "claimed by its container")
        return await self._store.bots.get(slot.assigned_bot_id)

    async def advance(
        self,
        slot_id: int,
        lease: int,
        status: BotStatus,
        reason: str,
        *,
        cause: FailureCause | None = None,
        details: Json | None = None,
        heard: bool = True,
    ) -> list[Transition]:
        """Record how far a bot has come. Its container runs, so its slot is busy.

        `heard` says whether the bot itself reports this: then it counts as a heartbeat. A status
        that is not a step forward changes nothing else. `DONE` and `FATAL` end the assignment;
        `FATAL` has a cause, by default `BOT_FAILED`. Raises `InvalidRequest` for a status or a
        cause that a bot can't report.
        """
        if status not in BOT_MAY_SAY:
            raise InvalidRequest(f"A bot can't report the status {status}.")
        if status is BotStatus.FATAL:
            cause = cause or FailureCause.BOT_FAILED
            if cause not in BOT_MAY_BLAME:
                raise InvalidRequest(f"A bot can't report the cause {cause}.")
        elif cause is not None:
            raise InvalidRequest("Only the status FATAL may have a cause.")
        if status in BOT_ENDED:
            return await self.end_assignment(
                Ending(
                    slot_id=slot_id,
                    lease=lease,
                    bot_status=status,
                    reason=reason,
                    failure_cause=cause,
                    details=details or {},
                )
            )
        progress = Progress(
            slot_id=slot_id,
            lease=lease,
            status=status,
            reason=reason,
            details=details or {},
            heard=heard,
        )
        written = await self._publisher.publish(
            self._store.bots.advance(progress, bot_sources(status), self._settings.leave_grace_ms)
        )
        if not written:
            await self._leases.check(slot_id, lease, assigned=True)
        elif written[0].from_status == SlotStatus.DEPLOYING:
            most = self._settings.admitted_deployments
            brought = await self._store.hosts.pass_turn(slot_id, most, heard=heard)
            self._publisher.tell_pulls(brought)
            for pull in brought:
                await self._store.pulls.wake(pull, 0)
            self._publisher.wake(WORK)  # those that waited for their turn or the image are due
            await self._publisher.publish(self._store.hosts.note_launch(slot_id))
        return written

    async def heartbeat(self, slot_id: int, lease: int) -> Heartbeat:
        """Note that the bot of this lease is alive, and return its status and its slot's."""
        found = await self._heartbeat((slot_id, lease))
        if found is None:
            await self._leases.check(slot_id, lease, assigned=True)
            raise StaleLease
        if found.slot_status is SlotStatus.DEPLOYING:
            status = BotStatus.JOINING_CALL
            await self.advance(slot_id, lease, status, "first heartbeat")
            return replace(found, slot_status=SlotStatus.BUSY, bot_status=status)
        return found

    async def add_events(
        self, slot_id: int, lease: int, events: Sequence[tuple[str, Json]]
    ) -> None:
        """Keep the events that a bot reports, by type and data; only the newest ones."""
        if not await self._store.bots.add_events(slot_id, lease, events, _MOST_EVENTS):
            await self._leases.check(slot_id, lease, assigned=True)
            raise StaleLease
        self._publisher.wake(FEED, WEBHOOKS)

    async def add_log_lines(
        self, slot_id: int, lease: int, lines: Sequence[tuple[str, str]]
    ) -> None:
        """Keep what a bot logs, by level and line; only the newest lines."""
        if not await self._store.bots.add_log_lines(slot_id, lease, lines, _MOST_LOG_LINES):
            await self._leases.check(slot_id, lease, assigned=True)
            raise StaleLease

    # Its deployment

    async def record_deployment(
        self,
        slot: Slot,
        deployment_ref: str | None,
        status: str | None = None,
        *,
        waits_for: WaitsFor | None = None,
    ) -> list[Transition]:
        """Note the deployment of a slot: its status, or what it waits for, or both."""
        said = status or (waits_for.sentence if waits_for else None)
        written = await self._publisher.publish(
            self._store.slots.record_deployment(
                slot,
                deployment_ref,
                status=status,
                waits_for=waits_for,
                reason=f"deployment {said}",
            )
        )
        if not written:
            await self._leases.check(slot.id, slot.lease, assigned=True)
        return written

    async def extend_deployment(self, slot_id: int, lease: int, reason: str) -> list[Transition]:
        """Give a slow deployment more time, and count that."""
        written = await self._publisher.publish(
            self._store.slots.extend_deployment(slot_id, lease, reason)
        )
        if not written:
            await self._leases.check(slot_id, lease, assigned=True)
        return written

    # Its end

    async def end_assignment(self, ending: Ending) -> list[Transition]:
        """End an assignment: the bot gets its last status, the slot is `releasing` or `error`.

        A bot that had already ended keeps its status.
        """
        written = await self._end(ending)
        if not written:
            await self._leases.check(ending.slot_id, ending.lease)
        return written

    async def stop_bot(
        self, bot_id: int, reason: str = "stop requested", cause: FailureCause | None = None
    ) -> list[Transition]:
        """Cancel a bot that waits or deploys, or tell a running bot to leave its call.

        A bot that doesn't leave within the grace is ended. An ended bot is left alone. A bot that
        leaves is `DONE` with the cause, if there is one.
        """
        grace_ms = self._settings.leave_grace_ms
        written = await self._publisher.publish(
            self._store.bots.stop(bot_id, reason, grace_ms, cause)
        )
        if not written and await self._store.bots.find(bot_id) is None:
            raise BotNotFound(f"There is no bot {bot_id}.")
        return written

    async def delete_bot(self, bot_id: int) -> None:
        """Delete an ended bot, and all that tells of it. Raises `BotLive`."""
        if not await self._store.bots.delete(bot_id):
            await self._store.bots.get(bot_id)
            raise BotLive

    # Inside

    async def _end_assignments(self, endings: Sequence[Ending]) -> list[list[Transition]]:
        # If two end the same assignment, the first one counts.
        first = {(ending.slot_id, ending.lease): ending for ending in reversed(endings)}
        written = await self._publisher.publish(
            self._store.slots.end_assignments(list(first.values()))
        )
        of_lease: dict[tuple[int | None, int | None], list[Transition]] = {}
        for step in written:
            of_lease.setdefault((step.slot_id, step.lease), []).append(step)
        return [
            of_lease.get((ending.slot_id, ending.lease), [])
            if first[ending.slot_id, ending.lease] is ending
            else []
            for ending in endings
        ]

    async def _record_heartbeats(self, leases: Sequence[Lease]) -> list[Heartbeat | None]:
        found = {
            (beat.slot_id, beat.lease): beat
            for beat in await self._store.bots.record_heartbeats(leases)
        }
        return [found.get(lease) for lease in leases]
