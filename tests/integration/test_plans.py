"""The hot queries read a few rows, however many there are.

Each is run for real among 100,000 slots and a million ended bots, with the triggers that it fires
and whatever its function runs inside; then PostgreSQL's own counters tell how it read.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from botpool.models.bots import BotPage, NewBot
from botpool.models.slots import SlotPage
from botpool.states import BOT_RELAUNCHABLE, Platform, SlotStatus
from botpool.store import connect
from botpool.store.queries import named_queries
from testbed.crowd import crowd
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


NEW = NewBot(
    platform=MEET,
    meeting_url="u",
    bot_display_name="n",
    queue_timeout_ms=1000,
    correlation_id="c",
)
RELEASED = """
UPDATE bots SET status = 'DONE', ended_at = now() WHERE id = {bot};
UPDATE bot_pool_slots SET status = 'releasing', assigned_bot_id = NULL WHERE id = {slot};
SET CONSTRAINTS ALL IMMEDIATE;
SET CONSTRAINTS ALL DEFERRED;
"""

HOT: dict[str, tuple[Any, ...]] = {
    "bots.create on an idle slot": (MEET, [NEW], False),
    "bots.create": (ZOOM, [NEW], True),
    "bots.stop": ("bot", "stop", 30_000, None),
    "bots.leaving": (30_000,),
    "bots.some": (["bot"],),
    "bots.delete": (1000,),
    "bots.advance": (
        {
            "slot_id": "slot",
            "lease": 1,
            "status": "IN_CALL",
            "reason": "admitted",
            "details": {},
            "heard": True,
        },
        ["DEPLOYING"],
        30_000,
    ),
    "bots.page": (BotPage(correlation_id="7"),),
    "bots.record_heartbeats": (["slot"], [1]),
    "bots.get": ("bot",),
    "bots.of_container": ("google-meet/7",),
    "bots.had_container": ("a-1",),
    "slots.end_assignments": (
        [
            {
                "slot_id": "slot",
                "lease": 1,
                "slot_status": "releasing",
                "bot_status": "DONE",
                "reason": "done",
                "details": {},
            }
        ],
    ),
    "slots.make_idle": (["slot"], [1], "releasing", "container stopped"),
    "slots.relaunch": (
        {
            "slot_id": "slot",
            "lease": 1,
            "cause": "engine",
            "reason": "broken",
            "details": {},
            "counts": True,
            "elsewhere": False,
        },
        list(BOT_RELAUNCHABLE),
        2,
    ),
    "slots.fail": ("slot", 1, "broken"),
    "slots.record_container": ("slot", 1, "another", None, 1, b"digest", False),
    "slots.record_deployment": ("slot", 1, "deployment", "queued", None, "deployment queued"),
    "slots.get": ("slot",),
    "slots.of_bots": (["bot"],),
    "slots.page": (SlotPage(after=(MEET, 500), statuses=[SlotStatus.IDLE]),),
    "slots.page of a container": (SlotPage(container_ref="zoom-1"),),
    "slots.page of a bot": (SlotPage(assigned_bot_id=1),),
    "slots.of_token": (b"digest",),
    "slots.of_host": ("process", "a"),
    "slots.without_container": ("process", "a", False),
    "slots.tell_error": ("slot", 1, "away", "attempt 1 failed: away", 1),
    "slots.tell_pull_error": ("process", "a", "bot:1", "away", "pull 1 failed: away", 1, None),
    "slots.launches_elsewhere": ("slot",),
    "slots.set_token": ("slot", 1, "me", b"digest"),
    "queue.assign_waiting": (ZOOM,),
    "queue.expire": (100,),
    "queue.place": ("waiting",),
    "queue.page": (ZOOM, 100, "waiting", ZOOM, 51),
    "pools.standing": ([ZOOM],),
    "transitions.timeline": ("bot",),
    "launches.of_bot": ("bot", 100),
    "launches.outcomes": (["bot"],),
    "gauges.read": (),
    "slots.asked_comparisons": (["process/a"],),
    "events.of_bot": ("bot", 0, 200, 2**20),
    "events.of_slot": ("slot", 2**62, 200, 2**20),
    "events.read": (0, 0, 500),
    "events.bounds": (),
    "reservations.reserve_due": (
        "me",
        15_000,
        10,
        ["process/a"],
        1_500_000,
        ["process"],
        "process",
    ),
    "reservations.reserve": ("slot", "me", 15_000),
    "reservations.renew": ("me", ["slot"], 15_000),
    "reservations.rest": ("slot", 1, "me"),
    "reservations.give_back": ("slot", "me", 1, "deploying", 1000, None, 0),
    "pulls.settle": ("process", "a"),
    "pulls.wake": ("process", "a", "bot:1", 0),
    "pulls.take": ("process", "a", "bot:1", "me", 15_000, None, None),
    "pulls.take_ahead": ("process", "a", "me", 15_000, 60_000),
    "pulls.urgent": ("process", "a", "bot:1"),
    "bots.wanted_container_logs": (["process/a"],),
    "hosts.has_failed": ("process", "a"),
    "hosts.note_failure": (
        {"engine": "process", "host": "a", "what": "slot 1", "image": "", "reason": "away"},
        5,
        120_000,
        60_000,
    ),
    "hosts.admit_deployment": ("slot", 1, 4, 5000),
    "hosts.wake_deployments": ("process", "a", 4),
}
# Those that find nothing here, or return none of what they change.
QUIET = {
    *("queue.expire", "queue.assign_waiting", "transitions.timeline"),
    *("events.of_bot", "events.of_slot"),
    *("reservations.renew", "reservations.give_back", "pulls.wake"),
    *("slots.set_token", "slots.of_token", "slots.of_host", "slots.without_container"),
    *(
        "bots.wanted_container_logs",
        "bots.leaving",
        "slots.asked_comparisons",
        "pulls.take_ahead",
        "pulls.urgent",
        "pulls.settle",
        "slots.tell_pull_error",
        "bots.had_container",
        "hosts.has_failed",
    ),
}


def sql(name: str) -> str:
    """A query by its noun and its name; what follows tells of its arguments."""
    noun, query = name.partition(" ")[0].split(".")
    return named_queries(noun)[query]


@pytest.mark.parametrize("name", HOT)
async def test_a_hot_query_reads_no_table_as_a_whole(crowded: Database, name: str) -> None:
    (slot,) = await crowded.fetch(
        "SELECT id, assigned_bot_id FROM bot_pool_slots WHERE slot_name = 'pool-zoom-001'"
    )
    known = {
        "slot": slot["id"],
        "bot": slot["assigned_bot_id"],
        "waiting": slot["assigned_bot_id"] + WAITING // 2,
    }

    def argument(value: Any) -> Any:
        if isinstance(value, list):
            return [argument(item) for item in value]
        if isinstance(value, dict):
            return {key: argument(item) for key, item in value.items()}
        return known.get(value, value) if isinstance(value, str) else value

    transaction = crowded.transaction()
    connection = await transaction.__aenter__()
    try:
        if name in {"slots.make_idle", "slots.fail"}:
            await connection.execute(RELEASED.format(**known))
        before = await read_whole(connection)
        rows = await connection.fetch(sql(name), *map(argument, HOT[name]))
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
        ("bots.of_container", "bots_container_ref"),
        ("slots.of_bots", "bot_pool_slots_assigned_bot_id_key"),
        ("queue.expire", "bot_pool_queue_timeout"),
        ("queue.page", "bot_pool_queue_order"),
        ("transitions.timeline", "transitions_bot"),
        ("events.of_bot", "transitions_bot"),
        ("events.of_bot", "bot_events_bot"),
        ("events.of_slot", "transitions_slot"),
        ("events.read", "bot_events_xid"),
        ("reservations.reserve_due", "bot_pool_slots_due"),
        ("pulls.wake", "bot_pool_slots_deploying"),
        ("slots.of_token", "bot_pool_slots_token_hash_key"),
        ("slots.of_host", "bot_pool_slots_host"),
        ("gauges.read", "bot_pool_slots_host"),
        ("events.bounds", "transitions_xid"),
        ("bots.leaving", "bot_pool_slots_due"),
    ],
)
async def test_a_hot_query_uses_the_index_made_for_it(
    crowded: Database, name: str, index: str
) -> None:
    arguments = {**HOT, "slots.of_bots": ([1],)}[name]
    types = {"bot": 1, "slot": 1, "waiting": 1}
    rows = await crowded.fetch(
        f"EXPLAIN {sql(name)}",
        *(types.get(value, value) if isinstance(value, str) else value for value in arguments),
    )
    plan = "\n".join(row[0] for row in rows)
    assert f"using {index} on" in plan


@pytest.mark.parametrize("name", ["bots.create", "queue.place", "queue.page"])
async def test_a_place_in_the_queue_is_told_without_counting_it_all(
    crowded: Database, name: str
) -> None:
    """Blocks of 1,024 are summed up, and only one of them is counted, from its end."""
    read = (
        "SELECT coalesce(sum(idx_tup_fetch), 0)::integer FROM pg_stat_xact_user_tables"
        " WHERE relname IN ('bot_pool_queue', 'queue_counts', 'queue_changes')"
    )
    arguments = [WAITING - 100 if value == "waiting" else value for value in HOT[name]]
    async with crowded.transaction() as connection:
        # What is read from an index alone is not told apart otherwise.
        await connection.execute("SET LOCAL enable_indexonlyscan = off; DISCARD PLANS")
        before = await connection.fetchval(read)
        assert await connection.fetch(sql(name), *arguments)
        after = await connection.fetchval(read)
    assert 0 < after - before <= 1024 + 200


async def test_a_page_of_the_record_reads_no_more_than_a_page(crowded: Database) -> None:
    fetched = (
        "SELECT sum(idx_tup_fetch)::integer FROM pg_stat_xact_user_tables"
        " WHERE relname IN ('bots', 'transitions')"
    )
    async with crowded.transaction() as connection:
        before = await connection.fetchval(fetched)
        rows = await connection.fetch(sql("events.read"), 0, 0, 500)
        after = await connection.fetchval(fetched)
    assert len(rows) == 500
    assert after - before <= 2 * 500


MARKED = """
SET LOCAL session_replication_role = replica;
UPDATE bots SET metadata = jsonb_build_object('team', id % 100, 'order', id)
WHERE status = 'DONE' AND id % 10 = 0;
UPDATE bots SET meeting_url = 'https://zoom.us/j/1' WHERE status = 'DONE' AND id % 10000 = 0;
ANALYZE bots;
"""


async def test_a_list_by_metadata_meeting_or_time_reads_little_beyond_what_it_shows(
    crowded: Database,
) -> None:
    fetched = "SELECT idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'bots'"
    now = (await crowded.fetch("SELECT now()"))[0][0]
    middle = now - timedelta(seconds=BOTS // 2)

    def metadata(**wanted: int) -> dict[str, Any]:
        return {"metadata": [({key: str(value)}, {key: value}) for key, value in wanted.items()]}

    transaction = crowded.transaction()
    connection = await transaction.__aenter__()
    try:
        await connection.execute(MARKED)
        for wanted, found, most in (
            (metadata(order=50_000), 1, 20),
            (metadata(team=70), 50, 2500),
            ({"meeting_url": "https://zoom.us/j/1"}, 20, 50),
            ({"created_before": middle}, 50, 1200),
            ({"created_after": middle, "created_before": middle + timedelta(seconds=20)}, 20, 2200),
            ({"created_after": now + timedelta(days=1)}, 0, 10),
        ):
            before = await connection.fetchval(fetched)
            rows = await connection.fetch(sql("bots.page"), BotPage(**wanted))
            after = await connection.fetchval(fetched)
            assert (len(rows), after - before <= most) == (found, True), (wanted, after - before)
    finally:
        await transaction.__aexit__(KeyError, KeyError(), None)


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("insights.launches", 2 * 3600),
        ("insights.outcomes", 3600),
        ("insights.waits", 3600),
        # Bots that were created up to a day before may still be there.
        ("insights.load", 25 * 3600),
        ("insights.used", 25 * 3600),
    ],
)
async def test_insights_of_an_hour_read_the_bots_of_that_hour(
    crowded: Database, name: str, most: int
) -> None:
    fetched = (
        "SELECT coalesce(sum(idx_tup_fetch + seq_tup_read), 0)::integer FROM"
        " pg_stat_xact_user_tables WHERE relname IN ('bots', 'transitions')"
    )
    until = datetime.now(UTC) - timedelta(hours=2)
    steps = {"launches": (60, 1), "outcomes": (60,), "waits": (60, 1), "load": (60,)}.get(
        name.split(".")[1], ()
    )
    async with crowded.transaction() as connection:
        before = await connection.fetchval(fetched)
        await connection.fetch(sql(name), until - timedelta(hours=1), until, None, None, *steps)
        after = await connection.fetchval(fetched)
    assert after - before <= most * 1.1
