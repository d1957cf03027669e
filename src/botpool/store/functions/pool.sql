-- The pool's operations that must take a lock before they look.
--
-- Why functions: a statement sees the database as it was when the statement began, so one that
-- waits for a lock and then counts slots counts those of before the wait. Inside a function every
-- statement looks anew, and lock, look and write are still one round trip and one transaction.
--
-- The platform's advisory lock keeps two things apart: bots that join the queue (exclusive), and
-- slots that become idle (shared, so they don't wait for each other). Without it a bot could join
-- the queue while a slot becomes idle, neither seeing the other, and wait beside a free slot.
-- Taking an idle slot needs no lock: where a slot is idle, nobody waits.
--
-- Locks are always taken in this order: host, platform, slots by their id, queue entry, bot.
--
-- Every function that changes something returns the rows that it wrote to transitions.

CREATE OR REPLACE FUNCTION platform_lock(p_platform text) RETURNS bigint LANGUAGE sql IMMUTABLE
    AS $$ SELECT hashtextextended('botpool/' || p_platform, 0) $$;

CREATE OR REPLACE FUNCTION slot_name(p_platform text, p_number integer) RETURNS text
    LANGUAGE sql IMMUTABLE
    AS $$ SELECT format('pool-%s-%s%s', p_platform, repeat('0', 3 - length(p_number::text)), p_number) $$;

CREATE OR REPLACE FUNCTION milliseconds(p_interval interval) RETURNS bigint LANGUAGE sql IMMUTABLE
    AS $$ SELECT (extract(epoch FROM p_interval) * 1000)::bigint $$;

-- Write what happened to a slot or a bot. Either may be NULL where it has no part in it.
CREATE OR REPLACE FUNCTION record_step(
    p_machine text, p_from text, p_to text, p_slot bot_pool_slots, p_bot bots, p_reason text,
    p_details jsonb, p_now timestamptz
) RETURNS SETOF transitions LANGUAGE sql AS $$
    INSERT INTO transitions (
        at, machine, platform, from_status, to_status,
        slot_id, slot_name, container_ref, lease, bot_id, correlation_id, reason, details
    )
    VALUES (
        p_now, p_machine, coalesce(p_slot.platform, p_bot.platform), p_from, p_to,
        p_slot.id, p_slot.slot_name, p_slot.container_ref, p_slot.lease,
        p_bot.id, p_bot.correlation_id, p_reason, p_details
    )
    RETURNING *
$$;

-- Whether a bot waits for a slot of this platform and may still have one. The order is there for the
-- planner: it makes it look at one entry of the index, where EXISTS makes it read other platforms'.
CREATE OR REPLACE FUNCTION somebody_waits(p_platform text, p_now timestamptz) RETURNS boolean
    LANGUAGE sql STABLE AS $$
    SELECT (
        SELECT id FROM bot_pool_queue
        WHERE platform = p_platform AND timeout_at > p_now
        ORDER BY priority, queued_at, id
        LIMIT 1
    ) IS NOT NULL
$$;

-- How long the bot at this position will wait: every slot of the platform becomes free once in the
-- time that slots were lately occupied, so one does every share of it. NULL while nothing is known.
CREATE OR REPLACE FUNCTION estimated_wait_ms(p_platform text, p_position bigint) RETURNS bigint
    LANGUAGE sql STABLE AS $$
    SELECT ceil(p_position * avg(occupied_ms) / nullif((
        SELECT size - (
            SELECT count(*) FROM bot_pool_slots WHERE platform = p_platform AND status = 'error'
        )
        FROM pools WHERE platform = p_platform
    ), 0))::bigint
    FROM (
        SELECT (details ->> 'occupiedMs')::bigint AS occupied_ms
        FROM transitions
        WHERE platform = p_platform
            AND machine = 'slot' AND from_status = 'releasing' AND to_status = 'idle'
        ORDER BY id DESC
        LIMIT 100
    ) recent
$$;

-- The first number that no slot of this platform has, of p_size slots. Without gaps it is the next;
-- only where there is one is it looked for.
CREATE OR REPLACE FUNCTION first_free_number(p_platform text, p_size integer) RETURNS integer
    LANGUAGE sql STABLE AS $$
    SELECT CASE
        WHEN p_size = coalesce((
            SELECT max(number) FROM bot_pool_slots WHERE platform = p_platform
        ), 0) THEN p_size + 1
        ELSE (
            SELECT n FROM generate_series(1, p_size + 1) n
            WHERE NOT EXISTS (
                SELECT FROM bot_pool_slots WHERE platform = p_platform AND number = n
            )
            ORDER BY n
            LIMIT 1
        )
    END
$$;

-- The slot that a bot of this platform can have now: the idle one least recently used, or, where
-- the pool may grow, one that isn't there yet (its id is NULL) with the first name that is free.
-- No row: none. To grow, the caller holds the platform's lock. p_avoid is a host that is only taken
-- where there is nothing else: where the pool may grow and there is another host, it grows.
DROP FUNCTION IF EXISTS free_slot(text, boolean);
CREATE OR REPLACE FUNCTION free_slot(p_platform text, p_grow boolean, p_avoid text DEFAULT NULL)
    RETURNS SETOF bot_pool_slots LANGUAGE plpgsql AS $$
DECLARE
    v_pool pools;
    v_number integer;
BEGIN
    IF p_avoid IS NOT NULL THEN
        RETURN QUERY
        SELECT * FROM bot_pool_slots
        WHERE platform = p_platform AND status = 'idle' AND NOT held
            AND host IS DISTINCT FROM p_avoid
        ORDER BY last_used_at, id
        LIMIT 1
        FOR NO KEY UPDATE SKIP LOCKED;
        IF FOUND THEN RETURN; END IF;
    END IF;

    SELECT * INTO v_pool FROM pools WHERE platform = p_platform;
    IF p_avoid IS NULL OR NOT p_grow OR v_pool.size >= v_pool.max_size OR NOT EXISTS (
        SELECT FROM bot_pool_slots WHERE engine = v_pool.engine AND host <> p_avoid AND NOT held
    ) THEN
        RETURN QUERY
        SELECT * FROM bot_pool_slots
        WHERE platform = p_platform AND status = 'idle' AND NOT held
        ORDER BY last_used_at, id
        LIMIT 1
        FOR NO KEY UPDATE SKIP LOCKED;
        IF FOUND OR NOT p_grow THEN RETURN; END IF;
    END IF;

    IF v_pool.platform IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'BP003', MESSAGE = format('there is no pool of %s: configure it', p_platform);
    ELSIF v_pool.size < v_pool.max_size THEN
        v_number := first_free_number(p_platform, v_pool.size);
        RETURN QUERY
        SELECT (jsonb_populate_record(NULL::bot_pool_slots, jsonb_build_object(
            'number', v_number, 'slot_name', slot_name(p_platform, v_number)
        ))).*;
    ELSE
        -- Somebody may hold an idle slot and not take it. Whoever leaves here empty waits in the
        -- queue beside it, so wait for them first.
        RETURN QUERY
        SELECT * FROM bot_pool_slots
        WHERE platform = p_platform AND status = 'idle' AND NOT held
        ORDER BY last_used_at, id
        LIMIT 1
        FOR NO KEY UPDATE;
    END IF;
END $$;

-- Put a bot on the slot that free_slot gave, under a new lease. The bot's own row says already that
-- it is DEPLOYING; p_from is what it was before.
CREATE OR REPLACE FUNCTION occupy_slot(
    p_slot bot_pool_slots, p_bot bots, p_from text, p_now timestamptz
) RETURNS SETOF transitions LANGUAGE plpgsql AS $$
DECLARE
    v_slot bot_pool_slots;
    v_reason text;
BEGIN
    IF p_slot.id IS NULL THEN
        INSERT INTO bot_pool_slots (
            platform, number, slot_name, engine, image,
            status, assigned_bot_id, lease, last_used_at, last_assigned_at, created_at
        )
        SELECT
            p_bot.platform, p_slot.number, p_slot.slot_name, engine, image,
            'deploying', p_bot.id, 1, p_now, p_now, p_now
        FROM pools WHERE platform = p_bot.platform
        RETURNING * INTO v_slot;
    ELSE
        UPDATE bot_pool_slots
        SET status = 'deploying', assigned_bot_id = p_bot.id, lease = lease + 1,
            last_used_at = p_now, last_assigned_at = p_now,
            error_message = NULL, deployment_ref = NULL, deployment_status = NULL
        WHERE id = p_slot.id
        RETURNING * INTO v_slot;
    END IF;

    v_reason := format(
        'assigned to %s slot', CASE WHEN p_slot.id IS NULL THEN 'a new' ELSE 'an idle' END
    );
    RETURN QUERY SELECT * FROM record_step(
        'slot', p_slot.status, 'deploying', v_slot, p_bot, v_reason, '{}', p_now
    );
    RETURN QUERY SELECT * FROM record_step(
        'bot', p_from, 'DEPLOYING', v_slot, p_bot, v_reason, '{}', p_now
    );
END $$;

-- Give the platform's free slots to its waiting bots, in the order of the queue. The caller holds
-- the platform's lock: shared, or to grow, exclusive. The slot is taken before the entry: an entry
-- that was locked and then not served would be passed over by somebody who has a slot for it.
CREATE OR REPLACE FUNCTION serve_queue(p_platform text, p_grow boolean) RETURNS SETOF transitions
    LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := botpool_now();
    v_avoid text;
    v_slot bot_pool_slots;
    v_bot_id bigint;
    v_bot bots;
BEGIN
    WHILE somebody_waits(p_platform, v_now) LOOP
        SELECT b.avoid_host INTO v_avoid FROM bots b WHERE b.id = (
            SELECT bot_id FROM bot_pool_queue
            WHERE platform = p_platform AND timeout_at > v_now
            ORDER BY priority, queued_at, id
            LIMIT 1
        );
        SELECT * INTO v_slot FROM free_slot(p_platform, p_grow, v_avoid);
        EXIT WHEN NOT FOUND;

        DELETE FROM bot_pool_queue
        WHERE id = (
            SELECT id FROM bot_pool_queue
            WHERE platform = p_platform AND timeout_at > v_now
            ORDER BY priority, queued_at, id
            LIMIT 1
            FOR NO KEY UPDATE SKIP LOCKED
        )
        RETURNING bot_id INTO v_bot_id;
        EXIT WHEN NOT FOUND;

        UPDATE bots
        SET status = 'DEPLOYING', launch_attempts = launch_attempts + 1,
            slot_name = v_slot.slot_name, container_ref = v_slot.container_ref,
            lease = coalesce(v_slot.lease, 0) + 1
        WHERE id = v_bot_id
        RETURNING * INTO v_bot;

        RETURN QUERY SELECT * FROM occupy_slot(v_slot, v_bot, 'QUEUED', v_now);
    END LOOP;
END $$;

-- Let a bot, whose row says QUEUED already, wait. p_since is the time that its place counts from.
CREATE OR REPLACE FUNCTION enqueue(
    p_bot bots, p_from text, p_since timestamptz, p_now timestamptz, p_reason text
) RETURNS SETOF transitions LANGUAGE plpgsql AS $$
DECLARE
    v_entry bot_pool_queue;
    v_position bigint;
BEGIN
    INSERT INTO bot_pool_queue (bot_id, platform, priority, queued_at, timeout_at)
    VALUES (
        p_bot.id, p_bot.platform, p_bot.priority, p_since,
        p_now + p_bot.queue_timeout_ms * interval '1 millisecond'
    )
    RETURNING * INTO v_entry;

    SELECT count(*) INTO v_position FROM bot_pool_queue
    WHERE platform = v_entry.platform
        AND (priority, queued_at, id) <= (v_entry.priority, v_entry.queued_at, v_entry.id);

    RETURN QUERY SELECT * FROM record_step(
        'bot', p_from, 'QUEUED', NULL, p_bot, p_reason,
        jsonb_strip_nulls(jsonb_build_object(
            'queuePosition', v_position,
            'estimatedWaitMs', estimated_wait_ms(p_bot.platform, v_position),
            'timeoutAt', v_entry.timeout_at
        )),
        p_now
    );
END $$;

-- Create bots of a platform, in this order, when no idle slot was there for the taking: serve those
-- who wait already, then let each take an idle slot, or grow the pool, or wait.
DROP FUNCTION IF EXISTS
    create_bots(text, text[], text[], integer[], integer[], text[], jsonb[], jsonb[]);
DROP FUNCTION IF EXISTS create_bots(
    text, text[], text[], integer[], integer[], text[], jsonb[], jsonb[], bigint[], text[], text[],
    text[], bytea[]
);
CREATE OR REPLACE FUNCTION create_bots(
    p_platform text, p_meeting_urls text[], p_bot_display_names text[], p_priorities integer[],
    p_queue_timeouts_ms integer[], p_correlation_ids text[], p_metadata jsonb[], p_configs jsonb[],
    p_key_ids bigint[], p_callback_urls text[], p_deduplication_keys text[],
    p_idempotency_keys text[], p_request_digests bytea[], p_max_launch_attempts integer[],
    p_relaunch_in_call boolean[]
) RETURNS SETOF transitions LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz;
    v_slot bot_pool_slots;
    v_bot bots;
BEGIN
    PERFORM pg_advisory_xact_lock(platform_lock(p_platform));
    RETURN QUERY SELECT * FROM serve_queue(p_platform, true);

    FOR i IN 1 .. cardinality(p_meeting_urls) LOOP
        v_now := botpool_now();
        v_slot := NULL;
        IF NOT somebody_waits(p_platform, v_now) THEN
            SELECT * INTO v_slot FROM free_slot(p_platform, true);
        END IF;

        INSERT INTO bots (
            platform, meeting_url, bot_display_name, status, priority, queue_timeout_ms,
            correlation_id, metadata, config, launch_attempts, slot_name, container_ref, lease,
            created_at, key_id, callback_url, deduplication_key, idempotency_key, request_digest,
            max_launch_attempts, relaunch_in_call
        )
        VALUES (
            p_platform, p_meeting_urls[i], p_bot_display_names[i],
            CASE WHEN v_slot.slot_name IS NULL THEN 'QUEUED' ELSE 'DEPLOYING' END,
            p_priorities[i], p_queue_timeouts_ms[i], p_correlation_ids[i], p_metadata[i], p_configs[i],
            CASE WHEN v_slot.slot_name IS NULL THEN 0 ELSE 1 END,
            v_slot.slot_name, v_slot.container_ref,
            CASE WHEN v_slot.slot_name IS NOT NULL THEN coalesce(v_slot.lease, 0) + 1 END, v_now,
            p_key_ids[i], p_callback_urls[i], p_deduplication_keys[i], p_idempotency_keys[i],
            p_request_digests[i], p_max_launch_attempts[i], p_relaunch_in_call[i]
        )
        RETURNING * INTO v_bot;

        IF v_bot.status = 'QUEUED' THEN
            RETURN QUERY SELECT * FROM enqueue(v_bot, NULL, v_now, v_now, 'every slot is taken');
        ELSE
            RETURN QUERY SELECT * FROM occupy_slot(v_slot, v_bot, NULL, v_now);
        END IF;
    END LOOP;
END $$;

-- Slots whose container is proved stopped become idle, and go to the bots that wait for them.
-- p_from is 'releasing', or 'error' for slots that are well again. An old lease frees nothing; nor is
-- a slot freed that is to be deleted.
CREATE OR REPLACE FUNCTION free_slots(
    p_slot_ids bigint[], p_leases bigint[], p_from text, p_reason text
) RETURNS SETOF transitions LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz;
    v_platforms text[];
    v_platform text;
BEGIN
    SELECT array_agg(DISTINCT platform ORDER BY platform) INTO v_platforms
    FROM bot_pool_slots WHERE id = ANY (p_slot_ids);
    FOREACH v_platform IN ARRAY coalesce(v_platforms, '{}') LOOP
        PERFORM pg_advisory_xact_lock_shared(platform_lock(v_platform));
    END LOOP;

    v_now := botpool_now();
    RETURN QUERY
    WITH stopped AS MATERIALIZED (
        SELECT s.id
        FROM unnest(p_slot_ids, p_leases) AS asked (slot_id, lease)
        JOIN bot_pool_slots s
            ON s.id = asked.slot_id AND s.lease = asked.lease AND s.status = p_from
                AND NOT s.draining
        ORDER BY s.id
        FOR NO KEY UPDATE OF s
    ), freed AS (
        UPDATE bot_pool_slots s
        SET status = 'idle', recovery_attempts = 0, error_message = NULL
        FROM stopped WHERE s.id = stopped.id
        RETURNING s.*
    )
    INSERT INTO transitions (
        at, machine, platform, from_status, to_status,
        slot_id, slot_name, container_ref, lease, reason, details
    )
    SELECT
        v_now, 'slot', platform, p_from, 'idle', id, slot_name, container_ref, lease, p_reason,
        jsonb_build_object('occupiedMs', milliseconds(v_now - last_assigned_at))
    FROM freed
    RETURNING *;

    FOREACH v_platform IN ARRAY coalesce(v_platforms, '{}') LOOP
        RETURN QUERY SELECT * FROM serve_queue(v_platform, false);
    END LOOP;
END $$;

-- Put the bot of a slot back into the queue, at the place that its creation gave it, and on to the
-- next free slot if there is one, on another host where there is one. Its old slot is in error. Nothing
-- happens under an old lease, when the bot has been in its call and nobody asked for it to go back
-- there, when it was heard since p_unless_heard_since, when its slot is not what it was (p_was), or when
-- it was launched p_max_attempts times.
DROP FUNCTION IF EXISTS relaunch_bot(bigint, bigint, text, text[], integer);
CREATE OR REPLACE FUNCTION relaunch_bot(
    p_slot_id bigint, p_lease bigint, p_reason text, p_relaunchable text[], p_max_attempts integer,
    p_unless_heard_since timestamptz, p_was text
) RETURNS SETOF transitions LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz;
    v_slot bot_pool_slots;
    v_bot bots;
    v_from text;
BEGIN
    PERFORM pg_advisory_xact_lock(platform_lock(platform)) FROM bot_pool_slots WHERE id = p_slot_id;

    SELECT * INTO v_slot FROM bot_pool_slots
    WHERE id = p_slot_id AND lease = p_lease AND assigned_bot_id IS NOT NULL
        AND status = coalesce(p_was, status)
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN RETURN; END IF;
    SELECT status INTO v_from FROM bots
    WHERE id = v_slot.assigned_bot_id
        AND (status = ANY (p_relaunchable) OR (status = 'IN_CALL' AND relaunch_in_call))
        AND launch_attempts < coalesce(max_launch_attempts, p_max_attempts)
        AND (
            p_unless_heard_since IS NULL
            OR greatest(last_heartbeat, started_at, v_slot.last_assigned_at) < p_unless_heard_since
        )
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN RETURN; END IF;

    v_now := botpool_now();
    UPDATE bot_pool_slots
    SET status = 'error', error_message = p_reason, assigned_bot_id = NULL, last_released_at = v_now
    WHERE id = v_slot.id;
    UPDATE bots
    SET status = 'QUEUED', started_at = NULL, last_heartbeat = NULL, avoid_host = v_slot.host
    WHERE id = v_slot.assigned_bot_id
    RETURNING * INTO v_bot;

    RETURN QUERY SELECT * FROM record_step(
        'slot', v_slot.status, 'error', v_slot, v_bot, p_reason,
        jsonb_build_object(
            'botStatus', v_bot.status,
            'heldMs', milliseconds(v_now - v_slot.last_assigned_at),
            'launchAttempts', v_bot.launch_attempts
        ),
        v_now
    );
    RETURN QUERY SELECT * FROM enqueue(v_bot, v_from, v_bot.created_at, v_now, p_reason);
    RETURN QUERY SELECT * FROM serve_queue(v_slot.platform, true);
END $$;

-- Delete a slot that is in error, or that is drained and has no bot. Its name is free, and those who
-- wait may have a new slot for it.
CREATE OR REPLACE FUNCTION delete_slot(p_slot_id bigint, p_lease bigint, p_reason text)
    RETURNS SETOF transitions LANGUAGE plpgsql AS $$
DECLARE
    v_slot bot_pool_slots;
BEGIN
    PERFORM pg_advisory_xact_lock(platform_lock(platform)) FROM bot_pool_slots WHERE id = p_slot_id;
    DELETE FROM bot_pool_slots
    WHERE id = p_slot_id AND lease = p_lease
        AND (status = 'error' OR (draining AND status IN ('idle', 'releasing')))
    RETURNING * INTO v_slot;
    IF NOT FOUND THEN RETURN; END IF;

    RETURN QUERY SELECT * FROM record_step(
        'slot', v_slot.status, NULL, v_slot, NULL, p_reason,
        jsonb_build_object('recoveryAttempts', v_slot.recovery_attempts), botpool_now()
    );
    RETURN QUERY SELECT * FROM serve_queue(v_slot.platform, true);
END $$;

-- Say how far the pool of a platform may grow, and what its new slots are made of. Those who wait may
-- have room now.
CREATE OR REPLACE FUNCTION set_pool(
    p_platform text, p_max_size integer, p_engine text, p_image text
) RETURNS SETOF transitions LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(platform_lock(p_platform));
    INSERT INTO pools (platform, max_size, engine, image)
    VALUES (p_platform, p_max_size, p_engine, p_image)
    ON CONFLICT (platform) DO UPDATE SET max_size = p_max_size, engine = p_engine, image = p_image;
    RETURN QUERY SELECT * FROM serve_queue(p_platform, true);
END $$;

-- Give what is free to those who wait. Every change that frees a slot does so itself; this is for
-- what no change tells of, such as one that was killed after it had passed over a locked entry.
CREATE OR REPLACE FUNCTION assign_waiting(p_platform text) RETURNS SETOF transitions
    LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(platform_lock(p_platform));
    RETURN QUERY SELECT * FROM serve_queue(p_platform, true);
END $$;

-- Stop a bot on request: one that waits or deploys is cancelled, and its slot released; one whose
-- container runs is told to leave, and its slot looked at when the time to do so is over. One that
-- leaves already, or has ended, stays as it is.
DROP FUNCTION IF EXISTS stop_bot(bigint, text);
CREATE OR REPLACE FUNCTION stop_bot(p_bot_id bigint, p_reason text, p_grace_ms integer)
    RETURNS SETOF transitions LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := botpool_now();
    v_waited boolean;
    v_slot bot_pool_slots;
    v_bot bots;
    v_from text;
BEGIN
    LOOP
        -- Who has locked the bot's place is the only one who moves it.
        DELETE FROM bot_pool_queue WHERE bot_id = p_bot_id;
        v_waited := FOUND;
        SELECT * INTO v_slot FROM bot_pool_slots WHERE assigned_bot_id = p_bot_id FOR NO KEY UPDATE;
        SELECT * INTO v_bot FROM bots WHERE id = p_bot_id;
        IF NOT FOUND OR v_bot.ended_at IS NOT NULL OR v_bot.status = 'LEAVING' THEN RETURN; END IF;
        EXIT WHEN v_waited OR v_slot.id IS NOT NULL OR v_bot.status = 'PENDING';
        -- It went from the one place to the other between the two looks: look again.
    END LOOP;

    v_from := v_bot.status;
    UPDATE bots
    SET status = CASE WHEN v_from IN ('PENDING', 'QUEUED', 'DEPLOYING') THEN 'CANCELLED' ELSE 'LEAVING' END,
        ended_at = CASE WHEN v_from IN ('PENDING', 'QUEUED', 'DEPLOYING') THEN v_now END
    WHERE id = p_bot_id
    RETURNING * INTO v_bot;

    IF v_bot.status = 'LEAVING' THEN
        UPDATE bot_pool_slots SET due_at = v_now + p_grace_ms * interval '1 millisecond'
        WHERE id = v_slot.id;
    ELSIF v_slot.id IS NOT NULL THEN
        UPDATE bot_pool_slots
        SET status = 'releasing', assigned_bot_id = NULL, last_released_at = v_now
        WHERE id = v_slot.id;
        RETURN QUERY SELECT * FROM record_step(
            'slot', v_slot.status, 'releasing', v_slot, v_bot, p_reason,
            jsonb_build_object(
                'botStatus', v_bot.status, 'heldMs', milliseconds(v_now - v_slot.last_assigned_at)
            ),
            v_now
        );
    END IF;
    RETURN QUERY SELECT * FROM record_step(
        'bot', v_from, v_bot.status, v_slot, v_bot, p_reason, '{}', v_now
    );
END $$;

-- Bots before an id, newest first, by whichever of these is given. The conditions are put together
-- anew each time, so that a correlation or a container is looked up by its index.
CREATE OR REPLACE FUNCTION list_bots(
    p_before bigint, p_limit integer, p_key_id bigint, p_platform text, p_statuses text[],
    p_container_ref text, p_correlation_id text, p_deduplication_key text
) RETURNS SETOF bots LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY EXECUTE concat(
        'SELECT * FROM bots WHERE id < $1',
        CASE WHEN p_key_id IS NOT NULL THEN ' AND key_id = $3' END,
        CASE WHEN p_platform IS NOT NULL THEN ' AND platform = $4' END,
        CASE WHEN p_statuses IS NOT NULL THEN ' AND status = ANY ($5)' END,
        CASE WHEN p_container_ref IS NOT NULL THEN ' AND container_ref = $6' END,
        CASE WHEN p_correlation_id IS NOT NULL THEN ' AND correlation_id = $7' END,
        CASE WHEN p_deduplication_key IS NOT NULL THEN ' AND deduplication_key = $8' END,
        ' ORDER BY id DESC LIMIT $2'
    )
    USING p_before, p_limit, p_key_id, p_platform, p_statuses, p_container_ref, p_correlation_id,
        p_deduplication_key;
END $$;

-- Let a slot get no further bot. One that is idle is deleted at once; others when they are free.
CREATE OR REPLACE FUNCTION drain_slot(p_slot_id bigint, p_reason text)
    RETURNS SETOF transitions LANGUAGE plpgsql AS $$
DECLARE
    v_slot bot_pool_slots;
BEGIN
    PERFORM pg_advisory_xact_lock(platform_lock(platform)) FROM bot_pool_slots WHERE id = p_slot_id;
    UPDATE bot_pool_slots SET draining = true WHERE id = p_slot_id RETURNING * INTO v_slot;
    IF v_slot.status = 'idle' THEN
        RETURN QUERY SELECT * FROM delete_slot(v_slot.id, v_slot.lease, p_reason);
    END IF;
END $$;
