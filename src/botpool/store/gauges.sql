-- name: read
-- How things stand: slots by place and status, each pool with its queue, hosts but those in no settings any
-- more, and the webhooks that are to be delivered.
SELECT
    (
        SELECT coalesce(jsonb_agg(counted), '[]') FROM (
            SELECT platform, engine, coalesce(host, '') AS host, status, count(*) AS count
            FROM bot_pool_slots
            GROUP BY bot_pool_slots.engine, bot_pool_slots.host, platform, status
        ) counted
    ) AS slots,
    (
        SELECT coalesce(jsonb_agg(standing ORDER BY standing.platform), '[]') FROM (
            SELECT
                p.platform, p.max_size, count(q.bot_id) AS queued,
                coalesce(ms_between(min(q.queued_at), botpool_now()) / 1000, 0) AS oldest_seconds
            FROM pools p LEFT JOIN bot_pool_queue q ON q.platform = p.platform
            GROUP BY p.platform
        ) standing
    ) AS pools,
    (
        SELECT coalesce(jsonb_agg(known ORDER BY known.engine, known.host), '[]') FROM (
            SELECT engine, host, open AND unhealthy_since IS NULL AS healthy FROM hosts
            WHERE NOT host_given_up(engine, host)
        ) known
    ) AS hosts,
    (
        SELECT count(*) FROM webhook_deliveries
        WHERE next_attempt_at IS NOT NULL AND (endpoint_id IS NULL OR endpoint_id <> ALL (ARRAY(
            SELECT id FROM webhook_endpoints WHERE paused_at IS NOT NULL
        )))
    ) AS webhook_backlog;
