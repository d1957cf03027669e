-- The health of hosts: several failures in a row keep new work away, until something goes well. What is
-- locked first, and why these are functions: queue.sql.

-- When to probe an unhealthy host next, if this time it is still so: later and later, up to a limit.
CREATE OR REPLACE FUNCTION next_probe(p_unhealthy_since timestamptz) RETURNS timestamptz LANGUAGE sql AS $$
    SELECT botpool_now() + least(botpool_now() - p_unhealthy_since, interval '9 minutes') + interval '1 minute'
$$;

-- Let the slots of a host get no bot. Whoever puts bots on slots takes and awaits them as it needs them,
-- not by their id, and under the platform's lock: so this takes that lock first, if there is anything to do.
CREATE OR REPLACE FUNCTION hold_slots(p_engine text, p_host text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM bot_pool_slots WHERE engine = p_engine AND host = p_host AND NOT held
    ) THEN
        RETURN;
    END IF;
    PERFORM lock_platforms();
    WITH free AS MATERIALIZED (
        SELECT id FROM bot_pool_slots WHERE engine = p_engine AND host = p_host AND NOT held
        ORDER BY id
        FOR NO KEY UPDATE
    )
    UPDATE bot_pool_slots s SET held = true FROM free WHERE s.id = free.id;
END $$;

-- Let slots that were held get bots again, and those who wait have them at once: all slots of a host,
-- or p_most of its idle ones.
CREATE OR REPLACE FUNCTION unhold_slots(p_engine text, p_host text, p_most integer)
    RETURNS SETOF transitions LANGUAGE plpgsql AS $$
BEGIN
    PERFORM lock_platforms();
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
    RETURN QUERY SELECT * FROM serve_queues();
END $$;

-- Note what has failed on a host (p_failure: engine, host, what, image, reason), of an image or, if that
-- is empty, of none. p_most different things, none longer than p_within ms after the one before it, make
-- the host unhealthy: its slots get no bot, and no slot is put there, until a probe goes well. One image
-- alone does not, where others are in use and it runs nowhere else: it may be the image. Returns whether
-- the host is unhealthy since this moment.
CREATE OR REPLACE FUNCTION note_failure(
    p_failure jsonb, p_most integer, p_within integer, p_probe_in integer
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := botpool_now();
    v_failure record;
    v_host hosts;
    v_lately boolean;
BEGIN
    SELECT * INTO v_failure FROM jsonb_to_record(p_failure) AS f (
        engine text, host text, what text, image text, reason text
    );
    INSERT INTO hosts (engine, host) VALUES (v_failure.engine, v_failure.host)
    ON CONFLICT DO NOTHING;
    SELECT * INTO v_host FROM hosts WHERE engine = v_failure.engine AND host = v_failure.host
    FOR UPDATE;
    v_lately := coalesce(v_host.failed_at >= v_now - p_within * interval '1 millisecond', false);
    IF NOT v_lately THEN
        v_host.failed := '{}';
        v_host.images := '{}';
    END IF;
    -- What fails again and again is one failure, and its time that of the first.
    IF v_failure.what <> ALL (v_host.failed) THEN
        UPDATE hosts
        SET failed = v_host.failed || v_failure.what, failed_at = v_now, reason = v_failure.reason,
            images = CASE
                WHEN v_failure.image = ANY (v_host.images) THEN v_host.images
                ELSE v_host.images || v_failure.image
            END
        WHERE engine = v_host.engine AND host = v_host.host
        RETURNING * INTO v_host;
    END IF;
    IF v_host.unhealthy_since IS NOT NULL THEN
        PERFORM hold_slots(v_host.engine, v_host.host); -- the probe, too
        RETURN false;
    END IF;
    IF cardinality(v_host.failed) < p_most THEN RETURN false; END IF;
    IF '' <> ALL (v_host.images)
        AND cardinality(v_host.images) < (
            SELECT least(2, count(DISTINCT image)) FROM bot_pool_slots
            WHERE engine = v_host.engine AND host = v_host.host
        )
        AND NOT EXISTS (
            SELECT FROM bot_pool_slots
            WHERE status = 'busy' AND engine = v_host.engine AND host <> v_host.host
                AND image = ANY (v_host.images)
        )
    THEN
        RETURN false;
    END IF;
    UPDATE hosts
    SET unhealthy_since = v_now, probe_at = v_now + p_probe_in * interval '1 millisecond'
    WHERE engine = v_host.engine AND host = v_host.host;
    PERFORM hold_slots(v_host.engine, v_host.host);
    RETURN true;
END $$;

-- Note that a host that was unhealthy, or on the way to it, does well; or only that it answers, which
-- mends what was about no image.
CREATE OR REPLACE FUNCTION note_success(p_engine text, p_host text, p_answers_only boolean)
    RETURNS SETOF transitions LANGUAGE plpgsql AS $$
DECLARE
    v_unhealthy boolean;
    v_host hosts;
BEGIN
    SELECT unhealthy_since IS NOT NULL INTO v_unhealthy FROM hosts WHERE engine = p_engine AND host = p_host
        AND (NOT p_answers_only OR images <@ ARRAY[''])
    FOR UPDATE;
    IF NOT FOUND THEN RETURN; END IF;
    UPDATE hosts SET failed = '{}', images = '{}', unhealthy_since = NULL, probe_at = NULL
    WHERE engine = p_engine AND host = p_host
    RETURNING * INTO v_host;
    IF v_unhealthy AND gets_work(v_host) THEN
        RETURN QUERY SELECT * FROM unhold_slots(p_engine, p_host, NULL);
    END IF;
END $$;

-- Where it is time to probe an unhealthy host, let one of its idle slots be taken, if none can be already,
-- and wait longer for the next time. A host on which a launch went well is healthy: this is for a replica
-- that was killed before it could note that.
CREATE OR REPLACE FUNCTION probe_hosts() RETURNS SETOF transitions LANGUAGE plpgsql AS $$
DECLARE
    v_host hosts;
    v_well hosts[];
BEGIN
    -- All of them first: what follows takes the platforms' locks.
    v_well := ARRAY(
        SELECT h FROM hosts h WHERE unhealthy_since IS NOT NULL AND EXISTS (
            SELECT FROM bot_pool_slots s
            WHERE s.engine = h.engine AND s.host = h.host AND s.launched_at > h.unhealthy_since
        )
        ORDER BY engine, host
        FOR UPDATE OF h SKIP LOCKED
    );
    FOREACH v_host IN ARRAY v_well LOOP
        RETURN QUERY SELECT * FROM note_success(v_host.engine, v_host.host, false);
    END LOOP;
    FOR v_host IN
        SELECT * FROM hosts WHERE probe_at <= botpool_now() AND drained_at IS NULL AND open
        ORDER BY engine, host
        FOR UPDATE SKIP LOCKED
    LOOP
        CONTINUE WHEN NOT (
            SELECT coalesce(bool_and(held) AND bool_or(status = 'idle'), false) FROM bot_pool_slots
            WHERE engine = v_host.engine AND host = v_host.host
        );
        UPDATE hosts SET probe_at = next_probe(unhealthy_since)
        WHERE engine = v_host.engine AND host = v_host.host;
        RETURN QUERY SELECT * FROM unhold_slots(v_host.engine, v_host.host, 1);
    END LOOP;
END $$;
