-- name: assign_waiting
-- Give what is free to those who wait, growing the pool where it may grow.
SELECT * FROM assign_waiting($1);

-- name: expire
-- End bots that waited past their deadline, at most $1 of them, the longest overdue first.
WITH clock AS MATERIALIZED (
    SELECT botpool_now() AS now
),
expired AS (
    DELETE FROM bot_pool_queue
    WHERE id = ANY (ARRAY(
        SELECT id FROM bot_pool_queue
        WHERE timeout_at <= (SELECT now FROM clock)
        ORDER BY timeout_at
        LIMIT $1
        FOR NO KEY UPDATE SKIP LOCKED
    ))
    RETURNING *
),
bot AS (
    UPDATE bots b
    SET status = 'FATAL', ended_at = now, failure_cause = 'queue_timeout',
        failure_reason = 'no slot became free within ' || queue_timeout_ms || ' ms' || coalesce((
            SELECT '; it was launched before: ' || t.reason FROM transitions t
            WHERE t.bot_id = b.id AND launch_attempts > 0
                AND t.machine = 'bot' AND t.to_status = 'QUEUED'
            ORDER BY t.id DESC
            LIMIT 1
        ), '')
    FROM expired, clock WHERE b.id = expired.bot_id
    RETURNING b.*, expired.queued_at, expired.timeout_at
)
INSERT INTO transitions (
    at, machine, platform, from_status, to_status, bot_id, correlation_id, reason, details
)
SELECT
    now, 'bot', platform, 'QUEUED', 'FATAL', id, correlation_id, failure_reason,
    jsonb_build_object('failureCause', failure_cause, 'queuedAt', queued_at, 'timeoutAt', timeout_at)
FROM bot, clock
RETURNING *;

-- name: place
-- A waiting bot's place in the queue of its platform, and its estimated wait.
SELECT position, ceil(position * wait_ms_a_place(platform))::bigint AS estimated_wait_ms
FROM bot_pool_queue entry, LATERAL (
    SELECT count(*) AS position FROM bot_pool_queue ahead
    WHERE ahead.platform = entry.platform
        AND (ahead.priority, ahead.queued_at, ahead.bot_id) <= (entry.priority, entry.queued_at, entry.bot_id)
) place
WHERE entry.bot_id = $1;

-- name: entries
-- The bots that wait for a slot of a platform, in the order in which they will get one.
SELECT *, row_number() OVER (ORDER BY priority, queued_at, bot_id) AS position
FROM bot_pool_queue
WHERE platform = $1
ORDER BY priority, queued_at, bot_id;

-- name: overdue
-- Bots that wait past their deadline.
SELECT bot_id FROM bot_pool_queue WHERE timeout_at <= botpool_now() ORDER BY timeout_at;
