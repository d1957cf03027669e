"""Bots in the database, what they report about their calls, and what their containers wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botpool.errors import BotNotFound
from botpool.models.assignments import Heartbeat
from botpool.models.bots import ContainerFacts, LogLine, LogPage, RecentLaunches
from botpool.models.projects import Ruling
from botpool.states import BotStatus, FailureCause, Platform, SlotStatus
from botpool.store.postgres.database import LONG_SECONDS
from botpool.store.queries import Queries
from botpool.store.rows import bot, transition

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from botpool.models.assignments import Lease, Progress
    from botpool.models.bots import Bot, BotPage, BotSearch, NewBot
    from botpool.models.json import Json
    from botpool.models.pulls import ImagePull
    from botpool.models.slots import Slot
    from botpool.models.transitions import Transition
    from botpool.store.postgres.database import Database

_UNKNOWN = ContainerFacts()


class Bots:
    """The queries of bots.sql."""

    def __init__(self, database: Database) -> None:
        self._queries = Queries(database, "bots")

    async def create(
        self, platform: Platform, bots: Sequence[NewBot], *, grow: bool
    ) -> tuple[list[Transition], list[Ruling]]:
        """Create bots of one platform, in this order, as many as there are idle slots.

        With `grow`, create all of them: the others get new slots, or places in the queue. Those
        that a limit of their project refuses are left out: what the limits say is returned, too.
        """
        rows = await self._queries.rows("create", platform, bots, grow)
        rulings = [Ruling(**each) for each in rows[0]["rulings"] or ()]
        return [transition(row) for row in rows if row["id"] is not None], rulings

    async def stop(
        self, bot_id: int, reason: str, grace_ms: int, cause: FailureCause | None = None
    ) -> list[Transition]:
        """Cancel a bot that waits or deploys, or tell a running bot to leave within the grace.

        One that leaves has the cause when it is `DONE`.
        """
        return await self._queries.transitions("stop", bot_id, reason, grace_ms, cause)

    async def leaving(self, grace_ms: int) -> list[Lease]:
        """The slots, by lease, whose bots were told to leave and have at most this long."""
        rows = await self._queries.rows("leaving", grace_ms)
        return [(row["slot_id"], row["lease"]) for row in rows]

    async def delete(self, bot_id: int) -> bool:
        """Delete an ended bot, and what tells of it. Returns whether it had ended."""
        row = await self._queries.row("delete", bot_id)
        return row is not None and row["deleted"] is True

    async def advance(
        self, progress: Progress, sources: Iterable[BotStatus], grace_ms: int
    ) -> list[Transition]:
        """Make the slot busy, and advance its bot if the bot is in one of `sources`.

        A bot that is leaving has `grace_ms` to do so.
        """
        return await self._queries.transitions("advance", progress, list(sources), grace_ms)

    async def record_heartbeats(self, leases: Sequence[Lease]) -> list[Heartbeat]:
        """Note that the bots of these leases are alive. Returns only those with current leases."""
        rows = await self._queries.rows(
            "record_heartbeats",
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

    # Looked up

    async def get(self, bot_id: int) -> Bot:
        """One bot. Raises `BotNotFound`."""
        found = await self.find(bot_id)
        if found is None:
            raise BotNotFound(f"There is no bot {bot_id}.")
        return found

    async def find(self, bot_id: int) -> Bot | None:
        """One bot, if there is one."""
        return await self._bot("get", bot_id)

    async def some(self, bot_ids: Sequence[int]) -> dict[int, Bot]:
        """Those of these bots that there are, by their ids."""
        return {row["id"]: bot(row) for row in await self._queries.rows("some", bot_ids)}

    async def unheard(self, bot_ids: Sequence[int]) -> dict[int, Bot]:
        """Those of these live bots that were not heard since their last launch, by their ids."""
        return {row["id"]: bot(row) for row in await self._queries.rows("unheard", bot_ids)}

    async def of_request(self, project_id: int, idempotency_key: str) -> Bot | None:
        """The bot that a project's earlier request created."""
        return await self._bot("of_request", project_id, idempotency_key)

    async def of_deduplication_key(self, project_id: int, key: str) -> Bot | None:
        """The live bot that has a deduplication key in a project."""
        return await self._bot("of_deduplication_key", project_id, key)

    async def of_container(self, container_ref: str) -> Bot | None:
        """The bot that a container runs now, or else the bot that it ran last."""
        return await self._bot("of_container", container_ref)

    async def first_waiting(self, pull: ImagePull) -> Bot | None:
        """The bot that waits longest for a pull, if one does."""
        return await self._bot("first_waiting", *pull.key, pull.slot_id)

    async def page(self, page: BotPage) -> list[Bot]:
        """One page of bots, newest first, without their configurations."""
        return [bot(row) for row in await self._queries.rows("page", page)]

    # For people

    async def search(self, search: BotSearch) -> list[Bot]:
        """One page of bots, as people look for them."""
        return [bot(row) for row in await self._queries.rows("search", search)]

    async def live(self) -> dict[tuple[Platform, BotStatus], int]:
        """How many bots that haven't ended there are, by platform and status."""
        return {
            (Platform(row["platform"]), BotStatus(row["status"])): row["bots"]
            for row in await self._queries.rows("live")
        }

    async def created_since(self, since: datetime) -> tuple[int, dict[FailureCause, int]]:
        """How many bots were created since then, and how many of these failed, by cause."""
        rows = await self._queries.rows("created_since", since)
        failed = {FailureCause(row["cause"]): row["bots"] for row in rows if row["cause"]}
        return sum(row["bots"] for row in rows), failed

    async def launching(self, most: int) -> list[Bot]:
        """The bots that have a slot and aren't in their call yet, the oldest first."""
        return [bot(row) for row in await self._queries.rows("launching", most)]

    async def recent_launches(self, since: datetime) -> RecentLaunches:
        """How long bots took that came into their call since then."""
        (row,) = await self._queries.rows("recent_launches", since)
        return RecentLaunches(**row)

    async def _bot(self, query: str, *args: object) -> Bot | None:
        row = await self._queries.row(query, *args)
        return None if row is None else bot(row)

    # What they tell

    async def add_events(
        self, slot_id: int, lease: int, events: Sequence[tuple[str, Json]], most: int
    ) -> bool:
        """Keep the newest events of a bot. Returns whether the lease is the current one."""
        types = [kind for kind, _ in events]
        data = [data for _, data in events]
        return await self._queries.found("add_events", slot_id, lease, types, data, most)

    async def add_log_lines(
        self, slot_id: int, lease: int, lines: Sequence[tuple[str, str]], most: int
    ) -> bool:
        """Keep the newest log lines of a bot. Returns whether the lease is the current one."""
        levels = [level for level, _ in lines]
        texts = [line for _, line in lines]
        return await self._queries.found("add_log_lines", slot_id, lease, levels, texts, most)

    async def log_lines(self, bot_id: int, after: int, most: int, most_bytes: int) -> LogPage:
        """The log lines of a bot after a place, in order.

        The page has at most `most` lines, and ends with the one that makes `most_bytes` full.
        """
        rows = await self._queries.rows("log_lines", bot_id, after, most, most_bytes)
        more = bool(rows) and rows[0]["found"] > len(rows)
        return LogPage(
            lines=[LogLine(at=row["at"], level=row["level"], line=row["line"]) for row in rows],
            last=rows[-1]["id"] if more else None,
            end=rows[-1]["id"] if rows else None,
        )

    async def keep_container_logs(
        self,
        bot_id: int,
        slot_id: int,
        lease: int,
        lines: Sequence[str] | None,
        facts: ContainerFacts = _UNKNOWN,
        *,
        final: bool = True,
    ) -> None:
        """Keep what a container wrote, and how it did, so far or until its end: `final`, it stays.

        Without lines, because they could not be read, those that were read before stay.
        """
        known = (facts.exit_code, facts.restarts)
        await self._queries.run("keep_container_logs", bot_id, slot_id, lease, lines, final, *known)

    async def want_container_logs(self, bot_id: int, fresh_ms: int) -> bool:
        """Want what a bot's container has written, unless that was read within `fresh_ms`.

        Returns whether it is wanted now. It is not if the container was not started, or has ended.
        """
        return await self._queries.found("want_container_logs", bot_id, fresh_ms)

    async def wants_container_logs(self, bot_id: int) -> bool:
        """Whether what a bot's container has written is wanted, and not read yet."""
        return await self._queries.found("wants_container_logs", bot_id)

    async def wanted_container_logs(self, hosts: Sequence[tuple[str, str]]) -> list[Slot]:
        """The slots on these hosts whose containers' output is wanted."""
        names = [f"{engine}/{host}" for engine, host in hosts]
        return await self._queries.slots("wanted_container_logs", names)

    async def has_container_logs(self, bot_id: int, slot_id: int, lease: int) -> bool:
        """Whether what a container wrote under a lease is kept until its end."""
        return await self._queries.found("has_container_logs", bot_id, slot_id, lease)

    async def container_logs(self, bot_id: int) -> list[str]:
        """What the containers of a bot wrote, as far as it was read."""
        rows = await self._queries.rows("container_logs", bot_id)
        return [line for row in rows for line in row["lines"]]

    async def container_facts(self, bot: Bot, slot: Slot | None) -> ContainerFacts:
        """How the container of a bot's last launch did. `slot` is the bot's, while it has one."""
        place = None if slot is None else slot.id
        row = await self._queries.row("container_facts", bot.id, bot.lease, place)
        return _UNKNOWN if row is None else ContainerFacts(**row)

    async def container_facts_of_slot(self, slot: Slot) -> ContainerFacts:
        """How a slot's container did for the bot that it has, or had last."""
        bot_id = slot.assigned_bot_id or slot.last_bot_id
        row = await self._queries.row("container_facts_of_slot", bot_id, slot.id, slot.lease)
        return _UNKNOWN if row is None else ContainerFacts(**row)

    async def had_container(self, container_ref: str) -> bool:
        """Whether a bot in the database ran in this container."""
        return await self._queries.found("had_container", container_ref)

    async def prune(self, before: datetime, limit: int) -> int:
        """Delete at most `limit` bots that ended before `before`, and return how many."""
        return await self._queries.run("prune", before, limit, seconds=LONG_SECONDS)
