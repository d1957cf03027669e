-- name: set
-- Say how far the pool of a platform may grow, how many slots it keeps warm, and what new ones are made of.
SELECT * FROM set_pool($1, $2, $3, $4, $5);

-- name: is_full
-- Whether a pool has its maximum of slots.
SELECT FROM pools WHERE platform = $1 AND size >= max_size;

-- name: numbers
-- For each platform, how many slots it has in each status, how many bots wait, its maximum, and how many
-- slots it keeps warm.
SELECT
    p.platform, p.max_size, p.warm,
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
