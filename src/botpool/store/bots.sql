-- name: create
-- Create bots of a platform, as far as the limits of their projects let them in: each on the idle slot least
-- recently used; where $3 says that the pool may grow and bots may wait, else on a new slot or in the queue.
-- What the limits say is in every row. Without a transition there is one row, and all else is NULL.
SELECT step.*, rulings
FROM admit_bots($2::jsonb)
LEFT JOIN LATERAL create_bots($1, admitted, $3) step ON admitted <> '[]';

-- name: stop
-- Cancel a bot that waits or deploys, tell one that runs to leave.
SELECT * FROM stop_bot($1, $2, $3, $4);

-- name: leaving
-- The slots, by lease, whose bots were told to leave. They are due when their time to do so, at most $1 ms,
-- is over.
SELECT s.id AS slot_id, s.lease FROM bot_pool_slots s
JOIN bots b ON b.id = s.assigned_bot_id
WHERE s.due_at IS NOT NULL
    AND greatest(s.due_at, s.reserved_until) <= botpool_now() + $1 * interval '1 millisecond'
    AND s.status = 'busy' AND b.status = 'LEAVING';

-- name: advance
-- Record, under its lease, how far a bot has come ($1): its slot is busy, and its status is the one that
-- is said, if that is a step forward from where it was ($2). To leave it has $3 ms; then its slot is
-- looked at. What the bot itself says (`heard`) is as good as a heartbeat.
WITH said AS MATERIALIZED (
    SELECT botpool_now() AS now, s.* FROM jsonb_to_record($1::jsonb) AS s (
        slot_id bigint, lease bigint, status text, reason text, details jsonb, heard boolean
    )
),
holder AS MATERIALIZED (
    SELECT
        s.id, s.slot_name, s.platform, s.container_ref, s.lease, s.status AS slot_status,
        b.id AS bot_id, b.status AS bot_status, b.correlation_id,
        b.status = ANY ($2::text[]) AS forward
    FROM said
    JOIN bot_pool_slots s ON s.id = said.slot_id AND s.lease = said.lease
    JOIN bots b ON b.id = s.assigned_bot_id
    WHERE b.ended_at IS NULL
    FOR NO KEY UPDATE OF s, b
),
slot AS (
    UPDATE bot_pool_slots s
    SET status = 'busy', recovery_attempts = 0,
        due_at = CASE
            WHEN leaves THEN now + $3 * interval '1 millisecond'
            ELSE s.due_at
        END
    FROM holder, said, LATERAL (SELECT said.status = 'LEAVING' AND forward AS leaves) step
    WHERE s.id = holder.id AND (slot_status = 'deploying' OR leaves)
),
bot AS (
    UPDATE bots b
    SET status = CASE WHEN forward THEN said.status ELSE b.status END,
        started_at = CASE WHEN forward THEN coalesce(b.started_at, now) ELSE b.started_at END,
        last_heartbeat = CASE WHEN heard THEN now ELSE b.last_heartbeat END,
        claimed_at = CASE WHEN heard THEN coalesce(b.claimed_at, now) ELSE b.claimed_at END,
        waiting_room_at = CASE
            WHEN forward AND said.status IN ('IN_WAITING_ROOM', 'IN_CALL')
                THEN coalesce(b.waiting_room_at, now)
            ELSE b.waiting_room_at
        END
    FROM holder, said
    WHERE b.id = holder.bot_id AND (forward OR heard)
)
INSERT INTO transitions (
    at, machine, platform, from_status, to_status,
    slot_id, slot_name, container_ref, lease, bot_id, correlation_id, reason, details
)
SELECT
    now, machine, platform, from_status, to_status,
    id, slot_name, container_ref, holder.lease, bot_id, correlation_id, reason,
    -- What the engine calls a deployment is the slot's affair: clients see what happens to their bots.
    CASE machine WHEN 'slot' THEN details ELSE details - 'deployment' END
FROM said, holder, LATERAL (
    VALUES
        ('slot', slot_status, 'busy', slot_status = 'deploying'),
        ('bot', bot_status, said.status, forward)
) step (machine, from_status, to_status, taken)
WHERE taken
ORDER BY machine DESC
RETURNING *;

-- name: record_heartbeats
-- Note that the bots of these slots live. Returns a row for each lease that is the current one. Only
-- the bots are locked: a bot that has meanwhile left the slot tells so itself, by where it is.
WITH beating AS MATERIALIZED (
    SELECT s.id AS slot_id, s.lease, s.status AS slot_status, b.id, b.status AS bot_status
    FROM unnest($1::bigint[], $2::bigint[]) AS asked (slot_id, lease)
    JOIN bot_pool_slots s ON s.id = asked.slot_id AND s.lease = asked.lease
    JOIN bots b ON b.id = s.assigned_bot_id
    WHERE b.lease = s.lease AND b.slot_name = s.slot_name AND b.status = ANY (bot_holds_slot())
    ORDER BY b.id
    FOR NO KEY UPDATE OF b
)
UPDATE bots b SET last_heartbeat = botpool_now()
FROM beating
WHERE b.id = beating.id
RETURNING beating.slot_id, beating.lease, beating.slot_status, beating.bot_status;

-- name: get
-- One bot.
SELECT * FROM bots WHERE id = $1;

-- name: some
-- Bots by their ids.
SELECT * FROM bots WHERE id = ANY ($1::bigint[]);

-- name: unheard
-- Those of these bots that were not heard since their last launch, and have not ended.
SELECT * FROM bots WHERE id = ANY ($1::bigint[]) AND last_heartbeat IS NULL AND ended_at IS NULL;

-- name: first_waiting
-- The bot that waits longest for an image on a host, or whose start ($4) is to bring it there.
SELECT b.* FROM bot_pool_slots s JOIN bots b ON b.id = s.assigned_bot_id
WHERE s.engine = $1 AND s.host = $2 AND s.image = $3
    AND s.status = 'deploying' AND (s.waits_for = 'image' OR s.id = $4)
ORDER BY s.last_assigned_at, s.id
LIMIT 1;

-- name: delete
-- Delete an ended bot and what tells of it.
SELECT delete_bot($1) AS deleted;

-- name: of_request
-- The bot that a project's request was answered with.
SELECT * FROM bots WHERE project_id = $1 AND idempotency_key = $2;

-- name: of_deduplication_key
-- The live bot that has a deduplication key in a project.
SELECT * FROM bots WHERE project_id = $1 AND deduplication_key = $2 AND ended_at IS NULL;

-- name: of_container
-- The bot that a container serves, or, after its end, the one that it served last.
SELECT b.* FROM bots b
WHERE b.id = coalesce(
    (SELECT assigned_bot_id FROM bot_pool_slots WHERE container_ref = $1),
    (SELECT id FROM bots WHERE container_ref = $1 ORDER BY lease DESC LIMIT 1)
);

-- name: page
-- One page of bots ($1), newest first: before an id, of a project, platform, statuses, container,
-- correlation or deduplication key, where these are given. Without their configurations, which may be
-- large, and which no list shows.
SELECT page.* FROM list_bots($1::jsonb) AS b, jsonb_populate_record(b, '{"config": {}}') AS page;

-- name: search
-- One page of bots as people look for them ($1).
SELECT * FROM search_bots($1::jsonb);

-- name: live
-- How many bots that have not ended there are, by platform and status.
SELECT platform, status, count(*) AS bots FROM bots WHERE ended_at IS NULL GROUP BY platform, status;

-- name: created_since
-- How many bots were created since $1, by the cause of their failure.
SELECT failure_cause AS cause, count(*) AS bots FROM bots WHERE created_at >= $1
GROUP BY failure_cause ORDER BY bots DESC, cause;

-- name: launching
-- The bots that have a slot and are not in their call yet, the oldest first, at most $1.
SELECT * FROM bots
WHERE ended_at IS NULL AND status IN ('DEPLOYING', 'JOINING_CALL', 'IN_WAITING_ROOM')
ORDER BY id LIMIT $1;

-- name: recent_launches
-- How long bots that came into their call since $1 took from their creation: half of them, and all but 5 %.
SELECT
    count(*) AS launches,
    percentile_cont(0.5) WITHIN GROUP (ORDER BY took_ms) AS p50_ms,
    percentile_cont(0.95) WITHIN GROUP (ORDER BY took_ms) AS p95_ms
FROM (
    SELECT extract(epoch FROM b.joined_at - b.created_at)::double precision * 1000 AS took_ms
    FROM transitions t JOIN bots b ON b.id = t.bot_id
    WHERE t.at >= $1 AND t.machine = 'bot' AND t.to_status = 'IN_CALL' AND t.from_status <> 'IN_CALL'
) launch;

-- name: prune
-- Forget bots that ended before $1, at most $2 of them.
DELETE FROM bots WHERE id IN (
    SELECT id FROM bots b
    WHERE ended_at < $1 AND created_at < $1
        AND NOT EXISTS (SELECT FROM bot_pool_slots WHERE assigned_bot_id = b.id)
    LIMIT $2
)
RETURNING id;

-- name: add_events
-- Keep what a bot tells, under its lease; beyond the newest $5 of a bot, the oldest make way. No row:
-- the lease is over, and its container proved stopped.
WITH holder AS MATERIALIZED (
    SELECT bot_id FROM bot_that_speaks($1, $2) AS bot_id WHERE bot_id IS NOT NULL
),
added AS (
    INSERT INTO bot_events (bot_id, at, type, data)
    SELECT bot_id, botpool_now(), type, data
    FROM holder, unnest($3::text[], $4::jsonb[]) WITH ORDINALITY AS event (type, data, n)
    ORDER BY n
),
dropped AS (
    DELETE FROM bot_events e USING holder
    WHERE e.bot_id = holder.bot_id AND e.id <= (
        SELECT id FROM bot_events o WHERE o.bot_id = holder.bot_id
        ORDER BY id DESC OFFSET greatest($5 - cardinality($3::text[]), 0) LIMIT 1
    )
)
SELECT bot_id FROM holder;

-- name: add_log_lines
-- Keep what a bot logs, under its lease; beyond the newest $5 of a bot, the oldest make way. No row:
-- the lease is over, and its container proved stopped.
WITH holder AS MATERIALIZED (
    SELECT bot_id FROM bot_that_speaks($1, $2) AS bot_id WHERE bot_id IS NOT NULL
),
added AS (
    INSERT INTO bot_logs (bot_id, at, level, line)
    SELECT bot_id, botpool_now(), level, line
    FROM holder, unnest($3::text[], $4::text[]) WITH ORDINALITY AS log (level, line, n)
    ORDER BY n
),
dropped AS (
    DELETE FROM bot_logs l USING holder
    WHERE l.bot_id = holder.bot_id AND l.id <= (
        SELECT id FROM bot_logs o WHERE o.bot_id = holder.bot_id
        ORDER BY id DESC OFFSET greatest($5 - cardinality($3::text[]), 0) LIMIT 1
    )
)
SELECT bot_id FROM holder;

-- name: log_lines
-- What a bot logged, in order, after the place $2: at most $3 lines, and none after they have made $4 bytes
-- full. found: how many there were, up to one beyond $3.
SELECT id, at, level, line, found
FROM (
    SELECT
        *, count(*) OVER () AS found, row_number() OVER (ORDER BY id) AS n,
        sum(octet_length(line)) OVER (ORDER BY id ROWS UNBOUNDED PRECEDING) - octet_length(line)
            AS bytes_before
    FROM (
        SELECT * FROM bot_logs WHERE bot_id = $1 AND id > $2 ORDER BY id LIMIT $3::bigint + 1
    ) line
) measured
WHERE n <= $3 AND bytes_before < $4::bigint
ORDER BY id;

-- name: keep_container_logs
-- Keep what a container wrote ($4, NULL if that can't be read) while it served a bot, and how it did ($6, $7):
-- once and for all, until its end ($5), or so far. The latter only while it serves this bot: later it may have
-- written for another.
INSERT INTO container_logs (bot_id, slot_id, lease, at, lines, final, exit_code, restarts)
SELECT id, $2, $3, botpool_now(), coalesce($4::text[], '{}'), $5, $6, $7 FROM bots
WHERE id = $1 AND ($5 OR EXISTS (
    SELECT FROM bot_pool_slots WHERE id = $2 AND lease = $3 AND assigned_bot_id = $1
))
ON CONFLICT (bot_id, slot_id, lease) DO UPDATE
SET at = excluded.at, lines = coalesce($4, container_logs.lines), final = excluded.final, wanted_at = NULL,
    exit_code = excluded.exit_code, restarts = excluded.restarts
WHERE NOT container_logs.final;

-- name: has_container_logs
-- Whether what a container wrote for a bot under a lease is kept once and for all.
SELECT FROM container_logs WHERE bot_id = $1 AND slot_id = $2 AND lease = $3 AND final;

-- name: want_container_logs
-- Want what the container of a bot has written so far, unless that was read in the last $2 ms.
INSERT INTO container_logs (bot_id, slot_id, lease, at, lines, final, wanted_at)
SELECT assigned_bot_id, id, lease, botpool_now(), '{}', false, botpool_now() FROM bot_pool_slots
WHERE assigned_bot_id = $1 AND container_ref IS NOT NULL AND deployment_started_at IS NOT NULL
ON CONFLICT (bot_id, slot_id, lease) DO UPDATE SET wanted_at = excluded.wanted_at
WHERE NOT container_logs.final
    AND container_logs.at <= botpool_now() - $2 * interval '1 millisecond'
RETURNING bot_id;

-- name: wants_container_logs
-- Whether what the container of a bot has written so far is wanted, and was not read yet.
SELECT FROM container_logs l
JOIN bot_pool_slots s ON s.id = l.slot_id AND s.lease = l.lease AND s.assigned_bot_id = l.bot_id
WHERE l.bot_id = $1 AND l.wanted_at IS NOT NULL;

-- name: wanted_container_logs
-- The slots on these hosts ($1) whose containers' output is wanted, the longest wanted first.
SELECT s.*, botpool_now() AS read_at
FROM container_logs l
JOIN bot_pool_slots s ON s.id = l.slot_id AND s.lease = l.lease AND s.assigned_bot_id = l.bot_id
WHERE l.wanted_at IS NOT NULL AND s.engine || '/' || s.host = ANY ($1::text[])
ORDER BY l.wanted_at, s.id
LIMIT 100;

-- name: container_logs
-- What the containers of a bot wrote, the oldest first.
SELECT lines FROM container_logs WHERE bot_id = $1 ORDER BY at, lease;

-- name: container_facts
-- How a bot's container did under a lease ($2), on this slot ($3) if that is known.
SELECT exit_code, restarts FROM container_logs
WHERE bot_id = $1 AND lease = $2 AND ($3::bigint IS NULL OR slot_id = $3)
ORDER BY at DESC
LIMIT 1;

-- name: container_facts_of_slot
-- How a slot's container did under its present lease.
SELECT exit_code, restarts FROM container_logs WHERE bot_id = $1 AND slot_id = $2 AND lease = $3;

-- name: had_container
-- Whether a bot ever ran in this container, as far back as bots are kept.
SELECT FROM bots WHERE container_ref = $1 LIMIT 1;
