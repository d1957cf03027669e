"""One method a query: arguments in, frozen values out. Nothing is decided here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botpool.models import Heartbeat, PoolNumbers, QueueEntry, QueuePlace
from botpool.states import BotStatus, Platform, SlotStatus
from botpool.store.database import LONG_SECONDS
from botpool.store.events import EventQueries
from botpool.store.keys import KeyQueries
from botpool.store.migrations import check_schema
from botpool.store.queries import QUERIES
from botpool.store.record import RecordQueries
from botpool.store.recovery import RecoveryQueries
from botpool.store.rows import bot
from botpool.store.webhooks import WebhookQueries
from botpool.store.work import WorkQueries

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from botpool.models import (
        Bot,
        BotPage,
        Ending,
        ImportedSlot,
        Json,
        NewBot,
        Slot,
        Transition,
    )


def _creation_arguments(
    bots: Sequence[NewBot], correlation_ids: Sequence[str]
) -> tuple[object, ...]:
    return (
        bots[0].platform,
        [bot.meeting_url for bot in bots],
        [bot.bot_display_name for bot in bots],
        [bot.priority for bot in bots],
        [bot.queue_timeout_ms for bot in bots],
        correlation_ids,
        [bot.metadata for bot in bots],
        [bot.config for bot in bots],
        [bot.key_id for bot in bots],
        [bot.callback_url for bot in bots],
        [bot.deduplication_key for bot in bots],
        [bot.idempotency_key for bot in bots],
        [bot.request_digest for bot in bots],
        [bot.max_launch_attempts for bot in bots],
        [bot.relaunch_in_call for bot in bots],
    )


class Store(WorkQueries, RecoveryQueries, KeyQueries, EventQueries, RecordQueries, WebhookQueries):
    """The queries of sql/. Those that change something return the transitions that they wrote."""

    async def create_bots_on_idle_slots(
        self, bots: Sequence[NewBot], correlation_ids: Sequence[str]
    ) -> list[Transition]:
        """Create the first of `bots`, all of one platform, while idle slots last."""
        return await self._change(
            "create_bots_on_idle_slots", *_creation_arguments(bots, correlation_ids)
        )

    async def create_bots(
        self, bots: Sequence[NewBot], correlation_ids: Sequence[str]
    ) -> list[Transition]:
        """Create all of `bots`, of one platform: on an idle slot, a new one, or in the queue."""
        return await self._change("create_bots", *_creation_arguments(bots, correlation_ids))

    async def stop_bot(self, bot_id: int, reason: str, grace_ms: int) -> list[Transition]:
        """Cancel a bot that waits or deploys, tell one that runs to leave within the grace."""
        return await self._change("stop_bot", bot_id, reason, grace_ms)

    async def advance_bot(
        self,
        slot_id: int,
        lease: int,
        status: BotStatus,
        sources: Iterable[BotStatus],
        reason: str,
        details: Json,
        grace_ms: int,
        *,
        heard: bool,
    ) -> list[Transition]:
        """Make the slot busy and move its bot on to `status`, if it is in one of `sources`.

        A bot that is to leave has `grace_ms` to do so. `heard`: whether it is the bot that says so.
        """
        return await self._change(
            *("advance_bot", slot_id, lease, status, list(sources), reason, details, grace_ms),
            heard,
        )

    async def end_assignments(self, endings: Sequence[Ending]) -> list[Transition]:
        """End each assignment whose lease is the current one."""
        return await self._change(
            "end_assignments",
            [ending.slot_id for ending in endings],
            [ending.lease for ending in endings],
            [ending.slot_status for ending in endings],
            [ending.bot_status for ending in endings],
            [ending.reason for ending in endings],
            [ending.failure_cause for ending in endings],
            [ending.unless_heard_since for ending in endings],
            [ending.was for ending in endings],
            [ending.details for ending in endings],
        )

    async def free_slots(
        self, leases: Sequence[tuple[int, int]], source: SlotStatus, reason: str
    ) -> list[Transition]:
        """Make idle each (slot, lease) that is in `source`, and serve the queue from them."""
        slot_ids = [slot_id for slot_id, _ in leases]
        return await self._change(
            "free_slots", slot_ids, [lease for _, lease in leases], source, reason
        )

    async def relaunch_bot(
        self,
        slot_id: int,
        lease: int,
        reason: str,
        relaunchable: Iterable[BotStatus],
        max_attempts: int,
        unless_heard_since: datetime | None,
        was: SlotStatus | None,
    ) -> list[Transition]:
        """Take a bot that is in one of `relaunchable` off its slot, and back to its place."""
        return await self._change(
            *("relaunch_bot", slot_id, lease, reason, list(relaunchable), max_attempts),
            *(unless_heard_since, was),
        )

    async def fail_slot(self, slot_id: int, lease: int, message: str) -> list[Transition]:
        """Put a slot that is releasing into error."""
        return await self._change("fail_slot", slot_id, lease, message)

    async def import_slot(self, slot: ImportedSlot) -> list[Transition]:
        """Add a slot whose container is there already, to be proved stopped."""
        return await self._change(
            "import_slot",
            *(slot.platform, slot.number, slot.slot_name, slot.engine, slot.host, slot.image),
            slot.container_ref,
        )

    async def delete_slot(self, slot_id: int, lease: int, reason: str) -> list[Transition]:
        """Delete a slot that is in error."""
        return await self._change("delete_slot", slot_id, lease, reason)

    async def record_container(
        self, slot_id: int, lease: int, container_ref: str, host: str | None, attempt: int
    ) -> list[Transition]:
        """Note which container a slot has, if that is news."""
        return await self._change("record_container", slot_id, lease, container_ref, host, attempt)

    async def record_deployment(
        self, slot_id: int, lease: int, deployment_ref: str | None, status: str
    ) -> list[Transition]:
        """Note a deployment's status, if that is news."""
        return await self._change("record_deployment", slot_id, lease, deployment_ref, status)

    async def record_heartbeats(self, leases: Sequence[tuple[int, int]]) -> list[Heartbeat]:
        """Note that the bots of these (slot, lease) live; only current leases have an answer."""
        rows = await self._database.fetch(
            QUERIES["record_heartbeats"],
            [slot_id for slot_id, _ in leases],
            [lease for _, lease in leases],
        )
        return [
            Heartbeat(
                slot_id=row["slot_id"],
                lease=row["lease"],
                slot_status=SlotStatus(row["slot_status"]),
                bot_status=BotStatus(row["bot_status"]),
            )
            for row in rows
        ]

    async def assign_waiting(self, platform: Platform) -> list[Transition]:
        """Give what is free to those who wait."""
        return await self._change("assign_waiting", platform)

    async def expire_queue(self, limit: int) -> list[Transition]:
        """End at most `limit` bots that waited past their deadline."""
        return await self._change("expire_queue", limit)

    async def drain_slot(self, slot_id: int, reason: str) -> list[Transition]:
        """Let a slot get no further bot."""
        return await self._change("drain_slot", slot_id, reason)

    async def retry_slot(self, slot_id: int) -> bool:
        """Let a slot in error be tried at once."""
        return await self._found("retry_slot", slot_id)

    async def get_bot_of_request(self, key_id: int | None, idempotency_key: str) -> Bot | None:
        """The bot that a caller's request was answered with."""
        return await self._bot("get_bot_of_request", key_id, idempotency_key)

    async def get_bot_of_deduplication_key(self, key_id: int | None, key: str) -> Bot | None:
        """The live bot that has a caller's deduplication key."""
        return await self._bot("get_bot_of_deduplication_key", key_id, key)

    async def list_bots(self, page: BotPage) -> list[Bot]:
        """One page of bots, newest first."""
        rows = await self._database.fetch(
            QUERIES["list_bots"],
            *(page.before, page.limit, page.key_id, page.platform),
            *(page.statuses and list(page.statuses), page.container_ref),
            *(page.correlation_id, page.deduplication_key),
        )
        return [bot(row) for row in rows]

    async def get_bot(self, bot_id: int) -> Bot | None:
        """One bot."""
        return await self._bot("get_bot", bot_id)

    async def get_bot_of_container(self, container_ref: str) -> Bot | None:
        """The bot that a container serves, or served last."""
        return await self._bot("get_bot_of_container", container_ref)

    async def _bot(self, query: str, *args: object) -> Bot | None:
        row = await self._database.fetch_one(QUERIES[query], *args)
        return None if row is None else bot(row)

    async def get_slot(self, slot_id: int) -> Slot | None:
        """One slot."""
        return await self._slot("get_slot", slot_id)

    async def get_slot_of_bot(self, bot_id: int) -> Slot | None:
        """The slot that a bot is on now."""
        return await self._slot("get_slot_of_bot", bot_id)

    async def list_slots(self) -> list[Slot]:
        """Every slot, by name."""
        return await self._slots("list_slots")

    async def get_queue_place(self, bot_id: int) -> QueuePlace | None:
        """Where a waiting bot stands."""
        row = await self._database.fetch_one(QUERIES["get_queue_place"], bot_id)
        return None if row is None else QueuePlace(**row)

    async def list_queue(self, platform: Platform) -> list[QueueEntry]:
        """The bots that wait for a slot of a platform, in order."""
        rows = await self._database.fetch(QUERIES["list_queue"], platform)
        return [QueueEntry(**{**row, "platform": Platform(row["platform"])}) for row in rows]

    async def pool_numbers(self) -> list[PoolNumbers]:
        """The numbers of each platform."""
        rows = await self._database.fetch(QUERIES["pool_numbers"])
        return [PoolNumbers(**{**row, "platform": Platform(row["platform"])}) for row in rows]

    async def set_pool(
        self, platform: Platform, max_size: int, engine: str, image: str | None
    ) -> list[Transition]:
        """Say how far a pool may grow, and what its new slots are made of."""
        return await self._change("set_pool", platform, max_size, engine, image)

    async def timeline(self, bot_id: int) -> list[Transition]:
        """What happened to a bot and to the slots that it was on."""
        return await self._change("timeline", bot_id)

    async def prune_bots(self, before: datetime, limit: int) -> int:
        """Forget at most `limit` bots that ended before `before`, and return how many."""
        return await self._database.execute(
            QUERIES["prune_bots"], before, limit, seconds=LONG_SECONDS
        )

    async def prune_transitions(self, before: datetime) -> int:
        """Forget transitions older than `before`, and return how many."""
        return await self._database.execute(
            QUERIES["prune_transitions"], before, seconds=LONG_SECONDS
        )

    async def check_schema(self) -> None:
        """Raise a `SetupError` if the schema is not the one of this code."""
        await check_schema(self._database)

    async def broken_invariants(self) -> list[str]:
        """Whatever does not hold that must always hold. Reads everything: for tests."""
        rows = await self._database.fetch(QUERIES["broken_invariants"])
        return [f"{row['promise']}: {row['subject']}" for row in rows]

    async def now(self) -> datetime:
        """The database's time."""
        (row,) = await self._database.fetch(QUERIES["now"])
        now: datetime = row[0]
        return now

    async def use_virtual_clock(self) -> None:
        """Make time stand still until it is set. There is no way back: for tests, simulations."""
        await self._database.execute(QUERIES["use_virtual_clock"])

    async def set_virtual_time(self, now: datetime) -> None:
        """Set the time of a database that uses a virtual clock."""
        await self._database.execute(QUERIES["set_virtual_time"], now)
