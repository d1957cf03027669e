-- name: claim_slots
-- Take at most $3 slots that are due, for $2 ms: nobody else works on them so long. Only those that
-- have no host yet, or one that we can reach ($4); deployments on any that took longer than $5 ms, for
-- these have failed, whoever can reach them; what is on an engine that nobody has ($6), or that new
-- containers are not made on ($7) before its next one; and what is on a host that nobody has compared
-- with the slots for $8 ms.
WITH due AS MATERIALIZED (
    SELECT id FROM bot_pool_slots
    WHERE due_at IS NOT NULL AND greatest(due_at, claimed_until) <= (SELECT botpool_now())
        AND (
            host IS NULL
            OR engine || '/' || host = ANY ($4::text[])
            OR (
                status = 'deploying'
                AND last_assigned_at <= (SELECT botpool_now()) - $5 * interval '1 millisecond'
            )
            OR engine <> ALL ($6::text[])
            OR EXISTS (
                SELECT FROM duties d
                WHERE d.name = 'sync ' || engine || '/' || host
                    AND heard_for(d.due_at) > $8 * interval '1 millisecond'
            )
            OR (status = 'deploying' AND deployment_started_at IS NULL AND engine <> $7)
        )
    ORDER BY greatest(due_at, claimed_until)
    LIMIT $3
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE bot_pool_slots s
SET claimed_by = $1, claimed_until = botpool_now() + $2 * interval '1 millisecond'
FROM due WHERE s.id = due.id
RETURNING s.*, botpool_now() AS read_at;

-- name: claim_slot
-- Take this slot for $3 ms, due or not, unless somebody else has it.
UPDATE bot_pool_slots
SET claimed_by = $2, claimed_until = botpool_now() + $3 * interval '1 millisecond'
WHERE id = $1 AND (claimed_until IS NULL OR claimed_until <= botpool_now())
RETURNING *, botpool_now() AS read_at;

-- name: renew_claims
-- Go on having these slots for $3 ms. Returns those that we still have.
WITH ours AS MATERIALIZED (
    SELECT id FROM bot_pool_slots
    WHERE id = ANY ($2::bigint[]) AND claimed_by = $1
    ORDER BY id
    FOR NO KEY UPDATE
)
UPDATE bot_pool_slots s SET claimed_until = botpool_now() + $3 * interval '1 millisecond'
FROM ours WHERE s.id = ours.id
RETURNING s.id;

-- name: return_slot
-- Let go of a slot. It is due again in $5 ms, unless it is not as it was ($3, $4, $7) any more: then
-- whoever changed it has said when. $6: what the work on it failed with, if it did. Returns whether it
-- is due now.
UPDATE bot_pool_slots
SET claimed_by = NULL, claimed_until = NULL,
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
WHERE id = $1 AND claimed_by = $2
RETURNING due_at <= botpool_now() AS due_now;

-- name: drop_claim
-- Let go of a slot, and leave open when it is due.
UPDATE bot_pool_slots SET claimed_by = NULL, claimed_until = NULL WHERE id = $1 AND claimed_by = $2;

-- name: rest_slot
-- A busy slot that we have taken needs nothing more for now.
UPDATE bot_pool_slots SET due_at = NULL
WHERE id = $1 AND lease = $2 AND claimed_by = $3 AND status = 'busy';

-- name: make_room
-- A slot's deployment is over by its bot's own word, and nobody works on it: let those who wait for
-- room on its host be due. Returns the images that starts have brought there.
SELECT engine, host, unnest(settle_pulls(engine, host)) AS image
FROM bot_pool_slots, wake_deployments(engine, host, $2, $3)
WHERE id = $1 AND claimed_by IS NULL AND host IS NOT NULL;

-- name: place_slot
-- Put a slot on the host that has the fewest, and fewer than $5.
SELECT *, botpool_now() AS read_at FROM place_slot($1, $2, $3, $4, $5);

-- name: admit_deployment
-- Let a deployment onto its host, if there is room and its bot has not just failed there; else record
-- that it waits.
SELECT admit_deployment($1, $2, $3, $4, $5, $6) AS wait;

-- name: wake_deployments
-- Let those who wait for room on a host be due, as many as there is room for.
SELECT wake_deployments($1, $2, $3, $4);

-- name: set_slot_token
-- Note, before a container is made, what its token will hash to, and by what it will call us. Only
-- who has taken the slot may.
UPDATE bot_pool_slots SET token_hash = $4, runtime_url = $5
WHERE id = $1 AND lease = $2 AND claimed_by = $3
RETURNING id;

-- name: get_slot_of_token
-- The slot whose present container has this token.
SELECT *, botpool_now() AS read_at FROM bot_pool_slots WHERE token_hash = $1;

-- name: give_up_container
-- Let a slot have no container, and the next one on this engine ($3) and of this image ($4); on
-- another engine, or where $5 says so, it is on another host.
UPDATE bot_pool_slots
SET engine = $3, image = $4, container_ref = NULL,
    host = CASE WHEN engine = $3 AND NOT $5 THEN host END, held = held AND engine = $3 AND NOT $5
WHERE id = $1 AND lease = $2
RETURNING *, botpool_now() AS read_at;

-- name: put_off_recovery
-- Count a failed attempt to make a slot well again.
UPDATE bot_pool_slots SET recovery_attempts = recovery_attempts + 1, error_message = $3
WHERE id = $1 AND lease = $2 AND status = 'error'
RETURNING recovery_attempts;

-- name: keep_container_logs
-- Keep what a container wrote while it served a bot, once.
INSERT INTO container_logs (bot_id, slot_id, lease, at, lines)
SELECT id, $2, $3, botpool_now(), $4 FROM bots WHERE id = $1
ON CONFLICT DO NOTHING;

-- name: has_container_logs
-- Whether what a container wrote for a bot under a lease is kept.
SELECT FROM container_logs WHERE bot_id = $1 AND slot_id = $2 AND lease = $3;

-- name: get_container_logs
-- What the containers of a bot wrote, the oldest first.
SELECT lines FROM container_logs WHERE bot_id = $1 ORDER BY at, lease;

-- name: had_container
-- Whether a bot ever ran in this container, as far back as bots are kept.
SELECT FROM bots WHERE container_ref = $1 LIMIT 1;

-- name: list_slots_of_host
-- The slots that have a container on a host.
SELECT *, botpool_now() AS read_at FROM bot_pool_slots
WHERE engine = $1 AND host = $2 AND container_ref IS NOT NULL;

-- name: take_duty
-- Take on what is done every $2 ms, if it is due; or was put off farther than it ever is, by a clock
-- that has since gone back.
INSERT INTO duties (name, due_at)
VALUES ($1, botpool_now() + $2 * interval '1 millisecond')
ON CONFLICT (name) DO UPDATE SET due_at = excluded.due_at
WHERE duties.due_at <= botpool_now() OR duties.due_at > excluded.due_at
RETURNING name;

-- name: get_installation
-- What this botpool calls itself on engines.
SELECT id FROM installation;

-- name: announce
-- Wake those who listen on these channels; those who deliver webhooks, if there is one to deliver.
SELECT pg_notify(channel, '') FROM unnest($1::text[]) channel
WHERE channel <> 'botpool_webhooks' OR EXISTS (
    SELECT FROM webhook_deliveries WHERE next_attempt_at <= (SELECT botpool_now())
);
