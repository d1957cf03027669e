-- name: set
-- Say how far the pool of a platform may grow, how many slots it keeps warm, and what new ones are made of.
SELECT * FROM set_pool($1, $2, $3, $4, $5);

-- name: pause
-- Launch no bot of a platform ($1) until it is resumed. $2: who said so; $3: why.
SELECT * FROM pause_pool($1, $2, $3);

-- name: resume
-- Launch bots of a platform again; those who wait are served at once. $2: who said so.
SELECT * FROM resume_pool($1, $2);

-- name: standing
-- For these platforms: whether the pool has its maximum of slots, since when and why it is paused, and why none
-- of its hosts gets new work, if that is so.
SELECT
    platform, size >= max_size AS "full", paused_at, pause_reason,
    (
        SELECT string_agg(
            h.host || CASE
                WHEN h.drained_at IS NOT NULL THEN ' is drained'
                WHEN h.open THEN ' is unhealthy' ELSE ' does not answer'
            END || CASE WHEN h.drained_at IS NULL THEN coalesce(': ' || h.reason, '') ELSE '' END,
            '; ' ORDER BY h.host
        )
        FROM hosts h WHERE h.engine = pools.engine
        HAVING NOT bool_or(gets_work(h))
    ) AS trouble
FROM pools
WHERE platform = ANY ($1::text[]);

-- name: numbers
-- For each platform, how many slots it has in each status, how many bots wait, its maximum, how many slots
-- it keeps warm, and whether it is paused.
SELECT
    p.platform, p.max_size, p.warm, p.paused_at, p.paused_by, p.pause_reason,
    count(s.id) AS total,
    count(s.id) FILTER (WHERE s.status = 'idle') AS idle,
    count(s.id) FILTER (WHERE s.status = 'deploying') AS deploying,
    count(s.id) FILTER (WHERE s.status = 'busy') AS busy,
    count(s.id) FILTER (WHERE s.status = 'releasing') AS releasing,
    count(s.id) FILTER (WHERE s.status = 'error') AS error,
    coalesce((SELECT sum(bots) FROM waiting_bots w WHERE w.platform = p.platform), 0)::bigint AS queued
FROM pools p LEFT JOIN bot_pool_slots s ON s.platform = p.platform
GROUP BY p.platform
ORDER BY p.platform;
