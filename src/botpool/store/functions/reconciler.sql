-- What the reconciler must lock before it looks; why functions, see pool.sql.

-- A slot that changed its status is looked at at once, unless the new one needs nothing.
CREATE OR REPLACE FUNCTION schedule_slot() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.failed_steps := 0;
    NEW.step_error := NULL;
    IF slot_needs_work(NEW.status) THEN
        NEW.due_at := botpool_now();
    ELSIF TG_OP = 'INSERT' OR NEW.due_at IS NOT DISTINCT FROM OLD.due_at THEN
        NEW.due_at := NULL;
    END IF;
    IF TG_OP = 'UPDATE' THEN
        IF NEW.lease <> OLD.lease THEN NEW.deployment_started_at := NULL; END IF;
        IF NEW.assigned_bot_id IS NULL THEN
            NEW.last_bot_id := coalesce(OLD.assigned_bot_id, OLD.last_bot_id);
        END IF;
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER bot_pool_slots_schedule_new BEFORE INSERT ON bot_pool_slots
    FOR EACH ROW EXECUTE FUNCTION schedule_slot();
CREATE OR REPLACE TRIGGER bot_pool_slots_schedule BEFORE UPDATE OF status ON bot_pool_slots
    FOR EACH ROW WHEN (OLD.status <> NEW.status)
    EXECUTE FUNCTION schedule_slot();

-- When to probe a host that is ill next, if this time it is still so: later and later, up to a limit.
CREATE OR REPLACE FUNCTION next_probe(p_ill_since timestamptz) RETURNS timestamptz LANGUAGE sql AS $$
    SELECT botpool_now() + least(botpool_now() - p_ill_since, interval '9 minutes') + interval '1 minute'
$$;

-- Put a slot that has no host on the one of p_hosts that has the fewest slots, if it can be not on the
-- one where its bot has failed. Those that are ill are left out, until it is time for a probe: this is
-- it. Where each has p_most or more, it stays without.
DROP FUNCTION IF EXISTS place_slot(bigint, bigint, text, text[]);
CREATE OR REPLACE FUNCTION place_slot(
    p_slot_id bigint, p_lease bigint, p_engine text, p_hosts text[], p_most integer
) RETURNS SETOF bot_pool_slots LANGUAGE plpgsql AS $$
DECLARE
    v_host text;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('botpool/place/' || p_engine, 0));
    SELECT candidate.host INTO v_host
    FROM unnest(p_hosts) WITH ORDINALITY AS candidate (host, n)
    LEFT JOIN hosts known ON known.engine = p_engine AND known.host = candidate.host,
    LATERAL (
        SELECT count(*) AS slots FROM bot_pool_slots
        WHERE engine = p_engine AND host = candidate.host
    ) load
    WHERE (p_most IS NULL OR slots < p_most)
        AND (known.ill_since IS NULL OR known.probe_at <= botpool_now())
    ORDER BY
        candidate.host IS NOT DISTINCT FROM (
            SELECT b.avoid_host FROM bot_pool_slots s JOIN bots b ON b.id = s.assigned_bot_id
            WHERE s.id = p_slot_id
        ),
        known.ill_since IS NULL,
        slots, n
    LIMIT 1;
    -- Nobody else goes there before it is known how it does.
    UPDATE hosts SET probe_at = next_probe(ill_since)
    WHERE engine = p_engine AND host = v_host AND ill_since IS NOT NULL;
    RETURN QUERY
    UPDATE bot_pool_slots SET host = v_host
    WHERE id = p_slot_id AND lease = p_lease AND host IS NULL
    RETURNING *;
END $$;

-- Let the slots of a host get no bot.
CREATE OR REPLACE FUNCTION hold_slots(p_engine text, p_host text) RETURNS void LANGUAGE sql AS $$
    WITH free AS MATERIALIZED (
        SELECT id FROM bot_pool_slots WHERE engine = p_engine AND host = p_host AND NOT held
        ORDER BY id
        FOR NO KEY UPDATE
    )
    UPDATE bot_pool_slots s SET held = true FROM free WHERE s.id = free.id
$$;

-- Let slots that were held get bots again, and those who wait have them at once: all slots of a host,
-- or p_most of its idle ones.
CREATE OR REPLACE FUNCTION release_held(p_engine text, p_host text, p_most integer)
    RETURNS SETOF transitions LANGUAGE plpgsql AS $$
DECLARE
    v_platform text;
BEGIN
    FOR v_platform IN SELECT platform FROM pools ORDER BY platform LOOP
        PERFORM pg_advisory_xact_lock_shared(platform_lock(v_platform));
    END LOOP;
    WITH held AS MATERIALIZED (
        SELECT id FROM bot_pool_slots
        WHERE engine = p_engine AND host = p_host AND held
            AND (p_most IS NULL OR id IN (
                SELECT id FROM bot_pool_slots
                WHERE engine = p_engine AND host = p_host AND held AND status = 'idle'
                ORDER BY last_used_at, id
                LIMIT p_most
            ))
        ORDER BY id
        FOR NO KEY UPDATE
    )
    UPDATE bot_pool_slots s SET held = false FROM held WHERE s.id = held.id;
    FOR v_platform IN SELECT platform FROM pools ORDER BY platform LOOP
        RETURN QUERY SELECT * FROM serve_queue(v_platform, false);
    END LOOP;
END $$;

-- Note that p_what has failed on a host, of an image or, if that is empty, of none. p_most different
-- things, none longer than p_within ms after the one before it, make it ill: its slots get no bot, and
-- no slot is put there, until a probe goes well. One image alone does not, where others are in use and
-- it runs nowhere else: it may be the image. Returns whether the host is ill since this moment.
CREATE OR REPLACE FUNCTION note_failure(
    p_engine text, p_host text, p_what text, p_image text, p_reason text,
    p_most integer, p_within integer, p_probe_in integer
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := botpool_now();
    v_host hosts;
    v_lately boolean;
BEGIN
    INSERT INTO hosts (engine, host) VALUES (p_engine, p_host) ON CONFLICT DO NOTHING;
    SELECT * INTO v_host FROM hosts WHERE engine = p_engine AND host = p_host FOR UPDATE;
    v_lately := coalesce(v_host.failed_at >= v_now - p_within * interval '1 millisecond', false);
    IF NOT v_lately THEN
        v_host.failed := '{}';
        v_host.images := '{}';
    END IF;
    -- What fails again and again is one failure, and its time that of the first.
    IF p_what <> ALL (v_host.failed) THEN
        UPDATE hosts
        SET failed = v_host.failed || p_what, failed_at = v_now, reason = p_reason,
            images = CASE
                WHEN p_image = ANY (v_host.images) THEN v_host.images ELSE v_host.images || p_image
            END
        WHERE engine = p_engine AND host = p_host
        RETURNING * INTO v_host;
    END IF;
    IF v_host.ill_since IS NOT NULL THEN
        PERFORM hold_slots(p_engine, p_host); -- the probe, too
        RETURN false;
    END IF;
    IF cardinality(v_host.failed) < p_most THEN RETURN false; END IF;
    IF '' <> ALL (v_host.images)
        AND cardinality(v_host.images) < (
            SELECT least(2, count(DISTINCT image)) FROM bot_pool_slots
            WHERE engine = p_engine AND host = p_host
        )
        AND NOT EXISTS (
            SELECT FROM bot_pool_slots
            WHERE status = 'busy' AND engine = p_engine AND host <> p_host
                AND image = ANY (v_host.images)
        )
    THEN
        RETURN false;
    END IF;
    UPDATE hosts SET ill_since = v_now, probe_at = v_now + p_probe_in * interval '1 millisecond'
    WHERE engine = p_engine AND host = p_host;
    PERFORM hold_slots(p_engine, p_host);
    RETURN true;
END $$;

-- Note that a host that was ill, or on the way to it, does well; or only that it answers, which mends
-- what was about no image.
CREATE OR REPLACE FUNCTION note_success(p_engine text, p_host text, p_answers_only boolean)
    RETURNS SETOF transitions LANGUAGE plpgsql AS $$
DECLARE
    v_ill boolean;
BEGIN
    SELECT ill_since IS NOT NULL INTO v_ill FROM hosts WHERE engine = p_engine AND host = p_host
        AND (NOT p_answers_only OR images <@ ARRAY[''])
    FOR UPDATE;
    IF NOT FOUND THEN RETURN; END IF;
    UPDATE hosts SET failed = '{}', images = '{}', ill_since = NULL, probe_at = NULL
    WHERE engine = p_engine AND host = p_host;
    IF v_ill THEN
        RETURN QUERY SELECT * FROM release_held(p_engine, p_host, NULL);
    END IF;
END $$;

-- Where it is time to probe an ill host, let one of its idle slots be taken, if none can be already,
-- and wait longer for the next time.
CREATE OR REPLACE FUNCTION probe_hosts() RETURNS SETOF transitions LANGUAGE plpgsql AS $$
DECLARE
    v_host hosts;
BEGIN
    FOR v_host IN
        SELECT * FROM hosts WHERE probe_at <= botpool_now()
        ORDER BY engine, host
        FOR UPDATE SKIP LOCKED
    LOOP
        CONTINUE WHEN NOT (
            SELECT coalesce(bool_and(held) AND bool_or(status = 'idle'), false) FROM bot_pool_slots
            WHERE engine = v_host.engine AND host = v_host.host
        );
        UPDATE hosts SET probe_at = next_probe(ill_since)
        WHERE engine = v_host.engine AND host = v_host.host;
        RETURN QUERY SELECT * FROM release_held(v_host.engine, v_host.host, 1);
    END LOOP;
END $$;

-- End the pulls on a host that starts were to bring, and that are over: the image is there once its
-- slot is busy, and somebody else may try once the slot is proved stopped, or serves another. Returns
-- the images.
CREATE OR REPLACE FUNCTION settle_pulls(p_engine text, p_host text) RETURNS text[]
    LANGUAGE plpgsql AS $$
DECLARE
    v_settled text[];
BEGIN
    WITH settled AS (
        UPDATE image_pulls p
        SET status = CASE WHEN s.status = 'busy' THEN 'present' ELSE 'failed' END,
            error = CASE WHEN s.status = 'busy' THEN NULL ELSE 'its deployment came to nothing' END,
            retry_at = CASE WHEN s.status = 'busy' THEN NULL ELSE botpool_now() END,
            claimed_by = NULL, claimed_until = NULL, slot_id = NULL, lease = NULL,
            finished_at = botpool_now()
        FROM image_pulls held
        LEFT JOIN bot_pool_slots s ON s.id = held.slot_id AND s.lease = held.lease
        WHERE held.engine = p_engine AND held.host = p_host AND held.slot_id IS NOT NULL
            AND held.status = 'pulling'
            AND (s.status IS NULL OR s.status IN ('busy', 'idle'))
            AND p.engine = held.engine AND p.host = held.host AND p.image = held.image
            AND p.slot_id = held.slot_id AND p.lease = held.lease
        RETURNING p.image
    )
    SELECT array_agg(image) INTO v_settled FROM settled;
    RETURN coalesce(v_settled, '{}');
END $$;

-- Only so many deployments run on a host at a time. Who finds no room records that it waits, and who
-- leaves wakes those who do; both under the lock of the host, so that neither misses the other.
CREATE OR REPLACE FUNCTION host_lock(p_engine text, p_host text) RETURNS bigint LANGUAGE sql IMMUTABLE
    AS $$ SELECT hashtextextended('botpool/host/' || p_engine || '/' || p_host, 0) $$;

-- Let a deployment onto its host, if fewer than p_most are under way there, and nobody who waits came
-- before. Returns 0 if it was let on; NULL, and its deployment status is p_waiting, if there is no room.
-- If its bot has failed there it first rests, p_rest ms for each of its launches, for what ails the host
-- may pass: its deployment status is p_resting, and the seconds that are left are returned.
DROP FUNCTION IF EXISTS admit_deployment(bigint, bigint, integer, text);
CREATE OR REPLACE FUNCTION admit_deployment(
    p_slot_id bigint, p_lease bigint, p_most integer, p_rest integer, p_waiting text, p_resting text
) RETURNS double precision LANGUAGE plpgsql AS $$
DECLARE
    v_slot bot_pool_slots;
    v_rested interval;
    v_rest interval;
    v_room boolean;
BEGIN
    SELECT * INTO v_slot FROM bot_pool_slots
    WHERE id = p_slot_id AND lease = p_lease AND status = 'deploying';
    IF NOT FOUND THEN RETURN NULL; END IF;

    v_rested := botpool_now() - v_slot.last_assigned_at;
    SELECT (launch_attempts - 1) * p_rest * interval '1 millisecond' INTO v_rest FROM bots
    WHERE id = v_slot.assigned_bot_id AND avoid_host = v_slot.host;
    IF v_rested < v_rest AND v_rested >= interval '0' THEN
        UPDATE bot_pool_slots SET deployment_status = p_resting
        WHERE id = p_slot_id AND lease = p_lease AND status = 'deploying';
        RETURN extract(epoch FROM v_rest - v_rested);
    END IF;

    PERFORM pg_advisory_xact_lock(host_lock(v_slot.engine, v_slot.host));

    SELECT count(*) < p_most INTO v_room FROM bot_pool_slots
    WHERE engine = v_slot.engine AND host = v_slot.host AND status = 'deploying'
        AND id <> p_slot_id
        AND (
            deployment_started_at IS NOT NULL
            OR (
                deployment_status = p_waiting
                AND (last_assigned_at, id) < (v_slot.last_assigned_at, v_slot.id)
            )
        );
    UPDATE bot_pool_slots
    SET deployment_started_at = CASE WHEN v_room THEN botpool_now() END,
        deployment_status = CASE WHEN NOT v_room THEN p_waiting END
    WHERE id = p_slot_id AND lease = p_lease AND status = 'deploying'
        AND deployment_started_at IS NULL;
    RETURN CASE WHEN FOUND AND v_room THEN 0 END;
END $$;

-- Let those who wait for room on a host be due, as many as there is room for, the oldest first.
CREATE OR REPLACE FUNCTION wake_deployments(
    p_engine text, p_host text, p_most integer, p_waiting text
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(host_lock(p_engine, p_host));
    WITH chosen AS MATERIALIZED (
        SELECT id FROM bot_pool_slots
        WHERE engine = p_engine AND host = p_host AND status = 'deploying'
            AND deployment_status = p_waiting AND deployment_started_at IS NULL
        ORDER BY last_assigned_at, id
        LIMIT greatest(0, p_most - (
            SELECT count(*) FROM bot_pool_slots
            WHERE engine = p_engine AND host = p_host AND status = 'deploying'
                AND deployment_started_at IS NOT NULL
        ))
    ),
    locked AS MATERIALIZED (
        SELECT id FROM bot_pool_slots WHERE id IN (SELECT id FROM chosen)
        ORDER BY id
        FOR NO KEY UPDATE
    )
    UPDATE bot_pool_slots s SET wakes = wakes + 1, due_at = botpool_now()
    FROM locked WHERE s.id = locked.id AND status = 'deploying' AND deployment_started_at IS NULL;
END $$;

-- For how long somebody could be heard since p_since: the time that has passed, without the times in
-- which no API was there.
CREATE OR REPLACE FUNCTION heard_for(p_since timestamptz) RETURNS interval LANGUAGE sql AS $$
    SELECT now - p_since - coalesce((
        SELECT sum(least(ended_at, now) - greatest(began_at, p_since))
        FROM (
            SELECT began_at, ended_at FROM outages WHERE ended_at > p_since
            UNION ALL
            SELECT due_at, 'infinity' FROM duties WHERE name = 'hear' AND due_at < now
        ) gap
        WHERE began_at < now
    ), interval '0')
    FROM botpool_now() AS now
$$;
