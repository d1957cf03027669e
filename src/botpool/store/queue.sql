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
        ORDER BY timeout_at, id
        LIMIT $1
        FOR NO KEY UPDATE SKIP LOCKED
    ))
    RETURNING *
),
bot AS (
    UPDATE bots b
    SET status = 'FATAL', ended_at = now, failure_cause = 'queue_timeout',
        failure_reason = CASE
            WHEN is_paused(b.platform)
                THEN 'launches of ' || b.platform || ' are paused, for longer than it waits: '
            ELSE 'no slot became free within '
        END || trim_scale(queue_timeout_ms / 1000.0) || ' s' || coalesce((
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
ORDER BY timeout_at, id
RETURNING *;

-- name: place
-- A waiting bot's place in the queue of its platform, and its estimated wait.
SELECT position, ceil(position * wait_ms_a_place(platform))::bigint AS estimated_wait_ms
FROM bot_pool_queue, LATERAL (SELECT bots_ahead(platform, priority, bot_id) + 1 AS position) place
WHERE bot_id = $1;

-- name: page
-- At most $5 bots that wait: those after a place ($1 platform, $2 priority, $3 bot), up to the last one of
-- platform $4, by platform and in the order in which they will get a slot.
WITH page AS MATERIALIZED (
    SELECT * FROM bot_pool_queue
    WHERE (platform, priority, bot_id) > ($1, $2::bigint, $3::bigint) AND platform <= $4
    ORDER BY platform, priority, bot_id
    LIMIT $5
),
first AS MATERIALIZED (
    SELECT platform, bots_ahead(platform, priority, bot_id) AS ahead
    FROM (SELECT DISTINCT ON (platform) * FROM page ORDER BY platform, priority, bot_id) entry
)
SELECT
    page.*, ahead + row_number() OVER (PARTITION BY platform ORDER BY priority, bot_id) AS position
FROM page JOIN first USING (platform)
ORDER BY platform, priority, bot_id;

-- name: overdue
-- Bots that wait past their deadline.
SELECT bot_id FROM bot_pool_queue WHERE timeout_at <= botpool_now() ORDER BY timeout_at, bot_id;
