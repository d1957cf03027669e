-- name: create_bots_on_idle_slots
-- Create bots of a platform, as many as there are idle slots and in this order, each on the slot
-- least recently used; none while others wait. Returns two transitions a bot: the slot's, its own.
WITH request AS (
    SELECT * FROM unnest(
        $2::text[], $3::text[], $4::integer[], $5::integer[], $6::text[], $7::jsonb[], $8::jsonb[],
        $9::bigint[], $10::text[], $11::text[], $12::text[], $13::bytea[], $14::integer[],
        $15::boolean[]
    ) WITH ORDINALITY AS r (
        meeting_url, bot_display_name, priority, queue_timeout_ms, correlation_id, metadata, config,
        key_id, callback_url, deduplication_key, idempotency_key, request_digest,
        max_launch_attempts, relaunch_in_call, n
    )
),
idle AS (
    SELECT id, slot_name, container_ref, lease + 1 AS lease, row_number() OVER () AS n
    FROM (
        SELECT id, slot_name, container_ref, lease
        FROM bot_pool_slots
        WHERE platform = $1 AND status = 'idle' AND NOT held
            AND NOT somebody_waits($1, '-infinity')
        ORDER BY last_used_at, id
        LIMIT cardinality($2::text[])
        FOR NO KEY UPDATE SKIP LOCKED
    ) least_recently_used
),
pair AS MATERIALIZED (
    SELECT
        nextval('bots_id_seq') AS bot_id, botpool_now() AS now, n,
        idle.id AS slot_id, slot_name, container_ref, lease,
        meeting_url, bot_display_name, priority, queue_timeout_ms, correlation_id, metadata, config,
        key_id, callback_url, deduplication_key, idempotency_key, request_digest,
        max_launch_attempts, relaunch_in_call
    FROM idle JOIN request USING (n)
),
bot AS (
    INSERT INTO bots (
        id, platform, meeting_url, bot_display_name, status, priority, queue_timeout_ms,
        correlation_id, metadata, config, launch_attempts, slot_name, container_ref, lease,
        created_at, key_id, callback_url, deduplication_key, idempotency_key, request_digest,
        max_launch_attempts, relaunch_in_call
    )
    SELECT
        bot_id, $1, meeting_url, bot_display_name, 'DEPLOYING', priority, queue_timeout_ms,
        correlation_id, metadata, config, 1, slot_name, container_ref, lease, now,
        key_id, callback_url, deduplication_key, idempotency_key, request_digest,
        max_launch_attempts, relaunch_in_call
    FROM pair
),
slot AS (
    UPDATE bot_pool_slots s
    SET status = 'deploying', assigned_bot_id = pair.bot_id, lease = pair.lease,
        last_used_at = now, last_assigned_at = now,
        error_message = NULL, deployment_ref = NULL, deployment_status = NULL
    FROM pair
    WHERE s.id = pair.slot_id
)
INSERT INTO transitions (
    at, machine, platform, from_status, to_status,
    slot_id, slot_name, container_ref, lease, bot_id, correlation_id, reason
)
SELECT
    now, machine, $1, from_status, to_status,
    slot_id, slot_name, container_ref, lease, bot_id, correlation_id, 'assigned to an idle slot'
FROM pair, (
    VALUES ('slot', 'idle', 'deploying'), ('bot', NULL, 'DEPLOYING')
) step (machine, from_status, to_status)
ORDER BY n, machine DESC
RETURNING *;

-- name: create_bots
-- Create bots of a platform under its lock: on an idle slot, on a new one, or in the queue.
SELECT * FROM create_bots($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15);

-- name: stop_bot
-- Cancel a bot that waits or deploys, tell one that runs to leave.
SELECT * FROM stop_bot($1, $2, $3);

-- name: advance_bot
-- Record a bot's own word under its lease: its slot is busy, and it has come as far as $3, if that
-- is a step forward from where it was ($4). To leave it has $7 ms; then its slot is looked at. $8:
-- whether it is the bot that says so, which is as good as a heartbeat.
WITH clock AS MATERIALIZED (
    SELECT botpool_now() AS now
),
holder AS MATERIALIZED (
    SELECT
        s.id, s.slot_name, s.platform, s.container_ref, s.lease, s.status AS slot_status,
        b.id AS bot_id, b.status AS bot_status, b.correlation_id
    FROM bot_pool_slots s JOIN bots b ON b.id = s.assigned_bot_id
    WHERE s.id = $1 AND s.lease = $2 AND b.ended_at IS NULL
    FOR NO KEY UPDATE
),
slot AS (
    UPDATE bot_pool_slots s
    SET status = 'busy', recovery_attempts = 0,
        due_at = CASE
            WHEN leaves THEN now + $7 * interval '1 millisecond'
            ELSE s.due_at
        END
    FROM holder, clock, LATERAL (
        SELECT $3 = 'LEAVING' AND bot_status = ANY ($4::text[]) AS leaves
    ) step
    WHERE s.id = holder.id AND (slot_status = 'deploying' OR leaves)
),
bot AS (
    UPDATE bots b
    SET status = CASE WHEN forward THEN $3 ELSE b.status END,
        started_at = CASE WHEN forward THEN coalesce(b.started_at, now) ELSE b.started_at END,
        last_heartbeat = CASE WHEN $8 THEN now ELSE b.last_heartbeat END
    FROM holder, clock, LATERAL (SELECT bot_status = ANY ($4::text[]) AS forward) step
    WHERE b.id = holder.bot_id AND (forward OR $8)
)
INSERT INTO transitions (
    at, machine, platform, from_status, to_status,
    slot_id, slot_name, container_ref, lease, bot_id, correlation_id, reason, details
)
SELECT
    now, machine, platform, from_status, to_status,
    id, slot_name, container_ref, lease, bot_id, correlation_id, $5, $6
FROM clock, holder, LATERAL (
    VALUES
        ('slot', slot_status, 'busy', slot_status = 'deploying'),
        ('bot', bot_status, $3::text, bot_status = ANY ($4::text[]))
) step (machine, from_status, to_status, taken)
WHERE taken
ORDER BY machine DESC
RETURNING *;

-- name: record_heartbeats
-- Note that the bots of these slots live. Returns a row for each lease that is the current one. Only
-- the bots are locked: a bot that has meanwhile left the slot tells so itself, by where it is.
WITH beating AS MATERIALIZED (
    SELECT s.id AS slot_id, s.lease, s.status AS slot_status, b.id, b.status AS bot_status
    FROM unnest($1::bigint[], $2::bigint[]) AS asked (slot_id, lease)
    JOIN bot_pool_slots s ON s.id = asked.slot_id AND s.lease = asked.lease
    JOIN bots b ON b.id = s.assigned_bot_id
    WHERE b.lease = s.lease AND b.slot_name = s.slot_name AND b.status = ANY (bot_holds_slot())
    ORDER BY b.id
    FOR NO KEY UPDATE OF b
)
UPDATE bots b SET last_heartbeat = botpool_now()
FROM beating
WHERE b.id = beating.id
RETURNING beating.slot_id, beating.lease, beating.slot_status, beating.bot_status;

-- name: get_bot_of_request
-- The bot that a caller's request was answered with.
SELECT * FROM bots WHERE coalesce(key_id, 0) = coalesce($1, 0) AND idempotency_key = $2;

-- name: get_bot_of_deduplication_key
-- The live bot that has a caller's deduplication key.
SELECT * FROM bots
WHERE coalesce(key_id, 0) = coalesce($1, 0) AND deduplication_key = $2 AND ended_at IS NULL;

-- name: list_bots
-- Bots before $1, newest first, at most $2: of a caller ($3), platform, statuses, container,
-- correlation or deduplication key, where these are given.
SELECT * FROM list_bots($1, $2, $3, $4, $5, $6, $7, $8);

-- name: get_bot
-- One bot.
SELECT * FROM bots WHERE id = $1;

-- name: get_bot_of_container
-- The bot that a container serves, or, after the release, the one that it served last.
SELECT b.* FROM bots b
WHERE b.id = coalesce(
    (SELECT assigned_bot_id FROM bot_pool_slots WHERE container_ref = $1),
    (SELECT id FROM bots WHERE container_ref = $1 ORDER BY lease DESC LIMIT 1)
);

-- name: prune_bots
-- Forget bots that ended before $1, at most $2 of them.
DELETE FROM bots WHERE id IN (
    SELECT id FROM bots b
    WHERE ended_at < $1 AND created_at < $1
        AND NOT EXISTS (SELECT FROM bot_pool_slots WHERE assigned_bot_id = b.id)
    LIMIT $2
)
RETURNING id;
