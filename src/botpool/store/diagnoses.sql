-- name: newest
-- What doctor found last, who wants it anew, and since when a replica makes it.
SELECT
    findings, made_at, made_by, asked_at, asked_by,
    CASE WHEN reserved_until > botpool_now() THEN begun_at END AS begun_at
FROM diagnosis;

-- name: ask
-- Want another one, unless one is wanted that no replica has begun.
UPDATE diagnosis SET asked_at = botpool_now(), asked_by = $1
WHERE asked_at IS NULL OR asked_at <= begun_at;

-- name: take
-- Let a replica ($1) make one within $2 ms if no other does: if it was asked for or, unless only that counts
-- ($4), if the last one is older than $3 ms, or its replica is gone. No row: there is nothing to do.
UPDATE diagnosis
SET reserved_by = $1, begun_at = botpool_now(),
    reserved_until = botpool_now() + $2 * interval '1 millisecond'
WHERE (reserved_until IS NULL OR reserved_until <= botpool_now()) AND (
    asked_at IS NOT NULL
    OR NOT $4::boolean AND (
        made_at IS NULL OR abs(milliseconds(botpool_now() - made_at)) >= $3
        OR NOT EXISTS (SELECT FROM replicas WHERE name = made_by)
    )
)
RETURNING begun_at;

-- name: record
-- What the replica ($1) found that made it; and tell how many of them are problems and warnings ($3). What was
-- asked for since it began stays asked for.
WITH before AS MATERIALIZED (
    SELECT * FROM diagnosis WHERE reserved_by = $1 FOR UPDATE
),
made AS (
    UPDATE diagnosis d
    SET findings = $2, made_at = botpool_now(), made_by = $1,
        asked_at = CASE WHEN d.asked_at > d.begun_at THEN d.asked_at END,
        asked_by = CASE WHEN d.asked_at > d.begun_at THEN d.asked_by END,
        reserved_by = NULL, reserved_until = NULL, begun_at = NULL
    FROM before
)
INSERT INTO transitions (at, machine, from_status, to_status, reason, details)
SELECT
    botpool_now(), 'doctor', result, result, 'doctor has examined this installation',
    $3::jsonb || jsonb_build_object('by', CASE WHEN asked_at <= begun_at THEN asked_by END)
FROM before, LATERAL (
    SELECT CASE
        WHEN ($3::jsonb ->> 'problems')::integer > 0 THEN 'problem'
        WHEN ($3::jsonb ->> 'warnings')::integer > 0 THEN 'warning'
        ELSE 'ok'
    END
) came_out (result)
RETURNING *;
