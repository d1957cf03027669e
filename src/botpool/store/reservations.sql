-- name: reserve_due
-- Reserve at most $3 slots that are due, for $2 ms: no other replica works on them so long. Only those
-- that have no host yet, or one that this replica can reach ($4); deployments on any host that took
-- longer than $5 ms, for these have failed in any case; what is on an engine that this replica does not
-- have ($6), or that new containers are not made on ($7) before its next one; and what is on a host that
-- is given up.
WITH due AS MATERIALIZED (
    SELECT id FROM bot_pool_slots
    WHERE due_at IS NOT NULL AND greatest(due_at, reserved_until) <= (SELECT botpool_now())
        AND (
            host IS NULL
            OR engine || '/' || host = ANY ($4::text[])
            OR (
                status = 'deploying'
                AND last_assigned_at <= (SELECT botpool_now()) - $5 * interval '1 millisecond'
            )
            OR engine <> ALL ($6::text[])
            OR host_given_up(engine, host)
            OR (status = 'deploying' AND deployment_started_at IS NULL AND engine <> $7)
        )
    ORDER BY greatest(due_at, reserved_until), id
    LIMIT $3
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE bot_pool_slots s
SET reserved_by = $1, reserved_until = botpool_now() + $2 * interval '1 millisecond'
FROM due WHERE s.id = due.id
RETURNING s.*, botpool_now() AS read_at;

-- name: reserve
-- Reserve this slot for $3 ms, due or not, unless another replica has it.
UPDATE bot_pool_slots
SET reserved_by = $2, reserved_until = botpool_now() + $3 * interval '1 millisecond'
WHERE id = $1 AND (reserved_until IS NULL OR reserved_until <= botpool_now())
RETURNING *, botpool_now() AS read_at;

-- name: renew
-- Renew the reservations of these slots for $3 ms. Returns those that the replica still has.
WITH ours AS MATERIALIZED (
    SELECT id FROM bot_pool_slots
    WHERE id = ANY ($2::bigint[]) AND reserved_by = $1
    ORDER BY id
    FOR NO KEY UPDATE
)
UPDATE bot_pool_slots s SET reserved_until = botpool_now() + $3 * interval '1 millisecond'
FROM ours WHERE s.id = ours.id
RETURNING s.id;

-- name: give_back
-- Let go of a slot. It is due again in $5 ms, unless it is not as it was ($3, $4, $7) any more: then the
-- change has set when. $6: what the work on it failed with, if it did. Returns whether it is due now.
UPDATE bot_pool_slots
SET reserved_by = NULL, reserved_until = NULL,
    due_at = CASE
        WHEN lease = $3 AND status = $4 AND wakes = $7
            THEN botpool_now() + $5::double precision * interval '1 millisecond'
        ELSE due_at
    END,
    failed_steps = CASE
        WHEN lease = $3 AND status = $4
            THEN CASE WHEN $6::text IS NULL THEN 0 ELSE failed_steps + 1 END
        ELSE failed_steps
    END,
    step_error = CASE WHEN lease = $3 AND status = $4 THEN $6 ELSE step_error END
WHERE id = $1 AND reserved_by = $2
RETURNING due_at <= botpool_now() AS due_now;

-- name: drop
-- Let go of a slot, and leave open when it is due.
UPDATE bot_pool_slots SET reserved_by = NULL, reserved_until = NULL WHERE id = $1 AND reserved_by = $2;

-- name: rest
-- A busy slot that the replica has reserved needs nothing more for now.
SELECT rest_slot($1, $2, $3);

-- name: expired
-- Slots whose reservation has expired, and which no replica has taken over.
SELECT *, botpool_now() AS read_at FROM bot_pool_slots
WHERE reserved_until < botpool_now() - interval '1 second'
ORDER BY id;

-- name: abandon
-- Let go of reservations that have expired. Returns the slots.
UPDATE bot_pool_slots SET reserved_by = NULL, reserved_until = NULL
WHERE id = ANY ($1::bigint[]) AND reserved_until < botpool_now()
RETURNING id;
