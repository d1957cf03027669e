"""The database's own guards: what it refuses, whoever writes and however.

Here statements are written by hand, past the pool, to see that the database needs no help.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from botpool.errors import (
    BotpoolError,
    ConstraintViolated,
    StaleLease,
    TransitionRefused,
)
from botpool.states import (
    BOT_ENDED,
    BOT_HOLDS_SLOT,
    BOT_STEPS,
    SLOT_HOLDS_BOT,
    SLOT_STEPS,
    BotStatus,
    SlotStatus,
)
from botpool.store import Database, connect
from tests.conftest import new_database

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.older_postgres

SLOT_PAIRS = [
    (source, target)
    for source in (None, *SlotStatus)
    for target in (*SlotStatus, None)
    if source != target
]
BOT_PAIRS = [
    (source, target)
    for source in (None, *BotStatus)
    for target in (*BotStatus, None)
    if source != target
]


@pytest.fixture(scope="module")
async def shared(server: str) -> AsyncIterator[Database]:
    async with new_database(server) as url, connect(url) as database:
        yield database


@pytest.fixture
async def pools(shared: Database) -> Database:
    """Two empty pools of two slots."""
    await shared.execute(
        "TRUNCATE pools, bots CASCADE;"
        " INSERT INTO pools (platform, max_size, engine)"
        " VALUES ('zoom', 2, 'process'), ('google-meet', 2, 'process')"
    )
    return shared


def bot(bot_id: int, status: str | None, platform: str = "zoom") -> str:
    """The statement that puts a bot into a status, with what the status calls for."""
    if status is None:
        return f"DELETE FROM bots WHERE id = {bot_id};"
    ended = "now()" if status in BOT_ENDED else "NULL"
    failure = "'engine', 'broken'" if status == "FATAL" else "NULL, NULL"
    return f"""
        INSERT INTO bots (id, platform, meeting_url, bot_display_name, status, priority,
            queue_timeout_ms, correlation_id, metadata, config, created_at, ended_at,
            failure_cause, failure_reason)
        VALUES ({bot_id}, '{platform}', 'u', 'n', '{status}', 1, 1, 'c', '{{}}', '{{}}', now(),
            {ended}, {failure});
        """


def moved_bot(bot_id: int, status: str) -> str:
    ended = "now()" if status in BOT_ENDED else "NULL"
    cause = "'engine'" if status == "FATAL" else "NULL"
    return (
        f"UPDATE bots SET status = '{status}', ended_at = {ended}, failure_cause = {cause},"
        f" failure_reason = {cause} WHERE id = {bot_id};"
    )


def slot(number: int, status: str, bot_id: int | None, platform: str = "zoom") -> str:
    return f"""
        INSERT INTO bot_pool_slots (id, platform, number, slot_name, engine, status,
            assigned_bot_id, lease, last_used_at, last_assigned_at, error_message, due_at,
            created_at)
        VALUES ({number}, '{platform}', {number}, slot_name('{platform}', {number}), 'process',
            '{status}', {bot_id or "NULL"}, 1, now(), now(), 'broken', now(), now());
        """


def place(bot_id: int, status: str | None) -> str:
    """The statements that put a bot where one of this status belongs, and nowhere else."""
    statements = f"""
        DELETE FROM bot_pool_queue WHERE bot_id = {bot_id};
        UPDATE bot_pool_slots SET status = 'releasing', assigned_bot_id = NULL
        WHERE assigned_bot_id = {bot_id};
        """
    if status == "QUEUED":
        statements += f"""
            INSERT INTO bot_pool_queue (bot_id, platform, priority, queued_at, timeout_at)
            VALUES ({bot_id}, 'zoom', 1, now(), now());
            """
    if status in BOT_HOLDS_SLOT:
        statements += slot(2, "deploying", bot_id)
    return statements


async def as_it_was(database: Database, statements: str) -> None:
    """Write what could not come about otherwise: a row in any status, past every trigger."""
    await database.execute(f"SET LOCAL session_replication_role = replica; {statements}")


async def verdict(database: Database, statements: str) -> type[BotpoolError] | None:
    try:
        await database.execute(statements)
    except BotpoolError as error:
        return type(error)
    return None


@pytest.mark.parametrize(("source", "target"), SLOT_PAIRS)
async def test_a_slot_takes_exactly_the_steps_of_the_table(
    pools: Database, source: SlotStatus | None, target: SlotStatus | None
) -> None:
    await as_it_was(pools, bot(2, "DEPLOYING"))
    holder = 2 if target in SLOT_HOLDS_BOT else None
    if source is None:
        statements = slot(2, target or "", holder)
    else:
        await as_it_was(pools, slot(2, source, 2 if source in SLOT_HOLDS_BOT else None))
        await pools.execute("UPDATE pools SET size = 1 WHERE platform = 'zoom'")
        await as_it_was(pools, moved_bot(2, "DONE") if holder is None else "")
        grows = holder is not None and source not in SLOT_HOLDS_BOT
        without_bot = (source, target) == (SlotStatus.IDLE, SlotStatus.RELEASING)
        lease = "lease + 1" if grows or without_bot else "lease"
        statements = (
            "DELETE FROM bot_pool_slots WHERE id = 2"
            if target is None
            else f"UPDATE bot_pool_slots SET status = '{target}', lease = {lease},"
            f" assigned_bot_id = {holder or 'NULL'} WHERE id = 2"
        )
    allowed = target in SLOT_STEPS[source]
    assert await verdict(pools, statements) is (None if allowed else TransitionRefused)


@pytest.mark.parametrize(("source", "target"), BOT_PAIRS)
async def test_a_bot_takes_exactly_the_steps_of_the_table(
    pools: Database, source: BotStatus | None, target: BotStatus | None
) -> None:
    if source is None:
        statements = bot(1, target)
    else:
        await as_it_was(pools, bot(1, source) + "UPDATE bots SET relaunch_in_call = true;")
        statements = moved_bot(1, target) if target else bot(1, None)
    allowed = target in BOT_STEPS[source]
    if target is BotStatus.PENDING:
        # Within the transaction that creates it, and no longer.
        statements += moved_bot(1, target := BotStatus.QUEUED)
    statements += place(1, target)
    assert await verdict(pools, statements) is (None if allowed else TransitionRefused)


@pytest.mark.parametrize("target", [BotStatus.QUEUED, BotStatus.DEPLOYING])
async def test_a_bot_goes_back_into_its_call_only_if_it_was_asked_for(
    pools: Database, target: BotStatus
) -> None:
    await as_it_was(pools, bot(1, "IN_CALL"))
    assert await verdict(pools, moved_bot(1, target) + place(1, target)) is TransitionRefused


@pytest.mark.parametrize("status", sorted(BOT_ENDED))
async def test_an_ended_bot_never_changes(pools: Database, status: str) -> None:
    await as_it_was(pools, bot(1, status))
    assert (
        await verdict(pools, "UPDATE bots SET last_heartbeat = now() WHERE id = 1")
        is TransitionRefused
    )


WAITING = bot(1, "QUEUED") + place(1, "QUEUED")
RUNNING = bot(1, "DEPLOYING") + slot(1, "deploying", 1)

# What was there before, and the change, a transaction of its own, that leaves the bot nowhere.
NOWHERE = {
    "a new bot waits, but not in the queue": ("SELECT", bot(1, "QUEUED")),
    "a new bot deploys, but has no slot": ("SELECT", bot(1, "DEPLOYING")),
    "a new bot has a slot of another platform": (
        "SELECT",
        bot(1, "DEPLOYING", "google-meet") + slot(1, "deploying", 1, "zoom"),
    ),
    "a bot deploys, but is still in the queue": (
        WAITING,
        "UPDATE bots SET status = 'DEPLOYING'",
    ),
    "a bot is cancelled, but is still in the queue": (
        WAITING,
        "UPDATE bots SET status = 'CANCELLED', ended_at = now()",
    ),
    "a bot is taken out of the queue, but waits": (WAITING, "DELETE FROM bot_pool_queue"),
    "a bot that waits gets a slot": (WAITING, slot(1, "deploying", 1)),
    "a bot that waits is in the queue of another platform": (
        WAITING,
        "UPDATE bot_pool_queue SET platform = 'google-meet'",
    ),
    "a new bot is pending for longer than its creation": ("SELECT", bot(1, "PENDING")),
    "a bot that does not wait is in the queue": (
        RUNNING,
        place(1, "QUEUED").rpartition("INSERT")[1] + place(1, "QUEUED").rpartition("INSERT")[2],
    ),
    "a bot runs, but its slot is released": (
        RUNNING,
        "UPDATE bot_pool_slots SET status = 'releasing', assigned_bot_id = NULL",
    ),
    "a bot that runs waits": (RUNNING, "UPDATE bots SET status = 'QUEUED'"),
    "a bot that runs is moved to another platform": (
        RUNNING,
        "UPDATE bots SET platform = 'google-meet', status = 'IN_CALL'",
    ),
}


@pytest.mark.parametrize(("before", "statements"), NOWHERE.values(), ids=NOWHERE.keys())
async def test_a_live_bot_that_is_nowhere_is_refused(
    pools: Database, before: str, statements: str
) -> None:
    await pools.execute(before)
    assert await verdict(pools, statements) is TransitionRefused


@pytest.mark.parametrize(
    "change",
    [
        pytest.param("lease = lease - 1", id="it shrinks"),
        pytest.param("lease = lease + 1", id="it grows without an assignment"),
        pytest.param("assigned_bot_id = 2", id="another bot has the same lease"),
        pytest.param("assigned_bot_id = 2, lease = lease + 2", id="it grows by two"),
    ],
)
async def test_a_lease_grows_by_one_with_an_assignment_and_only_then(
    pools: Database, change: str
) -> None:
    await pools.execute(bot(1, "DEPLOYING") + slot(1, "deploying", 1))
    await as_it_was(pools, bot(2, "DEPLOYING"))
    assert await verdict(pools, f"UPDATE bot_pool_slots SET {change}") is StaleLease


async def test_a_slot_beyond_the_maximum_is_refused(pools: Database) -> None:
    await pools.execute(bot(1, "DEPLOYING") + slot(1, "deploying", 1))
    await pools.execute(bot(2, "DEPLOYING") + slot(2, "deploying", 2))
    assert await verdict(pools, bot(3, "DEPLOYING") + slot(3, "deploying", 3)) is TransitionRefused


async def test_a_slot_of_an_unknown_platform_is_refused(pools: Database) -> None:
    assert (
        await verdict(
            pools, bot(1, "DEPLOYING", "elsewhere") + slot(1, "deploying", 1, "elsewhere")
        )
        is TransitionRefused
    )


CONSTRAINTS = {
    "a slot that deploys has a bot": (slot(1, "deploying", None), "slot_holds_bot"),
    "a bot has one slot": (
        bot(1, "DEPLOYING") + slot(1, "deploying", 1) + slot(2, "deploying", 1),
        "bot_pool_slots_assigned_bot_id_key",
    ),
    "a slot's bot exists": (slot(1, "deploying", 4711), "bot_pool_slots_assigned_bot_id_fkey"),
    "a name is unique": (
        bot(1, "DEPLOYING")
        + slot(1, "deploying", 1)
        + "UPDATE bot_pool_slots SET number = 2;"
        + bot(2, "DEPLOYING")
        + slot(1, "deploying", 2).replace("VALUES (1,", "VALUES (2,"),
        "bot_pool_slots_slot_name_key",
    ),
    "a bot waits once": (
        bot(1, "QUEUED") + place(1, "QUEUED") + place(1, "QUEUED").split(";", 2)[2],
        "bot_pool_queue_bot_id_key",
    ),
    "nobody waits without a deadline": (
        bot(1, "QUEUED") + place(1, "QUEUED") + "UPDATE bot_pool_queue SET timeout_at = NULL;",
        "timeout_at",
    ),
    "an ended bot has its time": (
        bot(1, "QUEUED") + "UPDATE bots SET status = 'CANCELLED';",
        "bot_ended_at",
    ),
    "a fatal bot has its cause": (
        bot(1, "QUEUED") + "UPDATE bots SET status = 'FATAL', ended_at = now();",
        "bot_failure",
    ),
}


@pytest.mark.parametrize(("statements", "name"), CONSTRAINTS.values(), ids=CONSTRAINTS.keys())
async def test_a_row_that_breaks_a_promise_is_refused(
    pools: Database, statements: str, name: str
) -> None:
    with pytest.raises(ConstraintViolated, match=name):
        await pools.execute(statements)
