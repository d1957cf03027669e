-- name: of_bot
-- How far the last launch of a bot has come, and when; and how long its phases took in the last $2 launches
-- of its platform that came into their calls (p5, p50, p95 in ms).
WITH bot AS MATERIALIZED (
    SELECT * FROM bots WHERE id = $1
),
lately AS MATERIALIZED (
    SELECT launch.* FROM (
        SELECT t.bot_id FROM bot, LATERAL (
            SELECT bot_id FROM transitions
            WHERE platform = bot.platform AND machine = 'bot'
                AND to_status = 'IN_CALL' AND from_status <> 'IN_CALL'
            ORDER BY id DESC
            LIMIT $2
        ) t
    ) newest
    JOIN bots b ON b.id = newest.bot_id AND b.id <> $1 AND b.joined_at IS NOT NULL,
        LATERAL launch_phases(b) launch
),
usual AS (
    SELECT
        count(*) AS usual_of,
        percentile_cont('{0.05, 0.5, 0.95}'::float8[]) WITHIN GROUP (ORDER BY queued) AS queued,
        percentile_cont('{0.05, 0.5, 0.95}'::float8[]) WITHIN GROUP (ORDER BY pulled) AS pulled,
        percentile_cont('{0.05, 0.5, 0.95}'::float8[]) WITHIN GROUP (ORDER BY created) AS created,
        percentile_cont('{0.05, 0.5, 0.95}'::float8[]) WITHIN GROUP (ORDER BY started) AS started,
        percentile_cont('{0.05, 0.5, 0.95}'::float8[]) WITHIN GROUP (ORDER BY claimed) AS claimed,
        percentile_cont('{0.05, 0.5, 0.95}'::float8[]) WITHIN GROUP (ORDER BY joined) AS joined,
        percentile_cont('{0.05, 0.5, 0.95}'::float8[]) WITHIN GROUP (ORDER BY in_call) AS in_call,
        percentile_cont('{0.05, 0.5, 0.95}'::float8[]) WITHIN GROUP (ORDER BY total) AS total
    FROM lately
)
SELECT
    bot.id, bot.launch_attempts, coalesce(bot.relaunched_at, bot.created_at) AS began_at,
    ARRAY[
        bot.assigned_at, bot.image_at, bot.container_at, bot.started_at, bot.claimed_at, bot.waiting_room_at,
        bot.joined_at
    ] AS ends,
    usual.*
FROM bot, usual;

-- name: outcomes
-- What came of these bots ($1), and how far the last launch of each has come. wanted_at: since when it was
-- wanted in its call, that is its creation, or the relaunch of one that had been there.
SELECT
    b.id AS bot_id, b.correlation_id, b.platform, coalesce(s.engine, p.engine) AS engine, s.host,
    b.slot_name, b.status, b.failure_cause, b.failure_reason, greatest(b.launch_attempts, 1) AS attempt,
    CASE
        WHEN EXISTS (
            SELECT FROM transitions t
            WHERE t.bot_id = b.id AND t.machine = 'bot' AND t.to_status = 'IN_CALL' AND t.at < b.relaunched_at
        ) THEN b.relaunched_at
        ELSE b.created_at
    END AS wanted_at,
    coalesce(b.relaunched_at, b.created_at) AS began_at, b.ended_at,
    ARRAY[
        b.assigned_at, b.image_at, b.container_at, b.started_at, b.claimed_at, b.waiting_room_at,
        b.joined_at
    ] AS ends
FROM bots b
JOIN pools p ON p.platform = b.platform
LEFT JOIN bot_pool_slots s ON s.slot_name = b.slot_name
WHERE b.id = ANY ($1::bigint[]);
