-- name: outcomes
-- How many bots were created, by step, project, status and why they failed; and how many of them came into
-- their calls.
SELECT at, project_id, status, failure_cause, count(*) AS bots, count(joined_at) AS joined
FROM (
    SELECT
        date_bin($5 * interval '1 second', created_at, $1) AS at,
        project_id, status, failure_cause, joined_at
    FROM bots
    WHERE created_at >= $1 AND created_at < $2
        AND ($3::text IS NULL OR platform = $3) AND ($4::bigint IS NULL OR project_id = $4)
    OFFSET 0 -- by themselves: else steps are expected to be as many as times, and all rows are sorted
) bot
GROUP BY 1, 2, 3, 4
ORDER BY 1, 2, 3, 4;

-- name: launches
-- How long the phases of launches took (p50, p95, p99 in ms) that came into their calls, by the step in which
-- their bots were created and, without a step, in all. Of $6 bots in a row, one tells; which one is left to
-- chance, so that no rhythm of their creation decides.
WITH bound AS (
    SELECT min(id) AS lowest, max(id) AS highest
    -- As a whole: else the least of them is looked for from the first bot on.
    FROM (SELECT id FROM bots WHERE created_at >= $1 AND created_at < $2 OFFSET 0) bot
),
launch AS (
    SELECT date_bin($5 * interval '1 second', b.created_at, $1) AS at, phase.*
    FROM bound, generate_series(lowest, highest, $6::bigint) row_start
    JOIN bots b ON b.id = row_start + (hashint8(row_start) & 2147483647) % $6, LATERAL launch_phases(b) phase
    WHERE b.created_at >= $1 AND b.created_at < $2 AND b.joined_at IS NOT NULL
        AND ($3::text IS NULL OR b.platform = $3) AND ($4::bigint IS NULL OR b.project_id = $4)
)
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
GROUP BY GROUPING SETS ((at), ());

-- name: load
-- For each step in which that changed: how many bots ran and how many waited at the most, to a hundredth of
-- a step but not less than a second, and by how many more or fewer they were at its end. Of bots that were
-- created since a day before.
WITH alive AS (
    SELECT
        assigned_at IS NOT NULL AS had_slot,
        date_bin(width, greatest(created_at, $1), $1) AS came,
        -- Not greatest alone: it knows no NULL.
        CASE WHEN assigned_at < $2 THEN date_bin(width, greatest(assigned_at, $1), $1) END AS ran,
        CASE WHEN ended_at < $2 THEN date_bin(width, ended_at, $1) END AS ended
    FROM bots, (SELECT greatest($5 / 100.0, 1) * interval '1 second' AS width) bin
    WHERE created_at >= $1 - interval '1 day' AND created_at < $2
        AND (ended_at IS NULL OR ended_at >= $1)
        AND ($3::text IS NULL OR platform = $3) AND ($4::bigint IS NULL OR project_id = $4)
    OFFSET 0 -- as in outcomes
),
-- Each bot comes and waits; then it runs, and waits no more; then it does neither.
step AS (
    SELECT
        coalesce(came, ran, ended) AS at,
        CASE
            WHEN grouping(came) = 0 THEN count(*)
            WHEN grouping(ran) = 0 THEN -count(*)
            ELSE -count(*) FILTER (WHERE NOT had_slot)
        END AS waits,
        CASE
            WHEN grouping(came) = 0 THEN 0
            WHEN grouping(ran) = 0 THEN count(*)
            ELSE -count(*) FILTER (WHERE had_slot)
        END AS runs
    FROM alive
    GROUP BY GROUPING SETS ((came), (ran), (ended))
),
change AS (
    SELECT at, sum(waits) AS waiting, sum(runs) AS running FROM step WHERE at IS NOT NULL GROUP BY at
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

-- name: waits
-- The waits that were told to callers and those that their bots had (p50, p95, p99 in ms), and the share of
-- bots that waited no longer than told; by step, and in all. Of bots that got a slot; of about $6 of them, one
-- tells for all.
WITH wait AS MATERIALIZED (
    SELECT
        date_bin($5 * interval '1 second', t.at, $1) AS at,
        (t.details ->> 'estimatedWaitMs')::float8 AS told,
        ms_between(b.created_at, b.assigned_at) AS had
    FROM transitions t
    JOIN bots b ON b.id = t.bot_id AND b.assigned_at IS NOT NULL AND b.relaunched_at IS NULL
    WHERE t.machine = 'bot' AND t.from_status IS NULL AND t.to_status = 'QUEUED'
        AND t.at >= $1 AND t.at < $2 AND t.details ? 'estimatedWaitMs'
        AND (hashint8(t.bot_id) & 2147483647) % $6::bigint = 0
        AND ($3::text IS NULL OR b.platform = $3) AND ($4::bigint IS NULL OR b.project_id = $4)
)
SELECT
    at, count(*) * $6::bigint AS count,
    percentile_cont('{0.5, 0.95, 0.99}'::float8[]) WITHIN GROUP (ORDER BY told) AS told,
    percentile_cont('{0.5, 0.95, 0.99}'::float8[]) WITHIN GROUP (ORDER BY had) AS had,
    avg((had <= told)::integer)::float8 AS kept
FROM wait
GROUP BY GROUPING SETS ((at), ())
ORDER BY at;

-- name: used
-- For how many seconds bots had a slot, and were in their calls, by day (UTC), platform and project. Of bots
-- that were created since a day before; of one that was launched again, its last launch. Lives that begin and
-- end on the same days are summed up first: then there are few.
WITH life AS (
    SELECT
        *, date_bin('1 day', began, 'epoch') AS first, date_bin('1 day', in_call, 'epoch') AS call_first,
        date_bin('1 day', ended, 'epoch') AS last
    FROM (
        SELECT
            platform, project_id, greatest(assigned_at, $1) AS began,
            CASE WHEN joined_at IS NOT NULL THEN greatest(joined_at, $1) END AS in_call,
            least(coalesce(ended_at, now), $2) AS ended
        FROM bots, (SELECT botpool_now() AS now) clock
        WHERE created_at >= $1 - interval '1 day' AND created_at < $2 AND assigned_at < $2
            AND (ended_at IS NULL OR ended_at > $1)
            AND ($3::text IS NULL OR platform = $3) AND ($4::bigint IS NULL OR project_id = $4)
    ) bot
    OFFSET 0 -- as in outcomes
),
alike AS MATERIALIZED (
    SELECT
        first, call_first, last, platform, project_id, count(*) AS bots,
        sum(began - first) AS before, sum(in_call - call_first) AS before_call, sum(ended - last) AS until
    FROM life
    GROUP BY first, call_first, last, platform, project_id
),
-- Of every day, the bots' share of 24 hours, less what was before they began, up to when they ended.
of_a_day AS (
    SELECT
        day, platform, project_id,
        CASE WHEN day = last THEN until ELSE bots * interval '24 hours' END AS whole,
        CASE WHEN day = first THEN before ELSE '0' END AS before,
        CASE WHEN day = call_first THEN before_call WHEN day > call_first THEN '0' END AS before_call
    FROM alike, LATERAL generate_series(first, last, interval '1 day') day
)
SELECT
    (day AT TIME ZONE 'UTC')::date AS day, platform, project_id,
    extract(epoch FROM sum(whole - before))::float8 AS used,
    coalesce(extract(epoch FROM sum(whole - before_call)), 0)::float8 AS in_call
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
