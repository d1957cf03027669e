-- name: slots
-- For each platform that has slots in error: how many, and the one that is so for longest.
SELECT
    platform, count(*) AS count, min(last_released_at) AS since,
    (array_agg(id ORDER BY last_released_at, id))[1] AS slot_id,
    (array_agg(slot_name ORDER BY last_released_at, id))[1] AS slot_name,
    (array_agg(error_message ORDER BY last_released_at, id))[1] AS error
FROM bot_pool_slots
WHERE status = 'error'
GROUP BY platform
ORDER BY platform;

-- name: hosts
-- The hosts that get no new work: unhealthy, drained, or without an answer. Not those in no settings any more.
SELECT engine, host, open, drained_at, unhealthy_since, probe_at, reason FROM hosts
WHERE (unhealthy_since IS NOT NULL OR drained_at IS NOT NULL OR NOT open)
    AND NOT host_given_up(engine, host)
ORDER BY engine, host;

-- name: pulls
-- The images that could not be brought to their hosts, and how many bots there wait for them.
SELECT
    p.engine, p.host, p.image, p.error, p.attempts, p.started_at,
    (
        SELECT count(*) FROM bot_pool_slots s
        WHERE s.engine = p.engine AND s.host = p.host AND s.image = p.image
            AND s.status = 'deploying' AND s.waits_for = 'image'
    ) AS waiting
FROM image_pulls p
WHERE p.error IS NOT NULL
ORDER BY p.engine, p.host, p.image;

-- name: waits
-- For each platform where bots wait: the first in line, how long it waited and was told to wait; and the
-- bot whose deadline is next, and how many have theirs within $1 ms.
SELECT
    p.platform, first.bot_id AS first_bot_id, first.queued_at, botpool_now() - first.queued_at AS waited,
    (
        SELECT (t.details ->> 'estimatedWaitMs')::bigint FROM transitions t
        WHERE t.bot_id = first.bot_id AND t.machine = 'bot' AND t.to_status = 'QUEUED'
        ORDER BY t.id
        LIMIT 1
    ) AS told_ms,
    next.bot_id AS next_bot_id, next.timeout_at, next.timeout_at - botpool_now() AS left, near.count AS near
FROM pools p, LATERAL (
    SELECT bot_id, queued_at FROM bot_pool_queue WHERE platform = p.platform
    ORDER BY priority, bot_id
    LIMIT 1
) first, LATERAL (
    SELECT bot_id, timeout_at FROM bot_pool_queue WHERE platform = p.platform
    ORDER BY timeout_at
    LIMIT 1
) next, LATERAL (
    SELECT count(*) AS count FROM bot_pool_queue
    WHERE platform = p.platform AND timeout_at <= botpool_now() + $1 * interval '1 millisecond'
) near
ORDER BY p.platform;

-- name: pools
-- The pools that are paused, or full while bots wait.
SELECT p.platform, p.size, p.max_size, p.paused_at, p.paused_by, p.pause_reason, waiting.bots
FROM pools p, LATERAL (
    SELECT coalesce(sum(w.bots), 0)::bigint AS bots FROM waiting_bots w WHERE w.platform = p.platform
) waiting
WHERE p.paused_at IS NOT NULL OR (p.size >= p.max_size AND waiting.bots > 0)
ORDER BY p.platform;

-- name: failures
-- How many bots failed in the last $1 ms, by platform and cause, and the last one of each.
SELECT
    b.platform, b.failure_cause, count(*) AS count, min(t.at) AS since, max(b.id) AS bot_id,
    (array_agg(b.failure_reason ORDER BY t.id DESC))[1] AS error
FROM transitions t JOIN bots b ON b.id = t.bot_id
WHERE t.machine = 'bot' AND t.to_status = 'FATAL' AND t.at > botpool_now() - $1 * interval '1 millisecond'
    AND b.failure_cause IS NOT NULL
GROUP BY b.platform, b.failure_cause
ORDER BY count(*) DESC, b.platform, b.failure_cause;

-- name: webhooks
-- The endpoints to which nothing is sent, or nothing could be delivered for $1 ms.
SELECT id, description, failing_since, paused_at, pause_reason FROM webhook_endpoints
WHERE paused_at IS NOT NULL OR failing_since <= botpool_now() - $1 * interval '1 millisecond'
ORDER BY id;
