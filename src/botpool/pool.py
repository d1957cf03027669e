"""The pool: who gets which slot, and when it is free again.

Every operation is one short transaction in the database and touches nothing else. Each returns the
transitions that it wrote, after it has logged them. A write on behalf of an assignment carries its
lease: under an old one nothing changes and `StaleLease` is raised; the same call twice changes
nothing the second time and returns an empty list.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from botpool.changes import WORK
from botpool.combine import Combiner
from botpool.creation import Creation
from botpool.errors import BotNotFound, InvalidRequest, StaleLease
from botpool.models import WAITS_FOR_IMAGE, WAITS_FOR_ROOM, Ending
from botpool.states import (
    BOT_ENDED,
    BOT_MAY_BLAME,
    BOT_MAY_SAY,
    BOT_RELAUNCHABLE,
    BotStatus,
    FailureCause,
    Platform,
    SlotStatus,
    bot_sources,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from botpool.models import Bot, Heartbeat, ImportedSlot, Json, Slot, Transition
    from botpool.settings import Settings
    from botpool.store import Store

Lease = tuple[int, int]
"""A slot's id and the lease of one assignment of it."""

Key = TypeVar("Key")

_BATCH = 1000
_HEAR_SECONDS = 10.0
_HEARD_WITHIN = 3
_MOST_EVENTS = 5000
_MOST_LOG_LINES = 5000


class Pool(Creation):
    """Assigns bots to slots. Safe to share between tasks; any number may work on one database.

    Creations, releases and heartbeats that arrive together are written together.
    """

    def __init__(self, store: Store, settings: Settings) -> None:
        super().__init__(store, settings)
        self._end = Combiner(self._end_assignments)
        self._free = {
            source: Combiner(partial(self._free_slots, source))
            for source in (SlotStatus.RELEASING, SlotStatus.ERROR)
        }
        self._heartbeat = Combiner(self._record_heartbeats)

    async def configure(self) -> None:
        """Let the pools be as the settings say. What room that makes serves those who wait."""
        for platform in Platform:
            await self._logged(
                self._store.set_pool(
                    platform,
                    self._settings.max_pool_size,
                    self._settings.engine,
                    self._settings.image(platform),
                )
            )

    # Bots

    async def stop_bot(self, bot_id: int, reason: str = "stop requested") -> list[Transition]:
        """Cancel a bot that waits or deploys, tell one that runs to leave, leave others alone.

        One that does not leave within the grace is ended.
        """
        grace_ms = self._settings.leave_grace_ms
        written = await self._logged(self._store.stop_bot(bot_id, reason, grace_ms))
        if not written and await self._store.get_bot(bot_id) is None:
            raise BotNotFound(f"There is no bot {bot_id}.")
        return written

    async def expire_queue(self) -> list[Transition]:
        """End the bots that waited past their deadline: `FATAL`, cause `queue_timeout`."""
        written: list[Transition] = []
        while expired := await self._logged(self._store.expire_queue(_BATCH)):
            written += expired
        return written

    async def assign_waiting(self, platform: Platform) -> list[Transition]:
        """Give what is free to those who wait, growing the pool where it may grow.

        Every change that frees a slot does so itself. This is the safety net behind it.
        """
        return await self._logged(self._store.assign_waiting(platform))

    # What is written on behalf of an assignment

    async def claim(self, slot: Slot) -> Bot:
        """The bot that a slot's container is to be: its claim proves that the container runs.

        A container that came back claims the same bot again. Raises `StaleLease` when the
        assignment that `slot` tells of is over.
        """
        if slot.assigned_bot_id is None:
            raise StaleLease(f"{slot.slot_name} has no bot: it is {slot.status}.")
        await self.advance(slot.id, slot.lease, BotStatus.JOINING_CALL, "claimed by its container")
        return await self.get_bot(slot.assigned_bot_id)

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
        """Record how far a bot says that it has come. So its container runs: its slot is busy.

        What a bot says is as good as a heartbeat; `heard` is whether it is the bot that does. A
        status that is no step forward from where the bot is changes nothing else. `DONE` and
        `FATAL` release its slot; `FATAL` has a cause, `BOT_FAILED` unless given. Raises
        `InvalidRequest` for what is not a bot's to say.
        """
        if status not in BOT_MAY_SAY:
            raise InvalidRequest(f"A bot can't say that it is {status}.")
        if status is BotStatus.FATAL:
            cause = cause or FailureCause.BOT_FAILED
            if cause not in BOT_MAY_BLAME:
                raise InvalidRequest(f"The cause {cause} is not a bot's to say.")
        elif cause is not None:
            raise InvalidRequest("Only FATAL has a cause.")
        if status in BOT_ENDED:
            return await self.release(
                Ending(
                    slot_id=slot_id,
                    lease=lease,
                    bot_status=status,
                    reason=reason,
                    failure_cause=cause,
                    details=details or {},
                )
            )
        written = await self._logged(
            self._store.advance_bot(
                *(slot_id, lease, status, bot_sources(status), reason, details or {}),
                self._settings.leave_grace_ms,
                heard=heard,
            )
        )
        if not written:
            await self._check_lease(slot_id, lease, assigned=True)
        elif written[0].from_status == SlotStatus.DEPLOYING:
            most = self._settings.max_concurrent_deployments
            for pull in await self._store.make_room(slot_id, most, WAITS_FOR_ROOM):
                await self._store.wake_pull(pull, WAITS_FOR_IMAGE, 0)
        return written

    async def heartbeat(self, slot_id: int, lease: int) -> Heartbeat:
        """Note that the bot of this lease lives, and return how it stands."""
        found = await self._heartbeat((slot_id, lease))
        if found is None:
            await self._check_lease(slot_id, lease, assigned=True)
            raise StaleLease
        if found.slot_status is SlotStatus.DEPLOYING:
            status = BotStatus.JOINING_CALL
            await self.advance(slot_id, lease, status, "first heartbeat")
            return replace(found, slot_status=SlotStatus.BUSY, bot_status=status)
        return found

    async def add_events(
        self, slot_id: int, lease: int, events: Sequence[tuple[str, Json]]
    ) -> None:
        """Keep what a bot tells of its call, by type and data; the newest of it."""
        if not await self._store.add_events(slot_id, lease, events, _MOST_EVENTS):
            await self._check_lease(slot_id, lease, assigned=True)
            raise StaleLease

    async def add_log_lines(
        self, slot_id: int, lease: int, lines: Sequence[tuple[str, str]]
    ) -> None:
        """Keep what a bot logs, by level and line; the newest of it."""
        if not await self._store.add_log_lines(slot_id, lease, lines, _MOST_LOG_LINES):
            await self._check_lease(slot_id, lease, assigned=True)
            raise StaleLease

    async def release(self, ending: Ending) -> list[Transition]:
        """End an assignment: the bot takes its last status, the slot is `releasing` or `error`.

        A bot that had ended before keeps the status that it had.
        """
        written = await self._end(ending)
        if not written:
            await self._check_lease(ending.slot_id, ending.lease)
        return written

    async def mark_error(
        self,
        slot_id: int,
        lease: int,
        cause: FailureCause,
        reason: str,
        *,
        unless_heard_since: datetime | None = None,
        was: SlotStatus | None = None,
    ) -> list[Transition]:
        """Put a slot into `error`, unless it is not what it `was` any more.

        A bot that has launches left, and was not in its call yet or may go back there, goes back to
        its place in the queue and on to the next free slot; any other is `FATAL`. One that was
        heard since `unless_heard_since` is left alone.
        """
        written = await self._logged(
            self._store.relaunch_bot(
                *(slot_id, lease, reason, BOT_RELAUNCHABLE, self._settings.max_launch_attempts),
                *(unless_heard_since, was),
            )
        )
        if not written:
            written = await self._end(
                Ending(
                    slot_id=slot_id,
                    lease=lease,
                    bot_status=BotStatus.FATAL,
                    slot_status=SlotStatus.ERROR,
                    failure_cause=cause,
                    reason=reason,
                    unless_heard_since=unless_heard_since,
                    was=was,
                )
            )
        if not written and was in {None, SlotStatus.RELEASING}:
            written = await self._logged(self._store.fail_slot(slot_id, lease, reason))
        if not written:
            await self._check_lease(slot_id, lease)
        return written

    async def push_on(self, slot_id: int, lease: int, reason: str) -> list[Transition]:
        """Leave a deployment that takes long alone once more, and count that."""
        written = await self._logged(self._store.push_on(slot_id, lease, reason))
        if not written:
            await self._check_lease(slot_id, lease, assigned=True)
        return written

    async def host_is_well(self, engine: str, host: str, *, answers_only: bool = False) -> None:
        """Let a host on which something had failed have work again.

        That it answers is enough for one that did not.
        """
        await self._logged(self._store.note_success(engine, host, answers_only=answers_only))

    async def probe_hosts(self) -> list[Transition]:
        """Let one slot of each ill host be taken, where it is time for that."""
        return await self._logged(self._store.probe_hosts())

    async def record_container(
        self, slot_id: int, lease: int, container_ref: str, *, host: str | None, attempt: int
    ) -> list[Transition]:
        """Note which container a slot has now: the old and the new reference, and the attempt."""
        written = await self._logged(
            self._store.record_container(slot_id, lease, container_ref, host, attempt)
        )
        if not written:
            await self._check_lease(slot_id, lease)
        return written

    async def record_deployment(
        self, slot_id: int, lease: int, deployment_ref: str | None, status: str
    ) -> list[Transition]:
        """Note which deployment brings the slot's container up, and its status."""
        written = await self._logged(
            self._store.record_deployment(slot_id, lease, deployment_ref, status)
        )
        if not written:
            await self._check_lease(slot_id, lease, assigned=True)
        return written

    # What is written when nobody holds the slot

    async def free(self, slot_id: int, lease: int) -> list[Transition]:
        """Make a slot idle: its container is proved stopped. The first who waits has it at once."""
        return await self._freed(SlotStatus.RELEASING, slot_id, lease)

    async def recover(self, slot_id: int, lease: int) -> list[Transition]:
        """Make a slot idle that was in `error` and is well again, as `free` does."""
        return await self._freed(SlotStatus.ERROR, slot_id, lease)

    async def delete_slot(self, slot_id: int, lease: int, reason: str) -> list[Transition]:
        """Delete a slot that is in `error`, or drained. Its name and its room are free at once."""
        written = await self._logged(self._store.delete_slot(slot_id, lease, reason))
        if not written:
            await self._check_lease(slot_id, lease)
        return written

    async def import_slot(self, slot: ImportedSlot) -> list[Transition]:
        """Take over a container that is there already. Its slot is idle once it is proved stopped.

        Raises `ConstraintViolated` where its name or its container has a slot, and
        `TransitionRefused` where the pool is full.
        """
        return await self._logged(self._store.import_slot(slot))

    async def drain_slot(self, slot_id: int, reason: str = "drained") -> list[Transition]:
        """Let a slot get no further bot, and delete it when it has none."""
        await self.get_slot(slot_id)
        return await self._logged(self._store.drain_slot(slot_id, reason))

    async def retry_slot(self, slot_id: int) -> None:
        """Let a slot that is in `error` be made well at once. Others are left as they are."""
        await self.get_slot(slot_id)
        if await self._store.retry_slot(slot_id):
            self._announce({WORK})

    async def keep_hearing(self) -> None:
        """Note that bots can be heard, every `hear_seconds` while they can.

        In times in which nobody does, no bot counts as silent.
        """
        await self._store.keep_hearing(round(_HEARD_WITHIN * self.hear_seconds * 1000))

    @property
    def hear_seconds(self) -> float:
        """How often is noted that bots can be heard: often in the time that one may be silent."""
        return min(_HEAR_SECONDS, self._settings.heartbeat_freshness_ms / 1000 / 10)

    async def prune(self) -> int:
        """Forget what is older than the retention, and return how many rows that were."""
        before = await self._store.now() - timedelta(days=self._settings.retention_days)
        pruned = await self._store.prune_transitions(before)
        pruned += await self._store.prune_pulls(before) + await self._store.prune_outages(before)
        while count := await self._store.prune_bots(before, _BATCH):
            pruned += count
        return pruned

    # Inside

    async def _check_lease(self, slot_id: int, lease: int, *, assigned: bool = False) -> None:
        """Raise unless the lease is the current one and, if asked, its assignment not over."""
        slot = await self.get_slot(slot_id)
        if slot.lease != lease:
            raise StaleLease(f"Lease {lease} of {slot.slot_name} is over: it is at {slot.lease}.")
        if assigned and slot.assigned_bot_id is None:
            raise StaleLease(f"Lease {lease} of {slot.slot_name} is over: it is {slot.status}.")

    async def _end_assignments(self, endings: Sequence[Ending]) -> list[list[Transition]]:
        # Of two that end the same assignment, the first one counts.
        first = {(ending.slot_id, ending.lease): ending for ending in reversed(endings)}
        written = await self._logged(self._store.end_assignments(list(first.values())))
        of_lease = _by(lambda t: (t.slot_id, t.lease), written)
        return [
            of_lease.get((ending.slot_id, ending.lease), [])
            if first[ending.slot_id, ending.lease] is ending
            else []
            for ending in endings
        ]

    async def _freed(self, source: SlotStatus, slot_id: int, lease: int) -> list[Transition]:
        written = await self._free[source]((slot_id, lease))
        if not written:
            await self._check_lease(slot_id, lease)
        return written

    async def _free_slots(
        self, source: SlotStatus, leases: Sequence[Lease]
    ) -> list[list[Transition]]:
        reason = "container stopped" if source is SlotStatus.RELEASING else "recovered"
        written = await self._logged(self._store.free_slots(leases, source, reason))
        freed = {(t.slot_id, t.lease): t.slot_id for t in written if t.from_status == source}
        of_slot = _by(lambda t: t.slot_id, written)
        return [of_slot.get(freed.pop(lease, None), []) for lease in leases]

    async def _record_heartbeats(self, leases: Sequence[Lease]) -> list[Heartbeat | None]:
        found = {
            (beat.slot_id, beat.lease): beat for beat in await self._store.record_heartbeats(leases)
        }
        return [found.get(lease) for lease in leases]


def _by(
    key: Callable[[Transition], Key], written: Sequence[Transition]
) -> dict[Key, list[Transition]]:
    grouped: dict[Key, list[Transition]] = {}
    for transition in written:
        grouped.setdefault(key(transition), []).append(transition)
    return grouped
