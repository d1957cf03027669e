-- name: set
-- Say how far the pool of a platform may grow, and what its new slots are made of.
SELECT * FROM set_pool($1, $2, $3, $4);

-- name: numbers
-- For each platform, how many slots it has in each status, how many bots wait, and its maximum.
SELECT
    p.platform, p.max_size,
    count(s.id) AS total,
    count(s.id) FILTER (WHERE s.status = 'idle') AS idle,
    count(s.id) FILTER (WHERE s.status = 'deploying') AS deploying,
    count(s.id) FILTER (WHERE s.status = 'busy') AS busy,
    count(s.id) FILTER (WHERE s.status = 'releasing') AS releasing,
    count(s.id) FILTER (WHERE s.status = 'error') AS error,
    (SELECT count(*) FROM bot_pool_queue q WHERE q.platform = p.platform) AS queued
FROM pools p LEFT JOIN bot_pool_slots s ON s.platform = p.platform
GROUP BY p.platform
ORDER BY p.platform;
