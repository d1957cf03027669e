"""The pool against a small model of it, on real PostgreSQL through several connections.

Steps that happen alone must end as the model says, to the slot and the place in the queue. Steps
that happen at once may end in more than one right way: the model then takes over what came out.
After every step, every invariant is looked up in the database.

`make test` walks the same paths every time; `BOTPOOL_TEST_EXAMPLES=1000` walks so many new ones.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from botpool.errors import SlotNotFound, StaleLease
from botpool.models.assignments import FailedLaunch
from botpool.pool import Pool
from botpool.settings import Settings
from botpool.states import (
    BOT_ENDED,
    BOT_HOLDS_SLOT,
    BOT_MAY_SAY,
    BOT_RELAUNCHABLE,
    SLOT_HOLDS_BOT,
    BotStatus,
    FailureCause,
    Platform,
    SlotStatus,
    bot_sources,
)
from botpool.store import Store, connect
from botpool.store.invariants import broken_invariants
from tests.conftest import new_database
from tests.support.scene import add_host, new_bot

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from botpool.models.bots import NewBot
    from botpool.store import Database

pytestmark = pytest.mark.older_postgres

MAX_SIZE = 3
PLATFORMS = (Platform.GOOGLE_MEET, Platform.ZOOM)
START = datetime(2026, 1, 1, tzinfo=UTC)
TIMEOUT = timedelta(seconds=10)
# Those who wait are counted in blocks of 1,024 ids: let there be two of them.
FIRST_BOT = 1019

Result = TypeVar("Result")

choices = st.integers(0, 9999)
platforms = st.sampled_from(PLATFORMS)

WRITES: dict[str, Callable[[Pool, int, int], Coroutine[Any, Any, object]]] = {
    "free": lambda pool, slot_id, lease: pool.slots.make_idle(slot_id, lease),
    "recover": lambda pool, slot_id, lease: pool.slots.make_idle(slot_id, lease, SlotStatus.ERROR),
    "heartbeat": lambda pool, slot_id, lease: pool.assignments.heartbeat(slot_id, lease),
    "delete": lambda pool, slot_id, lease: pool.slots.delete(slot_id, lease, "late"),
    "advance": lambda pool, slot_id, lease: pool.assignments.advance(
        slot_id, lease, BotStatus.LEAVING, "late"
    ),
    "end": lambda pool, slot_id, lease: pool.assignments.advance(
        slot_id, lease, BotStatus.DONE, "late"
    ),
    "error": lambda pool, slot_id, lease: pool.relaunch.fail_launch(
        FailedLaunch(slot_id=slot_id, lease=lease, cause=FailureCause.ENGINE, reason="late")
    ),
}


def failed(pool: Pool, slot: ModelSlot) -> Coroutine[Any, Any, object]:
    """Let a launch fail; or, of a slot without a bot, the release."""
    if slot.bot is None:
        return pool.slots.fail(slot.id, slot.lease, "broken")
    return pool.relaunch.fail_launch(
        FailedLaunch(slot_id=slot.id, lease=slot.lease, cause=FailureCause.ENGINE, reason="broken")
    )


CALLS: dict[str, Callable[[Pool, ModelSlot], Coroutine[Any, Any, object]]] = {
    "create": lambda pool, slot: pool.creation.create_bot(request(slot.platform)),
    "free": lambda pool, slot: pool.slots.make_idle(slot.id, slot.lease),
    "recover": lambda pool, slot: pool.slots.make_idle(slot.id, slot.lease, SlotStatus.ERROR),
    "heartbeat": lambda pool, slot: pool.assignments.heartbeat(slot.id, slot.lease),
    "delete": lambda pool, slot: pool.slots.delete(slot.id, slot.lease, "given up"),
    "advance": lambda pool, slot: pool.assignments.advance(
        slot.id, slot.lease, BotStatus.IN_CALL, "admitted"
    ),
    "end": lambda pool, slot: pool.assignments.advance(slot.id, slot.lease, BotStatus.DONE, "over"),
    "error": lambda pool, slot: pool.relaunch.fail_launch(
        FailedLaunch(slot_id=slot.id, lease=slot.lease, cause=FailureCause.ENGINE, reason="broken")
    ),
    "stop": lambda pool, slot: pool.assignments.stop_bot(slot.bot or FIRST_BOT),
    "expire": lambda pool, _: pool.queue.expire(),
    "pause": lambda pool, slot: pool.queue.pause(slot.platform, by="a test"),
    "resume": lambda pool, slot: pool.queue.resume(slot.platform, by="a test"),
    "container": lambda pool, slot: pool.slots.record_container(
        slot.id, slot.lease, f"{slot.id}/{slot.lease}", host=None, attempt=1
    ),
}


calls = st.sampled_from(sorted(CALLS))


async def expected_refusals(work: Coroutine[Any, Any, object]) -> None:
    with suppress(StaleLease, SlotNotFound):
        await work


def request(platform: Platform, priority: int = 100) -> NewBot:
    timeout_ms = TIMEOUT // timedelta(milliseconds=1)
    return new_bot(platform, priority=priority, queue_timeout_ms=timeout_ms)


@dataclass
class ModelBot:
    id: int
    platform: Platform
    status: BotStatus
    priority: int
    created_at: datetime
    attempts: int = 0


@dataclass
class ModelSlot:
    id: int
    platform: Platform
    number: int
    status: SlotStatus
    lease: int
    last_used_at: datetime
    bot: int | None = None


@dataclass
class Entry:
    bot: int
    platform: Platform
    priority: int
    queued_at: datetime
    timeout_at: datetime
    id: int


@dataclass
class Model:
    """What the pool must do, as plainly as it can be said."""

    now: datetime = START
    bots: dict[int, ModelBot] = field(default_factory=dict)
    slots: dict[int, ModelSlot] = field(default_factory=dict)
    queue: list[Entry] = field(default_factory=list)
    entries: int = 0
    paused: set[Platform] = field(default_factory=set)

    def of(self, platform: Platform) -> list[ModelSlot]:
        return [slot for slot in self.slots.values() if slot.platform is platform]

    def waiting(self, platform: Platform) -> list[Entry]:
        entries = [e for e in self.queue if e.platform is platform and e.timeout_at > self.now]
        return sorted(entries, key=lambda e: (e.priority, e.bot))

    def position(self, bot: int) -> int:
        platform = self.bots[bot].platform
        entries = [entry for entry in self.queue if entry.platform is platform]
        entries.sort(key=lambda e: (e.priority, e.bot))
        return [entry.bot for entry in entries].index(bot) + 1

    def free_slot(self, platform: Platform) -> ModelSlot | int | None:
        """The idle slot least recently used, or the number of a new one; none in a pause."""
        if platform in self.paused:
            return None
        idle = [slot for slot in self.of(platform) if slot.status is SlotStatus.IDLE]
        if idle:
            return min(idle, key=lambda slot: (slot.last_used_at, slot.id))
        numbers = {slot.number for slot in self.of(platform)}
        return min(set(range(1, MAX_SIZE + 1)) - numbers, default=None)

    def occupy(self, bot: ModelBot, free: ModelSlot | int, new_id: int) -> None:
        if isinstance(free, int):
            free = ModelSlot(new_id, bot.platform, free, SlotStatus.IDLE, 0, self.now)
            self.slots[new_id] = free
        free.status, free.bot, free.last_used_at = SlotStatus.DEPLOYING, bot.id, self.now
        free.lease += 1
        bot.status = BotStatus.DEPLOYING
        bot.attempts += 1

    def enqueue(self, bot: ModelBot, since: datetime) -> None:
        bot.status = BotStatus.QUEUED
        self.entries += 1
        self.queue.append(
            Entry(bot.id, bot.platform, bot.priority, since, self.now + TIMEOUT, self.entries)
        )

    def serve(self, platform: Platform, new_ids: list[int]) -> None:
        while (waiting := self.waiting(platform)) and (free := self.free_slot(platform)):
            self.queue.remove(waiting[0])
            new_id = new_ids.pop(0) if isinstance(free, int) else 0
            self.occupy(self.bots[waiting[0].bot], free, new_id)

    def leave(self, slot: ModelSlot, status: SlotStatus) -> ModelBot | None:
        bot, slot.bot, slot.status = slot.bot, None, status
        return None if bot is None else self.bots[bot]


class PoolMachine(RuleBasedStateMachine):
    loop: ClassVar[asyncio.AbstractEventLoop]
    databases: ClassVar[list[Database]]

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self.loop.run_until_complete(work)

    def together(self, work: Sequence[Coroutine[Any, Any, object]]) -> None:
        async def gather() -> None:
            await asyncio.gather(*work)

        self.run(gather())

    @initialize()
    def empty(self) -> None:
        self.model = Model()
        self.database = self.databases[0]
        self.store = Store(self.database)
        self.pools = [
            Pool(Store(database), Settings(max_pool_size=MAX_SIZE)) for database in self.databases
        ]
        self.run(
            self.database.execute(
                "TRUNCATE bots, transitions, queue_counts, queue_changes RESTART IDENTITY CASCADE;"
                f" ALTER SEQUENCE bots_id_seq RESTART {FIRST_BOT}; UPDATE pools SET size = 0,"
                " paused_at = NULL, paused_by = NULL, pause_reason = NULL"
            )
        )
        self.run(self.store.installation.set_virtual_time(START))

    def pick(self, choice: int, *statuses: SlotStatus) -> ModelSlot | None:
        """One of the slots in these statuses.

        What is drawn must not depend on how a race went, or a failure could not be replayed: so
        every choice is a number, and the number chooses.
        """
        slots = [slot for slot in self.model.slots.values() if slot.status in statuses]
        return slots[choice % len(slots)] if slots else None

    def pool(self, choice: int) -> Pool:
        return self.pools[choice % len(self.pools)]

    def new_slot_ids(self) -> list[int]:
        """The ids of slots that the database has and the model has not."""
        return [
            slot.id for slot in self.run(self.store.slots.all()) if slot.id not in self.model.slots
        ]

    @rule(choice=choices, platform=platforms, priority=st.sampled_from([1, 100, 100]))
    def create(self, choice: int, platform: Platform, priority: int) -> None:
        created = self.run(self.pool(choice).creation.create_bot(request(platform, priority)))
        model, bot = self.model, created.bot
        mine = ModelBot(bot.id, platform, bot.status, priority, model.now)
        waiting, free = model.waiting(platform), model.free_slot(platform)
        model.bots[bot.id] = mine
        if waiting or free is None:
            model.enqueue(mine, model.now)
            assert created.queue_position == model.position(bot.id)
        else:
            model.occupy(mine, free, next(iter(self.new_slot_ids()), 0))
            assert created.queue_position is None

    @rule(platform=platforms, chosen=st.lists(choices, min_size=2, max_size=6))
    def create_at_once(self, platform: Platform, chosen: list[int]) -> None:
        self.together(
            [self.pool(choice).creation.create_bot(request(platform)) for choice in chosen]
        )
        self.take_over()

    @rule(choice=choices)
    def free_stop_and_create_at_once(self, choice: int) -> None:
        """Slots become idle while bots arrive for them and others are stopped."""
        model = self.model
        work: list[Coroutine[Any, Any, object]] = []
        for index, slot in enumerate(model.slots.values()):
            pool = self.pool(choice + index)
            if slot.status is SlotStatus.RELEASING:
                work.append(pool.slots.make_idle(slot.id, slot.lease))
            elif slot.status is SlotStatus.ERROR:
                work.append(pool.slots.make_idle(slot.id, slot.lease, SlotStatus.ERROR))
            elif slot.bot is not None:
                work.append(pool.assignments.stop_bot(slot.bot))
            work.append(self.pool(choice + index + 1).creation.create_bot(request(slot.platform)))
        work.extend(self.pool(choice).assignments.stop_bot(entry.bot) for entry in model.queue[:2])
        self.together(work)
        self.take_over()

    @rule(
        chosen=st.lists(st.tuples(choices, st.sampled_from(sorted(CALLS))), min_size=2, max_size=8)
    )
    def anything_at_once(self, chosen: list[tuple[int, str]]) -> None:
        """Any calls for any slots, at once: each is done, or refused because another was first."""
        work = [
            expected_refusals(CALLS[call](self.pool(choice), slot))
            for choice, call in chosen
            if (slot := self.pick(choice, *SlotStatus))
        ]
        self.together(work)
        self.take_over()

    @rule(choice=choices, status=st.sampled_from(sorted(BOT_MAY_SAY - BOT_ENDED)))
    def advance(self, choice: int, status: BotStatus) -> None:
        if slot := self.pick(choice, *SLOT_HOLDS_BOT):
            self.run(self.pool(choice).assignments.advance(slot.id, slot.lease, status, "said so"))
            bot = self.model.bots[slot.bot or 0]
            slot.status = SlotStatus.BUSY
            if bot.status in bot_sources(status):
                bot.status = status

    @rule(choice=choices, status=st.sampled_from([BotStatus.DONE, BotStatus.FATAL]))
    def end(self, choice: int, status: BotStatus) -> None:
        if slot := self.pick(choice, *SLOT_HOLDS_BOT):
            self.run(self.pool(choice).assignments.advance(slot.id, slot.lease, status, "over"))
            bot = self.model.leave(slot, SlotStatus.RELEASING)
            assert bot
            bot.status = status

    @rule(choice=choices)
    def free(self, choice: int) -> None:
        if slot := self.pick(choice, SlotStatus.RELEASING):
            self.run(self.pool(choice).slots.make_idle(slot.id, slot.lease))
            slot.status = SlotStatus.IDLE
            self.model.serve(slot.platform, [])

    @rule(choice=choices)
    def mark_error(self, choice: int) -> None:
        if slot := self.pick(choice, *SLOT_HOLDS_BOT, SlotStatus.RELEASING):
            self.run(failed(self.pool(choice), slot))
            bot = self.model.leave(slot, SlotStatus.ERROR)
            if bot and bot.status in BOT_RELAUNCHABLE and bot.attempts < 2:
                self.model.enqueue(bot, bot.created_at)
                self.model.serve(slot.platform, self.new_slot_ids())
            elif bot:
                bot.status = BotStatus.FATAL

    @rule(choice=choices)
    def recover(self, choice: int) -> None:
        if slot := self.pick(choice, SlotStatus.ERROR):
            self.run(self.pool(choice).slots.make_idle(slot.id, slot.lease, SlotStatus.ERROR))
            slot.status = SlotStatus.IDLE
            self.model.serve(slot.platform, [])

    @rule(choice=choices)
    def delete(self, choice: int) -> None:
        if slot := self.pick(choice, SlotStatus.ERROR):
            self.run(self.pool(choice).slots.delete(slot.id, slot.lease, "given up"))
            del self.model.slots[slot.id]
            self.model.serve(slot.platform, self.new_slot_ids())

    @rule(choice=choices)
    def stop(self, choice: int) -> None:
        if not self.model.bots:
            return
        bot = self.model.bots[sorted(self.model.bots)[choice % len(self.model.bots)]]
        self.run(self.pool(choice).assignments.stop_bot(bot.id))
        if bot.status in {BotStatus.QUEUED, BotStatus.DEPLOYING}:
            self.model.queue = [entry for entry in self.model.queue if entry.bot != bot.id]
            for slot in self.model.slots.values():
                if slot.bot == bot.id:
                    self.model.leave(slot, SlotStatus.RELEASING)
            bot.status = BotStatus.CANCELLED
        elif bot.status in BOT_HOLDS_SLOT:
            bot.status = BotStatus.LEAVING

    @rule(choice=choices, platform=platforms)
    def pause(self, choice: int, platform: Platform) -> None:
        self.run(self.pool(choice).queue.pause(platform, by="a test"))
        self.model.paused.add(platform)

    @rule(choice=choices, platform=platforms)
    def resume(self, choice: int, platform: Platform) -> None:
        self.run(self.pool(choice).queue.resume(platform, by="a test"))
        self.model.paused.discard(platform)
        self.model.serve(platform, self.new_slot_ids())

    @rule(choice=choices, write=st.sampled_from(sorted(WRITES)))
    def act_under_an_old_lease(self, choice: int, write: str) -> None:
        if slot := self.pick(choice, *SlotStatus):
            with pytest.raises(StaleLease):
                self.run(WRITES[write](self.pool(choice), slot.id, slot.lease - 1))

    @rule(seconds=st.integers(1, 12))
    def time_goes_by(self, seconds: int) -> None:
        self.model.now += timedelta(seconds=seconds)
        self.run(self.store.installation.set_virtual_time(self.model.now))

    @rule(choice=choices)
    def expire(self, choice: int) -> None:
        self.run(self.pool(choice).queue.expire())
        for entry in [e for e in self.model.queue if e.timeout_at <= self.model.now]:
            self.model.queue.remove(entry)
            self.model.bots[entry.bot].status = BotStatus.FATAL

    @invariant()
    def everything_holds(self) -> None:
        if not hasattr(self, "model"):
            return
        assert self.run(broken_invariants(self.database)) == []
        assert self.seen() == self.expected()

    def expected(self) -> list[object]:
        model = self.model
        return [
            {(s.id, s.platform, s.number, s.status, s.bot, s.lease) for s in model.slots.values()},
            {(b.id, b.status, b.attempts) for b in model.bots.values()},
            {
                (e.bot, e.priority, e.queued_at, e.timeout_at, model.position(e.bot))
                for e in model.queue
            },
        ]

    def seen(self) -> list[object]:
        slots, bots, entries = self.run(self.read())
        return [
            {
                (s["id"], s["platform"], s["number"], s["status"], s["assigned_bot_id"], s["lease"])
                for s in slots
            },
            {(b["id"], b["status"], b["launch_attempts"]) for b in bots},
            {
                (e["bot_id"], e["priority"], e["queued_at"], e["timeout_at"], e["position"])
                for e in entries
            },
        ]

    async def read(self) -> tuple[Any, Any, Any]:
        slots, bots = [
            await self.database.fetch(f"SELECT * FROM {table} ORDER BY id")
            for table in ("bot_pool_slots", "bots")
        ]
        entries = await self.database.fetch(
            "SELECT *, bots_ahead(platform, priority, bot_id) + 1 AS position FROM bot_pool_queue"
        )
        return slots, bots, entries

    def take_over(self) -> None:
        """Let the model be what the database says: which of several right ways it went."""
        slots, bots, entries = self.run(self.read())
        numbers = self.run(self.store.pools.numbers())
        self.model.paused = {pool.platform for pool in numbers if pool.paused_at is not None}
        self.model.slots = {
            s["id"]: ModelSlot(
                s["id"],
                Platform(s["platform"]),
                s["number"],
                SlotStatus(s["status"]),
                s["lease"],
                s["last_used_at"],
                s["assigned_bot_id"],
            )
            for s in slots
        }
        self.model.bots = {
            b["id"]: ModelBot(
                b["id"],
                Platform(b["platform"]),
                BotStatus(b["status"]),
                b["priority"],
                b["created_at"],
                b["launch_attempts"],
            )
            for b in bots
        }
        self.model.queue = [
            Entry(
                e["bot_id"],
                Platform(e["platform"]),
                e["priority"],
                e["queued_at"],
                e["timeout_at"],
                e["id"],
            )
            for e in entries
        ]
        self.model.entries = max((e.id for e in self.model.queue), default=self.model.entries) + 100


def test_the_pool_does_what_its_model_says(server: str) -> None:
    loop = asyncio.new_event_loop()

    async def run() -> AsyncExitStack:
        stack = AsyncExitStack()
        url = await stack.enter_async_context(new_database(server))
        PoolMachine.databases = [
            await stack.enter_async_context(connect(url, max_connections=3)) for _ in range(3)
        ]
        store = Store(PoolMachine.databases[0])
        await store.installation.use_virtual_clock()
        pool = Pool(store, Settings(max_pool_size=MAX_SIZE))
        await pool.queue.configure()
        await add_host(pool)
        return stack

    stack = loop.run_until_complete(run())
    PoolMachine.loop = loop
    try:
        run_state_machine_as_test(
            PoolMachine,
            settings=settings(
                max_examples=int(os.environ.get("BOTPOOL_TEST_EXAMPLES", "60")),
                derandomize="BOTPOOL_TEST_EXAMPLES" not in os.environ,
                stateful_step_count=40,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        loop.run_until_complete(stack.aclose())
        loop.close()
