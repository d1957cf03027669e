-- name: list_deploying
-- Slots that have been deploying for $1 ms, as last pushed on, in which their bots could be heard.
SELECT s.*, botpool_now() AS read_at FROM bot_pool_slots s
WHERE status = 'deploying' AND last_used_at <= botpool_now() - $1 * interval '1 millisecond'
    AND heard_for(last_used_at) >= $1 * interval '1 millisecond'
ORDER BY last_used_at;

-- name: list_silent
-- Busy slots whose bot was not heard since $1, nor for the $2 ms of it in which it could be.
SELECT s.*, botpool_now() AS read_at
FROM bot_pool_slots s JOIN bots b ON b.id = s.assigned_bot_id
WHERE s.status = 'busy' AND s.last_assigned_at < $1
    AND greatest(b.last_heartbeat, b.started_at) < $1
    AND heard_for(greatest(b.last_heartbeat, b.started_at, s.last_assigned_at))
        > $2 * interval '1 millisecond'
ORDER BY s.id;

-- name: list_ended
-- Slots whose bot has ended.
SELECT s.*, botpool_now() AS read_at
FROM bot_pool_slots s JOIN bots b ON b.id = s.assigned_bot_id
WHERE s.status IN ('deploying', 'busy') AND b.ended_at IS NOT NULL
ORDER BY s.id;

-- name: list_abandoned
-- Slots whose claim has run out, and which nobody has taken over.
SELECT *, botpool_now() AS read_at FROM bot_pool_slots
WHERE claimed_until < botpool_now() - interval '1 second'
ORDER BY id;

-- name: list_expired_pulls
-- Pulls whose claim has run out, and which nobody has taken over.
SELECT * FROM image_pulls WHERE status = 'pulling' AND claimed_until < botpool_now()
ORDER BY engine, host, image;

-- name: list_overdue
-- Bots that wait past their deadline.
SELECT bot_id FROM bot_pool_queue WHERE timeout_at <= botpool_now() ORDER BY timeout_at;

-- name: push_on
-- A deployment that took long is left alone once more: its time counts from now.
WITH slot AS (
    UPDATE bot_pool_slots s
    SET last_used_at = botpool_now(), recovery_attempts = recovery_attempts + 1
    FROM bots b
    WHERE s.id = $1 AND s.lease = $2 AND s.status = 'deploying' AND b.id = s.assigned_bot_id
    RETURNING s.*, b.correlation_id
)
INSERT INTO transitions (
    at, machine, platform, from_status, to_status,
    slot_id, slot_name, container_ref, lease, bot_id, correlation_id, reason, details
)
SELECT
    botpool_now(), 'slot', platform, status, status,
    id, slot_name, container_ref, lease, assigned_bot_id, correlation_id, $3,
    jsonb_build_object('skipped', recovery_attempts)
FROM slot
RETURNING *;

-- name: abandon_claims
-- Let go of claims that have run out. Returns the slots.
UPDATE bot_pool_slots SET claimed_by = NULL, claimed_until = NULL
WHERE id = ANY ($1::bigint[]) AND claimed_until < botpool_now()
RETURNING id;

-- name: abandon_pull
-- Let somebody else have a pull whose claim has run out.
UPDATE image_pulls
SET status = 'failed', error = 'whoever pulled it is gone', retry_at = botpool_now(),
    claimed_by = NULL, claimed_until = NULL, slot_id = NULL, lease = NULL,
    finished_at = botpool_now()
WHERE engine = $1 AND host = $2 AND image = $3 AND status = 'pulling'
    AND claimed_until < botpool_now()
RETURNING image;

-- name: note_failure
-- Something has failed on a host. Returns whether it is ill since this moment.
SELECT note_failure($1, $2, $3, $4, $5, $6, $7, $8) AS ill;

-- name: has_failed
-- Whether something has failed on a host since something last went well there.
SELECT * FROM hosts
WHERE engine = $1 AND host = $2 AND (failed <> '{}' OR ill_since IS NOT NULL);

-- name: note_success
-- Something went well on a host on which something had failed; $3: no more than that it answers.
SELECT * FROM note_success($1, $2, $3);

-- name: probe_hosts
-- Let one slot of each ill host be taken, where it is time for that.
SELECT * FROM probe_hosts();

-- name: list_hosts
-- Every host that something was tried on, or that has slots.
SELECT
    coalesce(h.engine, s.engine) AS engine, coalesce(h.host, s.host) AS host,
    coalesce(s.slots, 0) AS slots, coalesce(cardinality(h.failed), 0) AS failures,
    h.reason, h.ill_since, h.probe_at
FROM hosts h
FULL JOIN (
    SELECT engine, host, count(*) AS slots FROM bot_pool_slots WHERE host IS NOT NULL
    GROUP BY engine, host
) s ON s.engine = h.engine AND s.host = h.host
ORDER BY 1, 2;

-- name: keep_hearing
-- Bots can be heard now, and it is known at the latest in $1 ms if they can't be any more. How long
-- they could not be before this is an outage.
WITH before AS MATERIALIZED (
    SELECT due_at FROM duties WHERE name = 'hear' FOR UPDATE
),
outage AS (
    INSERT INTO outages (began_at, ended_at)
    SELECT due_at, botpool_now() FROM before WHERE due_at < botpool_now()
    ON CONFLICT DO NOTHING
    RETURNING began_at
)
INSERT INTO duties (name, due_at)
SELECT 'hear', botpool_now() + $1 * interval '1 millisecond'
FROM (SELECT count(*) FROM outage) noted -- before the row is changed
ON CONFLICT (name) DO UPDATE SET due_at = excluded.due_at;

-- name: heard_for
-- For how long somebody could be heard since $1.
SELECT heard_for($1) AS time;

-- name: prune_outages
-- Forget outages that ended before $1.
DELETE FROM outages WHERE ended_at < $1;
