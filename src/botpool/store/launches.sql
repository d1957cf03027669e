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
