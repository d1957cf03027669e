"""The hot queries read a few rows, however many there are.

Each is run for real among 100,000 slots and a million ended bots, with the triggers that it fires
and whatever its function runs inside; then PostgreSQL's own counters tell how it read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from bench.crowd import crowd
from botpool.states import BOT_RELAUNCHABLE, Platform
from botpool.store import connect
from botpool.store.queries import QUERIES
from tests.conftest import new_database

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from botpool.store import Database

SLOTS = 20_000
BOTS = 200_000
WAITING = 10_000

MEET, ZOOM = Platform.GOOGLE_MEET, Platform.ZOOM

# The bots that fixture `crowded` adds: one waits first of all, one deploys, one is in its call.
SETTING = f"""
INSERT INTO pools (platform, max_size, engine)
VALUES ('{MEET}', {SLOTS}, 'process'), ('{ZOOM}', 2, 'process');
INSERT INTO bots (platform, meeting_url, bot_display_name, status, priority, queue_timeout_ms,
    correlation_id, metadata, config, created_at)
SELECT '{ZOOM}', 'u', 'n', CASE WHEN n < 3 THEN 'DEPLOYING' ELSE 'QUEUED' END, 100, 1000, 'c',
    '{{}}', '{{}}', now() FROM generate_series(1, {WAITING} + 2) n;
INSERT INTO bot_pool_slots (platform, number, slot_name, engine, container_ref, status,
    assigned_bot_id, lease, last_used_at, last_assigned_at, created_at)
SELECT '{ZOOM}', row_number() OVER (), slot_name('{ZOOM}', row_number() OVER ()::integer),
    'process', 'zoom-' || id, 'deploying', id, 1, now(), now(), now()
FROM bots WHERE status = 'DEPLOYING' ORDER BY id;
UPDATE bots b SET slot_name = s.slot_name, lease = s.lease
FROM bot_pool_slots s WHERE s.assigned_bot_id = b.id;
INSERT INTO bot_pool_queue (bot_id, platform, priority, queued_at, timeout_at)
SELECT id, platform, priority, created_at, created_at + interval '1 hour'
FROM bots WHERE status = 'QUEUED';
"""


@pytest.fixture(scope="module")
async def crowded(server: str) -> AsyncIterator[Database]:
    async with new_database(server) as url, connect(url) as database:
        await database.execute(f"BEGIN; {SETTING} COMMIT")
        await crowd(database, MEET, slots=SLOTS, bots=BOTS)
        yield database


NEW: tuple[Any, ...] = (
    *(["u"], ["n"], [100], [1000], ["c"], [{}], [{}]),
    *([None], [None], [None], [None], [None], [None], [False]),
)
RELEASED = """
UPDATE bots SET status = 'DONE', ended_at = now() WHERE id = {bot};
UPDATE bot_pool_slots SET status = 'releasing', assigned_bot_id = NULL WHERE id = {slot};
SET CONSTRAINTS ALL IMMEDIATE;
SET CONSTRAINTS ALL DEFERRED;
"""

HOT: dict[str, tuple[Any, ...]] = {
    "create_bots_on_idle_slots": (MEET, *NEW),
    "create_bots": (ZOOM, *NEW),
    "stop_bot": ("bot", "stop", 30_000),
    "advance_bot": ("slot", 1, "IN_CALL", ["DEPLOYING"], "admitted", {}, 30_000, True),
    "list_bots": (2**62, 50, None, None, None, None, "7", None),
    "record_heartbeats": (["slot"], [1]),
    "end_assignments": (
        ["slot"],
        [1],
        ["releasing"],
        ["DONE"],
        ["done"],
        [None],
        [None],
        [None],
        [{}],
    ),
    "free_slots": (["slot"], [1], "releasing", "container stopped"),
    "relaunch_bot": ("slot", 1, "broken", list(BOT_RELAUNCHABLE), 2, None, None),
    "fail_slot": ("slot", 1, "broken"),
    "record_container": ("slot", 1, "another", None, 1),
    "record_deployment": ("slot", 1, "deployment", "queued"),
    "assign_waiting": (ZOOM,),
    "expire_queue": (100,),
    "get_bot": ("bot",),
    "get_bot_of_container": ("google-meet/7",),
    "get_slot": ("slot",),
    "get_slot_of_bot": ("bot",),
    "get_queue_place": ("bot",),
    "timeline": ("bot",),
    "claim_slots": ("me", 15_000, 10, ["process/a"], 1_500_000, ["process"], "process", 600_000),
    "claim_slot": ("slot", "me", 15_000),
    "renew_claims": ("me", ["slot"], 15_000),
    "return_slot": ("slot", "me", 1, "deploying", 1000, None, 0),
    "place_slot": ("slot", 1, "process", ["a", "b"], 100_000),
    "settle_pulls": ("process", "a"),
    "has_failed": ("process", "a"),
    "note_failure": ("process", "a", "slot 1", "", "away", 5, 120_000, 60_000),
    "had_container": ("a-1",),
    "admit_deployment": ("slot", 1, 4, 5000, "waits", "rests"),
    "wake_deployments": ("process", "a", 4, "waits"),
    "wake_pull": ("process", "a", "bot:1", "waits", 0),
    "set_slot_token": ("slot", 1, "me", b"digest", "http://botpool"),
    "get_slot_of_token": (b"digest",),
    "list_slots_of_host": ("process", "a"),
    "read_record": (0, 0, 500),
    "get_record_bounds": (),
}
# Those that find nothing here, or return none of what they change.
QUIET = {
    *("expire_queue", "assign_waiting", "get_queue_place", "timeline"),
    *("renew_claims", "return_slot", "wake_pull"),
    *("set_slot_token", "get_slot_of_token", "list_slots_of_host"),
    *("settle_pulls", "had_container", "has_failed"),
}


@pytest.mark.parametrize("name", HOT)
async def test_a_hot_query_reads_no_table_as_a_whole(crowded: Database, name: str) -> None:
    (slot,) = await crowded.fetch(
        "SELECT id, assigned_bot_id FROM bot_pool_slots WHERE slot_name = 'pool-zoom-001'"
    )
    known = {"slot": slot["id"], "bot": slot["assigned_bot_id"]}

    def argument(value: Any) -> Any:
        if isinstance(value, list):
            return [argument(item) for item in value]
        return known.get(value, value) if isinstance(value, str) else value

    transaction = crowded.transaction()
    connection = await transaction.__aenter__()
    try:
        if name in {"free_slots", "fail_slot"}:
            await connection.execute(RELEASED.format(**known))
        before = await read_whole(connection)
        rows = await connection.fetch(QUERIES[name], *map(argument, HOT[name]))
        await connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        after = await read_whole(connection)
    finally:
        await transaction.__aexit__(KeyError, KeyError(), None)
    assert rows or name in QUIET
    assert after == before


async def read_whole(connection: Any) -> dict[str, int]:
    """How many rows of each table were read by reading the table from end to end."""
    rows = await connection.fetch(
        "SELECT relname, seq_tup_read FROM pg_stat_xact_user_tables WHERE relname <> 'pools'"
    )
    return {row["relname"]: row["seq_tup_read"] for row in rows}


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("create_bots_on_idle_slots", "bot_pool_slots_idle"),
        ("get_bot_of_container", "bots_container_ref"),
        ("get_slot_of_bot", "bot_pool_slots_assigned_bot_id_key"),
        ("expire_queue", "bot_pool_queue_timeout"),
        ("list_queue", "bot_pool_queue_order"),
        ("timeline", "transitions_bot"),
        ("claim_slots", "bot_pool_slots_due"),
        ("wake_pull", "bot_pool_slots_deploying"),
        ("get_slot_of_token", "bot_pool_slots_token_hash_key"),
        ("list_slots_of_host", "bot_pool_slots_host"),
        ("get_record_bounds", "transitions_xid"),
    ],
)
async def test_a_hot_query_uses_the_index_made_for_it(
    crowded: Database, name: str, index: str
) -> None:
    arguments = {**HOT, "list_queue": (ZOOM,)}[name]
    types = {"bot": 1}
    rows = await crowded.fetch(
        f"EXPLAIN {QUERIES[name]}",
        *(types.get(value, value) if isinstance(value, str) else value for value in arguments),
    )
    plan = "\n".join(row[0] for row in rows)
    assert f"using {index} on" in plan


async def test_a_page_of_the_record_reads_no_more_than_a_page(crowded: Database) -> None:
    fetched = (
        "SELECT sum(idx_tup_fetch)::integer FROM pg_stat_xact_user_tables"
        " WHERE relname IN ('bots', 'transitions')"
    )
    async with crowded.transaction() as connection:
        before = await connection.fetchval(fetched)
        rows = await connection.fetch(QUERIES["read_record"], 0, 0, 500)
        after = await connection.fetchval(fetched)
    assert len(rows) == 500
    assert after - before <= 2 * 500
