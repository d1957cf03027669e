-- name: launches
-- How many launches came into their calls, and how long their phases took (p50, p95, p99 in ms; of every
-- $6-th bot, where they are many), by the step in which their bots were created and, without a step, in all.
WITH counted AS (
    SELECT date_bin($5 * interval '1 second', created_at, $1) AS at, count(*) AS count
    FROM bots
    WHERE created_at >= $1 AND created_at < $2 AND joined_at IS NOT NULL
        AND ($3::text IS NULL OR platform = $3) AND ($4::bigint IS NULL OR project_id = $4)
    GROUP BY 1
),
launch AS (
    SELECT date_bin($5 * interval '1 second', b.created_at, $1) AS at, phase.*
    FROM bots b, LATERAL launch_phases(b) phase
    WHERE b.created_at >= $1 AND b.created_at < $2 AND b.joined_at IS NOT NULL
        AND ($3::text IS NULL OR b.platform = $3) AND ($4::bigint IS NULL OR b.project_id = $4)
        AND b.id % $6::bigint = 0
),
spread AS (
    SELECT
        at,
        percentile_cont('{0.5, 0.95, 0.99}'::float8[]) WITHIN GROUP (ORDER BY queued) AS queued,
        percentile_cont('{0.5, 0.95, 0.99}'::float8[]) WITHIN GROUP (ORDER BY pulled) AS pulled,
        percentile_cont('{0.5, 0.95, 0.99}'::float8[]) WITHIN GROUP (ORDER BY created) AS created,
        percentile_cont('{0.5, 0.95, 0.99}'::float8[]) WITHIN GROUP (ORDER BY started) AS started,
        percentile_cont('{0.5, 0.95, 0.99}'::float8[]) WITHIN GROUP (ORDER BY claimed) AS claimed,
        percentile_cont('{0.5, 0.95, 0.99}'::float8[]) WITHIN GROUP (ORDER BY joined) AS joined,
        percentile_cont('{0.5, 0.95, 0.99}'::float8[]) WITHIN GROUP (ORDER BY in_call) AS in_call,
        percentile_cont('{0.5, 0.95, 0.99}'::float8[]) WITHIN GROUP (ORDER BY total) AS total
    FROM launch
    GROUP BY GROUPING SETS ((at), ())
)
SELECT
    at, count,
    queued, pulled, created, started, claimed, joined, in_call, total
FROM counted LEFT JOIN spread USING (at)
UNION ALL
SELECT
    NULL, coalesce((SELECT sum(count) FROM counted), 0)::bigint,
    queued, pulled, created, started, claimed, joined, in_call, total
FROM spread
WHERE at IS NULL
ORDER BY at;

-- name: load
-- For each step in which that changed: how many bots ran and how many waited at the most, to a hundredth of
-- a step but not less than a second, and by how many more or fewer they were at its end. Of bots that were
-- created since a day before.
WITH change AS (
    SELECT
        date_bin(greatest($5 / 100.0, 1) * interval '1 second', at, $1) AS at,
        sum(waits) AS waiting, sum(runs) AS running
    FROM (
        SELECT
            greatest(created_at, $1) AS came,
            -- Not greatest alone: it knows no NULL.
            CASE WHEN assigned_at IS NOT NULL THEN greatest(assigned_at, $1) END AS ran,
            ended_at AS ended
        FROM bots
        WHERE created_at >= $1 - interval '1 day' AND created_at < $2
            AND (ended_at IS NULL OR ended_at >= $1)
            AND ($3::text IS NULL OR platform = $3) AND ($4::bigint IS NULL OR project_id = $4)
    ) alive, LATERAL (
        VALUES
            (came, 1, 0), (coalesce(ran, ended), -1, 0), (ran, 0, 1),
            (CASE WHEN ran IS NOT NULL THEN ended END, 0, -1)
    ) step (at, waits, runs)
    WHERE at < $2
    GROUP BY 1
),
counted AS (
    SELECT
        at, waiting AS waiting_change, running AS running_change,
        sum(waiting) OVER (ORDER BY at) AS waiting, sum(running) OVER (ORDER BY at) AS running
    FROM change
)
SELECT
    date_bin($5 * interval '1 second', at, $1) AS at,
    max(waiting)::bigint AS waiting, max(running)::bigint AS running,
    sum(waiting_change)::bigint AS waiting_change, sum(running_change)::bigint AS running_change
FROM counted
GROUP BY 1
ORDER BY 1;

-- name: outcomes
-- How many bots were created, by project, status and why they failed.
SELECT b.project_id, b.status, b.failure_cause, count(*) AS bots
FROM bots b
WHERE b.created_at >= $1 AND b.created_at < $2
    AND ($3::text IS NULL OR b.platform = $3) AND ($4::bigint IS NULL OR b.project_id = $4)
GROUP BY 1, 2, 3
ORDER BY 1, 2, 3;

-- name: waits
-- The waits that were told to callers and those that their bots had (p50, p95, p99 in ms), and the share of
-- bots that waited no longer than told; by step, and in all. Of bots that got a slot.
WITH wait AS MATERIALIZED (
    SELECT
        date_bin($5 * interval '1 second', t.at, $1) AS at,
        (t.details ->> 'estimatedWaitMs')::float8 AS told,
        ms_between(b.created_at, b.assigned_at) AS had
    FROM transitions t
    JOIN bots b ON b.id = t.bot_id AND b.assigned_at IS NOT NULL AND b.relaunched_at IS NULL
    WHERE t.machine = 'bot' AND t.from_status IS NULL AND t.to_status = 'QUEUED'
        AND t.at >= $1 AND t.at < $2 AND t.details ? 'estimatedWaitMs'
        AND ($3::text IS NULL OR b.platform = $3) AND ($4::bigint IS NULL OR b.project_id = $4)
)
SELECT
    at, count(*) AS count,
    percentile_cont('{0.5, 0.95, 0.99}'::float8[]) WITHIN GROUP (ORDER BY told) AS told,
    percentile_cont('{0.5, 0.95, 0.99}'::float8[]) WITHIN GROUP (ORDER BY had) AS had,
    avg((had <= told)::integer)::float8 AS kept
FROM wait
GROUP BY GROUPING SETS ((at), ())
ORDER BY at;

-- name: used
-- For how many seconds bots had a slot, and were in their calls, by day (UTC), platform and project. Of bots
-- that were created since a day before; of one that was launched again, its last launch.
WITH life AS MATERIALIZED (
    SELECT
        platform, project_id, began, in_call, ended,
        date_bin('1 day', began, 'epoch') AS first, date_bin('1 day', ended, 'epoch') AS last
    FROM (
        SELECT
            platform, project_id, greatest(assigned_at, $1) AS began,
            CASE WHEN joined_at IS NOT NULL THEN greatest(joined_at, $1) END AS in_call,
            least(coalesce(ended_at, botpool_now()), $2) AS ended
        FROM bots
        WHERE created_at >= $1 - interval '1 day' AND created_at < $2 AND assigned_at < $2
            AND (ended_at IS NULL OR ended_at > $1)
            AND ($3::text IS NULL OR platform = $3) AND ($4::bigint IS NULL OR project_id = $4)
    ) bot
),
of_a_day AS (
    SELECT first AS day, platform, project_id, began, in_call, ended FROM life WHERE first = last
    UNION ALL
    SELECT
        day, platform, project_id, greatest(began, day),
        CASE WHEN in_call < day + interval '1 day' THEN greatest(in_call, day) END,
        least(ended, day + interval '1 day')
    FROM life, LATERAL generate_series(first, last, interval '1 day') day
    WHERE first < last
)
SELECT
    (day AT TIME ZONE 'UTC')::date AS day, platform, project_id,
    extract(epoch FROM sum(ended - began))::float8 AS used,
    coalesce(extract(epoch FROM sum(ended - in_call)), 0)::float8 AS in_call
FROM of_a_day
GROUP BY of_a_day.day, platform, project_id
ORDER BY 1, 2, 3;

-- name: slots
-- For how many seconds there were slots, by day (UTC) and platform. $4: not of a project, so none.
WITH life AS MATERIALIZED (
    SELECT platform, greatest(created_at, $1) AS began, least(botpool_now(), $2) AS ended
    FROM bot_pool_slots
    WHERE created_at < $2 AND ($3::text IS NULL OR platform = $3) AND $4::bigint IS NULL
    UNION ALL
    SELECT t.platform, greatest(first.at, $1), least(t.at, $2)
    FROM transitions t, LATERAL (
        -- The first row that is kept may not be its beginning: then it was there all the time.
        SELECT CASE WHEN b.from_status IS NULL THEN b.at ELSE '-infinity' END AS at
        FROM transitions b WHERE b.slot_id = t.slot_id AND b.machine = 'slot'
        ORDER BY b.id
        LIMIT 1
    ) first
    WHERE t.machine = 'slot' AND t.to_status IS NULL AND t.at > $1
        AND ($3::text IS NULL OR t.platform = $3) AND $4::bigint IS NULL
)
SELECT
    (day AT TIME ZONE 'UTC')::date AS day, platform,
    sum(extract(epoch FROM greatest(least(ended, day + interval '1 day') - greatest(began, day), '0'))
        )::float8 AS there
FROM life, LATERAL generate_series(
    date_trunc('day', began AT TIME ZONE 'UTC') AT TIME ZONE 'UTC', ended, interval '1 day'
) day
GROUP BY 1, 2
ORDER BY 1, 2;

-- name: projects
-- The names of projects.
SELECT id, name FROM projects WHERE id = ANY ($1::bigint[]);
