"""A database that has seen much: for measurements, and for tests of query plans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botpool.store.postgres.database import LONG_SECONDS

if TYPE_CHECKING:
    from botpool.store import Database

_IDLE_SLOTS = """
INSERT INTO bot_pool_slots (
    platform, number, slot_name, engine, container_ref, status, lease,
    last_used_at, last_assigned_at, last_released_at, created_at
)
SELECT
    $1, n, slot_name($1, n), 'process', $1 || '/' || n, 'idle', 1,
    now() - n * interval '1 second', now(), now(), now()
FROM generate_series(1, $2::integer) n
"""

_ENDED_BOTS = """
INSERT INTO bots (
    platform, meeting_url, bot_display_name, status, priority, queue_timeout_ms, correlation_id,
    metadata, config, launch_attempts, slot_name, container_ref, created_at, started_at, ended_at,
    assigned_at, image_at, claimed_at, waiting_room_at, joined_at
)
SELECT
    $1, 'https://meet.google.com/abc-defg-hij', 'Notes', 'DONE', 100, 300000, n::text,
    '{}', '{}', 1, slot_name($1, n % 100 + 1), $1 || '/' || n % 100 + 1, at, at, at,
    at, at, at, at, at
FROM generate_series(1, $2::integer) n, LATERAL (
    SELECT now() - ($2 - n) * interval '1 second' AS at
) time
"""

_TRANSITIONS = """
INSERT INTO transitions (
    at, machine, platform, from_status, to_status,
    slot_id, slot_name, lease, bot_id, reason, details
)
SELECT
    now() - ($2 - n) * interval '1 second', machine, $1, from_status, to_status,
    n % 100 + 1, slot_name($1, n % 100 + 1), n, CASE machine WHEN 'bot' THEN n END, 'long ago',
    '{"occupiedMs": 60000}'
FROM generate_series(1, $2::integer) n, (
    VALUES
        ('bot', 'JOINING_CALL', 'IN_CALL'), ('bot', 'IN_CALL', 'DONE'),
        ('slot', 'releasing', 'idle')
) step (machine, from_status, to_status)
"""

_WAITING_BOTS = """
WITH bot AS (
    INSERT INTO bots (
        platform, meeting_url, bot_display_name, status, priority, queue_timeout_ms, correlation_id,
        metadata, config, created_at
    )
    SELECT
        $1, 'https://meet.google.com/abc-defg-hij', 'Notes', 'QUEUED', 100, 300000, n::text,
        '{}', '{}', now()
    FROM generate_series(1, $2::integer) n
    RETURNING *
), entry AS (
    INSERT INTO bot_pool_queue (bot_id, platform, priority, queued_at, timeout_at)
    SELECT id, platform, priority, created_at, created_at + interval '1 day' FROM bot
    RETURNING *
)
INSERT INTO queue_changes (platform, priority, block, bots)
SELECT platform, priority, queue_block(bot_id), count(*) FROM entry GROUP BY 1, 2, 3
"""


async def crowd(
    database: Database, platform: str, *, slots: int = 0, bots: int = 0, waiting: int = 0
) -> None:
    """Add idle slots, bots that ended long ago with what was written of them, bots that wait."""
    async with database.transaction() as connection:
        # Past the triggers: a million checks of what is known to be right would take minutes.
        await connection.execute("SET LOCAL session_replication_role = replica")
        await connection.execute(_IDLE_SLOTS, platform, slots)
        await connection.execute(
            "UPDATE pools SET size = size + $2 WHERE platform = $1", platform, slots
        )
        await connection.execute(_ENDED_BOTS, platform, bots, timeout=LONG_SECONDS)
        await connection.execute(_TRANSITIONS, platform, bots, timeout=LONG_SECONDS)
        await connection.execute(_WAITING_BOTS, platform, waiting)
    await database.execute("VACUUM ANALYZE")
