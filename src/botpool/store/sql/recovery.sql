-- name: list_deploying
-- Slots that have been deploying since before $1, as last pushed on, and their bots.
SELECT s.*, botpool_now() AS read_at FROM bot_pool_slots s
WHERE status = 'deploying' AND last_used_at <= $1
ORDER BY last_used_at;

-- name: list_silent
-- Busy slots whose bot was not heard since $1.
SELECT s.*, botpool_now() AS read_at
FROM bot_pool_slots s JOIN bots b ON b.id = s.assigned_bot_id
WHERE s.status = 'busy' AND s.last_assigned_at < $1
    AND greatest(b.last_heartbeat, b.started_at) < $1
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
SELECT note_failure($1, $2, $3, $4, $5, $6) AS ill;

-- name: has_failed
-- Whether something has failed on a host since something last went well there.
SELECT * FROM hosts WHERE engine = $1 AND host = $2 AND failures > 0;

-- name: note_success
-- Something went well on a host on which something had failed.
SELECT * FROM note_success($1, $2);

-- name: probe_hosts
-- Let one slot of each ill host be taken, where it is time for that.
SELECT * FROM probe_hosts();

-- name: list_hosts
-- Every host that something was tried on, or that has slots.
SELECT
    coalesce(h.engine, s.engine) AS engine, coalesce(h.host, s.host) AS host,
    coalesce(s.slots, 0) AS slots, coalesce(h.failures, 0) AS failures,
    h.reason, h.ill_since, h.probe_at
FROM hosts h
FULL JOIN (
    SELECT engine, host, count(*) AS slots FROM bot_pool_slots WHERE host IS NOT NULL
    GROUP BY engine, host
) s ON s.engine = h.engine AND s.host = h.host
ORDER BY 1, 2;
