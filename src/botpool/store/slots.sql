-- name: get
-- One slot.
SELECT *, botpool_now() AS read_at FROM bot_pool_slots WHERE id = $1;

-- name: of_bots
-- The slots that these bots are on now.
SELECT *, botpool_now() AS read_at FROM bot_pool_slots WHERE assigned_bot_id = ANY ($1::bigint[]);

-- name: of_token
-- The slot whose present container has this token.
SELECT *, botpool_now() AS read_at FROM bot_pool_slots WHERE token_hash = $1;

-- name: all
-- Every slot, by name.
SELECT *, botpool_now() AS read_at FROM bot_pool_slots ORDER BY platform, number;

-- name: page
-- One page of slots ($1), by name: after a place, of a platform, statuses, a name, a container or a bot, where
-- these are given.
SELECT *, botpool_now() AS read_at FROM list_slots($1::jsonb);

-- name: of_host
-- The slots that have a container on a host.
SELECT *, botpool_now() AS read_at FROM bot_pool_slots
WHERE engine = $1 AND host = $2 AND container_ref IS NOT NULL;

-- name: end_assignments
-- End assignments ($1), each under its lease: the bot takes its last status (unless it ended before), and
-- the slot goes to releasing, or to error. Leaves alone a bot heard since `unless_heard_since`, and a
-- slot that is not what it `was`.
WITH asked AS (
    SELECT * FROM jsonb_to_recordset($1::jsonb) AS a (
        slot_id bigint, lease bigint, slot_status text, bot_status text, reason text,
        failure_cause text, unless_heard_since timestamptz, was text, details jsonb
    )
),
ending AS MATERIALIZED (
    SELECT
        botpool_now() AS now,
        s.id, s.slot_name, s.platform, s.container_ref, s.lease, s.status AS slot_from,
        s.last_assigned_at, b.id AS bot_id, b.status AS bot_from, b.correlation_id, b.last_heartbeat,
        asked.slot_status AS slot_to, asked.reason, asked.failure_cause, asked.details,
        CASE WHEN b.ended_at IS NULL THEN asked.bot_status ELSE b.status END AS bot_to
    FROM asked
    JOIN bot_pool_slots s ON s.id = asked.slot_id AND s.lease = asked.lease
    JOIN bots b ON b.id = s.assigned_bot_id
    WHERE (unless_heard_since IS NULL OR last_heard(b, s) < unless_heard_since)
        AND s.status = coalesce(was, s.status)
    ORDER BY s.id
    FOR NO KEY UPDATE OF s, b
),
slot AS (
    UPDATE bot_pool_slots s
    SET status = slot_to, assigned_bot_id = NULL, last_released_at = now,
        error_message = CASE WHEN slot_to = 'error' THEN reason END
    FROM ending WHERE s.id = ending.id
),
bot AS (
    UPDATE bots b
    SET status = bot_to, ended_at = now, failure_cause = ending.failure_cause,
        failure_reason = CASE WHEN bot_to = 'FATAL' THEN reason END
    FROM ending WHERE b.id = ending.bot_id AND bot_from <> bot_to
)
INSERT INTO transitions (
    at, machine, platform, from_status, to_status,
    slot_id, slot_name, container_ref, lease, bot_id, correlation_id, reason, details
)
SELECT
    now, machine, platform, from_status, to_status,
    id, slot_name, container_ref, lease, bot_id, correlation_id, reason, step.details
FROM ending, LATERAL (
    VALUES
        ('slot', slot_from, slot_to, jsonb_build_object(
            'botStatus', bot_to,
            'failureCause', ending.failure_cause,
            'heldMs', milliseconds(now - last_assigned_at),
            'lastHeartbeat', last_heartbeat
        ) || ending.details),
        ('bot', bot_from, bot_to, ending.details)
) step (machine, from_status, to_status, details)
WHERE from_status <> to_status
ORDER BY bot_id, machine DESC
RETURNING *;

-- name: make_idle
-- Slots proved stopped become idle under their lease, and go to the bots that wait for them.
SELECT * FROM make_idle($1, $2, $3, $4);

-- name: relaunch
-- Take a bot whose launch has failed ($1) off its slot, and back to its place in the queue, if it is in
-- one of the statuses $2, or may go back into its call, and was launched less than $3 times.
SELECT * FROM relaunch_bot($1::jsonb, $2, $3);

-- name: fail
-- A slot without a bot goes, under its lease, from releasing to error.
WITH failed AS (
    UPDATE bot_pool_slots SET status = 'error', error_message = $3
    WHERE id = $1 AND lease = $2 AND status = 'releasing'
    RETURNING *
)
INSERT INTO transitions (
    at, machine, platform, from_status, to_status,
    slot_id, slot_name, container_ref, lease, bot_id, correlation_id, reason
)
SELECT
    botpool_now(), 'slot', f.platform, 'releasing', 'error',
    f.id, f.slot_name, f.container_ref, f.lease,
    f.last_bot_id, (SELECT b.correlation_id FROM bots b WHERE b.id = f.last_bot_id), $3
FROM failed f
RETURNING *;

-- name: delete
-- Delete a slot that is in error, under its lease; its name, and room for another, are free.
SELECT * FROM delete_slot($1, $2, $3);

-- name: drain
-- Let a slot get no further bot, and be deleted when it has none. If it can't be deleted at once, that is told
-- (unless $3 is false).
SELECT * FROM drain_slot($1, $2, $3);

-- name: remove
-- Delete a slot that has no bot, now or, as is told then, as soon as its container is proved stopped.
SELECT * FROM remove_slot($1, $2);

-- name: ask_comparison
-- Somebody wants to know what the engine says of a slot.
UPDATE bot_pool_slots SET compare_asked_at = botpool_now() WHERE id = $1 AND compare_asked_at IS NULL;

-- name: asked_comparisons
-- The slots on these hosts ($1) of which somebody wants to know what the engine says, the longest first.
SELECT *, botpool_now() AS read_at FROM bot_pool_slots
WHERE compare_asked_at IS NOT NULL AND engine || '/' || host = ANY ($1::text[])
ORDER BY compare_asked_at, id
LIMIT 100;

-- name: record_comparison
-- What the engine says of a slot ($2, and $3 in words), if somebody still wants to know.
WITH slot AS (
    UPDATE bot_pool_slots
    SET compare_asked_at = NULL, compared_at = botpool_now(), compared_state = $2, compared_said = $3
    WHERE id = $1 AND compare_asked_at IS NOT NULL
    RETURNING *
)
INSERT INTO transitions (
    at, machine, platform, from_status, to_status,
    slot_id, slot_name, container_ref, lease, bot_id, correlation_id, reason, details
)
SELECT
    s.compared_at, 'slot', s.platform, s.status, s.status,
    s.id, s.slot_name, s.container_ref, s.lease, b.id, b.correlation_id,
    'compared on request: ' || $3::text, jsonb_build_object('engineState', $2::text)
FROM slot s LEFT JOIN bots b ON b.id = s.assigned_bot_id
RETURNING *;

-- name: retry
-- Let a slot in error be tried at once, as if it had never been.
UPDATE bot_pool_slots SET recovery_attempts = 0, due_at = botpool_now(), wakes = wakes + 1
WHERE id = $1 AND status = 'error'
RETURNING id;

-- name: import
-- Add a slot ($1) whose container is there already. It is idle once that is proved stopped.
WITH slot AS (
    INSERT INTO bot_pool_slots (
        platform, number, slot_name, engine, host, image, container_ref,
        status, lease, last_used_at, last_assigned_at, created_at
    )
    SELECT
        platform, number, slot_name(platform, number), engine, host, image, container_ref,
        'releasing', 0, botpool_now(), botpool_now(), botpool_now()
    FROM jsonb_populate_record(NULL::bot_pool_slots, $1::jsonb)
    RETURNING *
)
INSERT INTO transitions (
    at, machine, platform, to_status, slot_id, slot_name, container_ref, lease, reason
)
SELECT botpool_now(), 'slot', platform, status, id, slot_name, container_ref, lease, 'imported'
FROM slot
RETURNING *;

-- name: set_token
-- Note, before a container is made, what its token will hash to. Only the replica that has reserved the
-- slot may. Returns whether the slot never had a token, and so never a container, nor the attempt at one.
UPDATE bot_pool_slots s SET token_hash = $4
FROM (SELECT id, token_hash IS NULL AS first FROM bot_pool_slots WHERE id = $1 FOR NO KEY UPDATE) before
WHERE s.id = before.id AND lease = $2 AND reserved_by = $3
RETURNING before.first;

-- name: launches_elsewhere
-- Whether launches went well on the host of a slot ($1) since they fail on its container, or the host has
-- no other slot that could tell.
SELECT coalesce(bool_or(coalesce(other.launched_at > s.failing_since, false)), true) AS found
FROM bot_pool_slots s
JOIN bot_pool_slots other ON other.engine = s.engine AND other.host = s.host AND other.id <> s.id
WHERE s.id = $1;

-- name: record_container
-- Note, under the lease, which container a slot has now ($3), on which host ($4), and what it was made
-- with ($6). $7: it was made anew because launches failed on the one before it.
WITH slot AS MATERIALIZED (
    SELECT s.*, b.id AS bot_id, b.correlation_id FROM bot_pool_slots s
    LEFT JOIN bots b ON b.id = coalesce(s.assigned_bot_id, s.last_bot_id)
    WHERE s.id = $1 AND s.lease = $2 AND (s.container_ref, s.host) IS DISTINCT FROM ($3, $4)
    FOR NO KEY UPDATE OF s
),
changed AS (
    UPDATE bot_pool_slots s
    SET container_ref = $3, host = $4, creations = $5, spec_digest = $6, failed_launches = 0,
        failing_since = NULL, remakes = s.remakes + $7::boolean::integer
    FROM slot WHERE s.id = slot.id
),
bot AS (
    UPDATE bots b SET container_ref = $3, container_at = botpool_now()
    FROM slot WHERE b.id = slot.assigned_bot_id
)
INSERT INTO transitions (
    at, machine, platform, from_status, to_status,
    slot_id, slot_name, container_ref, lease, bot_id, correlation_id, reason, details
)
SELECT
    botpool_now(), 'slot', platform, status, status,
    id, slot_name, $3, lease, bot_id, correlation_id,
    CASE
        WHEN container_ref IS NULL THEN 'container created'
        WHEN container_ref = $3 THEN 'container moved'
        WHEN $7 THEN 'container created again: launches failed on the old one, in a row: ' || failed_launches
        ELSE 'container created again'
    END,
    jsonb_build_object('oldContainerRef', container_ref, 'newContainerRef', $3::text, 'attempt', $5::integer)
FROM slot
RETURNING *;

-- name: record_deployment
-- Note, under the lease and where that is news, which deployment a slot is in ($3), and what the engine says of
-- it ($4) or what it waits for ($5), or both. $6 is the reason that is recorded.
WITH slot AS MATERIALIZED (
    SELECT s.*, b.correlation_id FROM bot_pool_slots s JOIN bots b ON b.id = s.assigned_bot_id
    WHERE s.id = $1 AND s.lease = $2
        AND (s.deployment_ref, s.deployment_status, s.waits_for) IS DISTINCT FROM ($3, $4, $5)
        AND (s.status = 'deploying' OR $5 IS NULL)
    FOR NO KEY UPDATE OF s
),
changed AS (
    UPDATE bot_pool_slots s SET deployment_ref = $3, deployment_status = $4, waits_for = $5
    FROM slot WHERE s.id = slot.id
)
INSERT INTO transitions (
    at, machine, platform, from_status, to_status,
    slot_id, slot_name, container_ref, lease, bot_id, correlation_id, reason, details
)
SELECT
    botpool_now(), 'slot', platform, status, status,
    id, slot_name, container_ref, lease, assigned_bot_id, correlation_id, $6,
    jsonb_build_object(
        'deployment', $3::text,
        'oldStatus', CASE
            WHEN deployment_ref IS NOT DISTINCT FROM $3 THEN coalesce(deployment_status, waits_for)
        END,
        'newStatus', coalesce($4::text, $5::text)
    )
FROM slot
RETURNING *;

-- name: record_node
-- Note, under the lease, on which node of its host a slot's container is.
UPDATE bot_pool_slots SET node = $3 WHERE id = $1 AND lease = $2 AND node IS DISTINCT FROM $3;

-- name: record_stopped
-- Note, under the lease, that nothing of a slot's container runs: before it is removed, for then nothing
-- could prove it any more.
UPDATE bot_pool_slots SET deployment_ref = NULL, node = NULL WHERE id = $1 AND lease = $2;

-- name: record_start
-- Note, under its lease, that a slot without a bot was started ($3).
UPDATE bot_pool_slots SET deployment_ref = $3, deployment_started_at = botpool_now()
WHERE id = $1 AND lease = $2 AND status = 'releasing';

-- name: without_container
-- Idle slots of a host that have no container, and whose image is there; $3: whatever image they have.
SELECT *, botpool_now() AS read_at FROM bot_pool_slots s
WHERE engine = $1 AND host = $2 AND container_ref IS NULL AND status = 'idle' AND NOT held
    AND ($3 OR image IS NULL OR EXISTS (
        SELECT FROM image_pulls p
        WHERE p.engine = s.engine AND p.host = s.host AND p.image = s.image AND p.status = 'present'
    ));

-- name: give_up_container
-- Let a slot have no container, and the next one of this image ($3). If it had one, why ($4) is told.
WITH before AS MATERIALIZED (
    SELECT s AS slot FROM bot_pool_slots s WHERE id = $1 AND lease = $2 FOR NO KEY UPDATE
),
changed AS (
    UPDATE bot_pool_slots
    SET image = $3, container_ref = NULL, spec_digest = NULL, failed_launches = 0, failing_since = NULL
    FROM before WHERE id = (slot).id
)
SELECT told.* FROM before, LATERAL note_slot(slot, $4, jsonb_build_object(
    'oldContainerRef', (slot).container_ref, 'oldImage', (slot).image, 'newImage', $3::text
)) told
WHERE (slot).container_ref IS NOT NULL;

-- name: adapt_container
-- Note and tell, under its lease, that a slot's container was changed: it is of this image ($3), and as this
-- says ($4). $5 says why.
WITH before AS MATERIALIZED (
    SELECT s AS slot FROM bot_pool_slots s WHERE id = $1 AND lease = $2 FOR NO KEY UPDATE
),
changed AS (
    UPDATE bot_pool_slots SET image = $3, spec_digest = $4 FROM before WHERE id = (slot).id
)
SELECT told.* FROM before, LATERAL note_slot(
    slot, $5, jsonb_build_object('oldImage', (slot).image, 'newImage', $3::text)
) told;

-- name: take_shown
-- Take the slots of these engines ($1) whose status is to be shown. If that was not done within $2 ms,
-- another replica takes them.
WITH due AS MATERIALIZED (
    SELECT id FROM bot_pool_slots
    WHERE show_at <= (SELECT botpool_now()) AND engine || '/' || host = ANY ($1::text[])
        AND container_ref IS NOT NULL
    ORDER BY show_at, id
    LIMIT $3
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE bot_pool_slots s SET show_at = botpool_now() + $2 * interval '1 millisecond'
FROM due WHERE s.id = due.id
RETURNING s.*, botpool_now() AS read_at;

-- name: shown
-- What a slot does is shown, if it still does it.
UPDATE bot_pool_slots SET show_at = NULL WHERE id = $1 AND lease = $2 AND status = $3;

-- name: show_again
-- The engine shows something else than what a slot does, if it still does it.
UPDATE bot_pool_slots SET show_at = botpool_now()
WHERE id = $1 AND lease = $2 AND status = $3 AND show_at IS NULL;

-- name: count_failed_repair
-- Count a failed attempt to repair a slot, of $4, and tell why it failed ($3).
WITH failed AS (
    UPDATE bot_pool_slots s SET recovery_attempts = recovery_attempts + 1, error_message = $3
    WHERE id = $1 AND lease = $2 AND status = 'error'
    RETURNING s AS slot
)
SELECT told.* FROM failed, LATERAL note_slot(
    slot,
    format('recovery %s of %s failed: %s', (slot).recovery_attempts, $4::integer, $3::text),
    jsonb_build_object('attempt', (slot).recovery_attempts, 'error', $3::text)
) told;

-- name: note
-- Tell in the timeline of a slot, under its lease, and of its bot, what happened ($3; $4 has more).
SELECT told.* FROM bot_pool_slots s, LATERAL note_slot(s, $3, $4::jsonb) told
WHERE s.id = $1 AND s.lease = $2;

-- name: tell_error
-- Tell in the timeline of a slot, under its lease, and of its bot, what goes wrong ($3; $4 in a sentence) at
-- which attempt, if that is news there.
SELECT * FROM tell_error(ARRAY[$1::bigint], ARRAY[$2::bigint], $3, $4, $5);

-- name: tell_pull_error
-- Tell in the timelines of the slots that wait for an image, or of one of them ($7), and of their bots, why
-- its pull failed ($4; $5 in a sentence) at which attempt: where that is news.
SELECT t.*
FROM (
    SELECT array_agg(id) AS ids, array_agg(lease) AS leases FROM bot_pool_slots
    WHERE engine = $1 AND host = $2 AND image = $3
        AND status = 'deploying' AND waits_for = 'image' AND ($7::bigint IS NULL OR id = $7)
) waiting, LATERAL tell_error(ids, leases, $4, $5, $6) t;

-- name: extend_deployment
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

-- name: stuck
-- Slots that have been deploying for $1 ms since that was last extended, in which their bots could be
-- heard.
SELECT s.*, botpool_now() AS read_at FROM bot_pool_slots s
WHERE status = 'deploying' AND last_used_at <= botpool_now() - $1 * interval '1 millisecond'
    AND heard_for(last_used_at) >= $1 * interval '1 millisecond'
ORDER BY last_used_at, id;

-- name: silent
-- Busy slots whose bot was not heard since $1, nor for the $2 ms of it in which it could be.
SELECT s.*, botpool_now() AS read_at
FROM bot_pool_slots s JOIN bots b ON b.id = s.assigned_bot_id
WHERE s.status = 'busy' AND last_heard(b, s) < $1
    AND heard_for(last_heard(b, s)) > $2 * interval '1 millisecond'
ORDER BY s.id;

-- name: with_ended_bot
-- Slots whose bot has ended.
SELECT s.*, botpool_now() AS read_at
FROM bot_pool_slots s JOIN bots b ON b.id = s.assigned_bot_id
WHERE s.status IN ('deploying', 'busy') AND b.ended_at IS NOT NULL
ORDER BY s.id;
