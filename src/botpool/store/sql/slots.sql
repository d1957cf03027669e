-- name: end_assignments
-- End assignments, each under its lease: the bot takes its last status (unless it ended before), and
-- the slot goes to releasing, or to error. Leaves alone a bot heard since `unless_heard_since`, and a
-- slot that is not what it `was`.
WITH asked AS (
    SELECT * FROM unnest(
        $1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[],
        $7::timestamptz[], $8::text[], $9::jsonb[]
    ) AS a (
        slot_id, lease, slot_status, bot_status, reason, failure_cause, unless_heard_since, was,
        details
    )
),
ending AS MATERIALIZED (
    SELECT
        botpool_now() AS now,
        s.id, s.slot_name, s.platform, s.container_ref, s.lease, s.status AS slot_from,
        s.last_assigned_at, b.id AS bot_id, b.status AS bot_from, b.correlation_id, b.last_heartbeat,
        asked.slot_status AS slot_to, asked.reason, asked.failure_cause, asked.details,
        CASE WHEN b.ended_at IS NULL THEN asked.bot_status ELSE b.status END AS bot_to
    FROM asked
    JOIN bot_pool_slots s ON s.id = asked.slot_id AND s.lease = asked.lease
    JOIN bots b ON b.id = s.assigned_bot_id
    WHERE (
            unless_heard_since IS NULL
            OR greatest(b.last_heartbeat, b.started_at, s.last_assigned_at) < unless_heard_since
        )
        AND s.status = coalesce(was, s.status)
    ORDER BY s.id
    FOR NO KEY UPDATE OF s, b
),
slot AS (
    UPDATE bot_pool_slots s
    SET status = slot_to, assigned_bot_id = NULL, last_released_at = now,
        error_message = CASE WHEN slot_to = 'error' THEN reason END
    FROM ending WHERE s.id = ending.id
),
bot AS (
    UPDATE bots b
    SET status = bot_to, ended_at = now, failure_cause = ending.failure_cause,
        failure_reason = CASE WHEN bot_to = 'FATAL' THEN reason END
    FROM ending WHERE b.id = ending.bot_id AND bot_from <> bot_to
)
INSERT INTO transitions (
    at, machine, platform, from_status, to_status,
    slot_id, slot_name, container_ref, lease, bot_id, correlation_id, reason, details
)
SELECT
    now, machine, platform, from_status, to_status,
    id, slot_name, container_ref, lease, bot_id, correlation_id, reason, step.details
FROM ending, LATERAL (
    VALUES
        ('slot', slot_from, slot_to, jsonb_build_object(
            'botStatus', bot_to,
            'heldMs', milliseconds(now - last_assigned_at),
            'lastHeartbeat', last_heartbeat
        ) || ending.details),
        ('bot', bot_from, bot_to, ending.details)
) step (machine, from_status, to_status, details)
WHERE from_status <> to_status
ORDER BY bot_id, machine DESC
RETURNING *;

-- name: free_slots
-- Slots proved stopped become idle under their lease, and go to the bots that wait for them.
SELECT * FROM free_slots($1, $2, $3, $4);

-- name: relaunch_bot
-- Take a bot that was not in its call yet off its slot, and back to its place in the queue.
SELECT * FROM relaunch_bot($1, $2, $3, $4, $5, $6, $7);

-- name: fail_slot
-- A slot without a bot, under its lease, goes from releasing to error.
WITH failed AS (
    UPDATE bot_pool_slots SET status = 'error', error_message = $3
    WHERE id = $1 AND lease = $2 AND status = 'releasing'
    RETURNING *
)
INSERT INTO transitions (
    at, machine, platform, from_status, to_status, slot_id, slot_name, container_ref, lease, reason
)
SELECT botpool_now(), 'slot', platform, 'releasing', 'error', id, slot_name, container_ref, lease, $3
FROM failed
RETURNING *;

-- name: delete_slot
-- Delete a slot that is in error, under its lease; its name, and room for another, are free.
SELECT * FROM delete_slot($1, $2, $3);

-- name: drain_slot
-- Let a slot get no further bot, and be deleted when it has none.
SELECT * FROM drain_slot($1, $2);

-- name: import_slot
-- Add a slot whose container is there already. It is idle once that is proved stopped.
WITH slot AS (
    INSERT INTO bot_pool_slots (
        platform, number, slot_name, engine, host, image, container_ref,
        status, lease, last_used_at, last_assigned_at, created_at
    )
    VALUES (
        $1, $2, $3, $4, $5, $6, $7, 'releasing', 0, botpool_now(), botpool_now(), botpool_now()
    )
    RETURNING *
)
INSERT INTO transitions (
    at, machine, platform, to_status, slot_id, slot_name, container_ref, lease, reason
)
SELECT botpool_now(), 'slot', platform, status, id, slot_name, container_ref, lease, 'imported'
FROM slot
RETURNING *;

-- name: retry_slot
-- Let a slot in error be tried at once, as if it had never been.
UPDATE bot_pool_slots SET recovery_attempts = 0, due_at = botpool_now(), wakes = wakes + 1
WHERE id = $1 AND status = 'error'
RETURNING id;

-- name: record_container
-- Note, under the lease, which container a slot has now ($3) and on which host ($4).
WITH slot AS MATERIALIZED (
    SELECT s.*, b.correlation_id FROM bot_pool_slots s LEFT JOIN bots b ON b.id = s.assigned_bot_id
    WHERE s.id = $1 AND s.lease = $2 AND (s.container_ref, s.host) IS DISTINCT FROM ($3, $4)
    FOR NO KEY UPDATE OF s
),
changed AS (
    UPDATE bot_pool_slots s SET container_ref = $3, host = $4, creations = $5
    FROM slot WHERE s.id = slot.id
),
bot AS (
    UPDATE bots b SET container_ref = $3 FROM slot WHERE b.id = slot.assigned_bot_id
)
INSERT INTO transitions (
    at, machine, platform, from_status, to_status,
    slot_id, slot_name, container_ref, lease, bot_id, correlation_id, reason, details
)
SELECT
    botpool_now(), 'slot', platform, status, status,
    id, slot_name, $3, lease, assigned_bot_id, correlation_id,
    CASE
        WHEN container_ref IS NULL THEN 'container created'
        WHEN container_ref = $3 THEN 'container moved'
        ELSE 'container created again'
    END,
    jsonb_build_object('oldContainerRef', container_ref, 'newContainerRef', $3::text, 'attempt', $5::integer)
FROM slot
RETURNING *;

-- name: record_deployment
-- Note, under the lease, which deployment a slot is in and its status, where that is news.
WITH slot AS MATERIALIZED (
    SELECT s.*, b.correlation_id FROM bot_pool_slots s JOIN bots b ON b.id = s.assigned_bot_id
    WHERE s.id = $1 AND s.lease = $2
        AND (s.deployment_ref, s.deployment_status) IS DISTINCT FROM ($3, $4)
    FOR NO KEY UPDATE OF s
),
changed AS (
    UPDATE bot_pool_slots s SET deployment_ref = $3, deployment_status = $4
    FROM slot WHERE s.id = slot.id
)
INSERT INTO transitions (
    at, machine, platform, from_status, to_status,
    slot_id, slot_name, container_ref, lease, bot_id, correlation_id, reason, details
)
SELECT
    botpool_now(), 'slot', platform, status, status,
    id, slot_name, container_ref, lease, assigned_bot_id, correlation_id,
    'deployment ' || $4,
    jsonb_build_object(
        'deployment', $3::text,
        'oldStatus', CASE WHEN deployment_ref IS NOT DISTINCT FROM $3 THEN deployment_status END,
        'newStatus', $4::text
    )
FROM slot
RETURNING *;

-- name: get_slot
-- One slot.
SELECT *, botpool_now() AS read_at FROM bot_pool_slots WHERE id = $1;

-- name: get_slot_of_bot
-- The slot that a bot is on now.
SELECT *, botpool_now() AS read_at FROM bot_pool_slots WHERE assigned_bot_id = $1;

-- name: list_slots
-- Every slot, by name.
SELECT *, botpool_now() AS read_at FROM bot_pool_slots ORDER BY platform, number;
