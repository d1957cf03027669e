-- Hosts: which of them get new work, and how many deployments run on each at a time. What is locked
-- first, and why these are functions: queue.sql.

-- When to probe an unhealthy host next, if this time it is still so: later and later, up to a limit.
CREATE OR REPLACE FUNCTION next_probe(p_unhealthy_since timestamptz) RETURNS timestamptz LANGUAGE sql AS $$
    SELECT botpool_now() + least(botpool_now() - p_unhealthy_since, interval '9 minutes') + interval '1 minute'
$$;

-- Slots are put on hosts one after the other, so that none gets more than it has room for.
CREATE OR REPLACE FUNCTION room_lock(p_engine text) RETURNS bigint LANGUAGE sql IMMUTABLE
    AS $$ SELECT hashtextextended('botpool/room/' || p_engine, 0) $$;

-- The hosts of an engine that get new work, how many slots each can take (NULL: no limit), and how many
-- of its slots have a bot. An unhealthy host gets none until it is time for a probe; a host that is
-- drained, that does not answer, or that no replica has compared for ten minutes, gets none.
CREATE OR REPLACE FUNCTION open_hosts(p_engine text)
    RETURNS TABLE (host text, room bigint, running bigint, slots bigint, probe boolean)
    LANGUAGE sql AS $$
    SELECT
        h.host, h.capacity - coalesce(load.slots, 0), coalesce(load.running, 0),
        coalesce(load.slots, 0), h.unhealthy_since IS NOT NULL
    FROM hosts h
    LEFT JOIN (
        SELECT s.host, count(*) AS slots, count(s.assigned_bot_id) AS running
        FROM bot_pool_slots s WHERE s.engine = p_engine GROUP BY s.host
    ) load ON load.host = h.host
    WHERE h.engine = p_engine AND h.open AND h.drained_at IS NULL
        AND (h.unhealthy_since IS NULL OR h.probe_at <= botpool_now())
        AND NOT EXISTS (
            SELECT FROM duties d WHERE d.name = 'compare ' || h.engine || '/' || h.host
                AND heard_for(d.due_at) > interval '10 minutes'
        )
$$;

-- Hosts for p_wanted new slots of an engine, the same one several times where it has room for several;
-- fewer where there is no room for all. An unhealthy host whose time has come gets one slot, as a probe;
-- then the hosts on which the fewest bots run; p_avoid last. The caller holds the platform's lock.
CREATE OR REPLACE FUNCTION choose_hosts(p_engine text, p_wanted integer, p_avoid text) RETURNS text[]
    LANGUAGE plpgsql AS $$
DECLARE
    v_chosen text[];
BEGIN
    PERFORM pg_advisory_xact_lock(room_lock(p_engine));
    WITH probed AS (
        -- No other slot goes there before it is known how this one does.
        UPDATE hosts SET probe_at = next_probe(unhealthy_since)
        WHERE engine = p_engine AND host IN (
            SELECT h.host FROM hosts h JOIN open_hosts(p_engine) o USING (host)
            WHERE h.engine = p_engine AND o.probe AND coalesce(o.room, 1) > 0
            ORDER BY h.host
            LIMIT p_wanted
            FOR UPDATE OF h SKIP LOCKED
        )
        RETURNING host
    )
    SELECT array_agg(host ORDER BY avoided, unhealthy DESC, bots, slots, host) INTO v_chosen
    FROM (
        SELECT
            o.host, o.host IS NOT DISTINCT FROM p_avoid AS avoided, o.probe AS unhealthy,
            o.running + n AS bots, o.slots + n AS slots
        FROM open_hosts(p_engine) o, generate_series(
            0, least(coalesce(o.room, p_wanted), CASE WHEN o.probe THEN 1 ELSE p_wanted END) - 1
        ) n
        WHERE NOT o.probe OR o.host IN (SELECT host FROM probed)
        ORDER BY avoided, unhealthy DESC, bots, slots, host
        LIMIT p_wanted
    ) place;
    RETURN coalesce(v_chosen, '{}');
END $$;

-- Note what a replica tells of the hosts of an engine (p_hosts: host, capacity, open). Bots that wait get
-- the room that there is now.
CREATE OR REPLACE FUNCTION report_hosts(p_engine text, p_hosts jsonb) RETURNS SETOF transitions
    LANGUAGE plpgsql AS $$
DECLARE
    v_platform text;
BEGIN
    INSERT INTO hosts AS h (engine, host, capacity, open)
    SELECT p_engine, told.host, told.capacity, told.open
    FROM jsonb_to_recordset(p_hosts) AS told (host text, capacity integer, open boolean)
    ORDER BY told.host
    ON CONFLICT (engine, host) DO UPDATE SET capacity = excluded.capacity, open = excluded.open
    WHERE (h.capacity, h.open) IS DISTINCT FROM (excluded.capacity, excluded.open);
    IF NOT FOUND THEN RETURN; END IF;

    FOR v_platform IN SELECT platform FROM pools ORDER BY platform LOOP
        RETURN QUERY SELECT * FROM assign_waiting(v_platform);
    END LOOP;
END $$;

-- Let a host get no new work (p_drain), or get it again. Its bots stay, and its idle slots get no further
-- one while it is drained. Returns what bots that wait got by it.
CREATE OR REPLACE FUNCTION drain_host(p_engine text, p_host text, p_drain boolean)
    RETURNS SETOF transitions LANGUAGE plpgsql AS $$
DECLARE
    v_host hosts;
BEGIN
    UPDATE hosts
    SET drained_at = CASE WHEN p_drain THEN coalesce(drained_at, botpool_now()) END
    WHERE engine = p_engine AND host = p_host
    RETURNING * INTO v_host;
    IF p_drain THEN
        PERFORM hold_slots(p_engine, p_host);
    ELSIF v_host.unhealthy_since IS NULL THEN
        RETURN QUERY SELECT * FROM unhold_slots(p_engine, p_host, NULL);
    END IF;
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
CREATE OR REPLACE FUNCTION unhold_slots(p_engine text, p_host text, p_most integer)
    RETURNS SETOF transitions LANGUAGE plpgsql AS $$
DECLARE
    v_platform text;
BEGIN
    FOR v_platform IN SELECT platform FROM pools ORDER BY platform LOOP
        PERFORM pg_advisory_xact_lock(platform_lock(v_platform));
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
        RETURN QUERY SELECT * FROM serve_queue(v_platform, true);
    END LOOP;
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
BEGIN
    SELECT unhealthy_since IS NOT NULL AND drained_at IS NULL INTO v_unhealthy FROM hosts WHERE engine = p_engine AND host = p_host
        AND (NOT p_answers_only OR images <@ ARRAY[''])
    FOR UPDATE;
    IF NOT FOUND THEN RETURN; END IF;
    UPDATE hosts SET failed = '{}', images = '{}', unhealthy_since = NULL, probe_at = NULL
    WHERE engine = p_engine AND host = p_host;
    IF v_unhealthy THEN
        RETURN QUERY SELECT * FROM unhold_slots(p_engine, p_host, NULL);
    END IF;
END $$;

-- Where it is time to probe an unhealthy host, let one of its idle slots be taken, if none can be already,
-- and wait longer for the next time.
CREATE OR REPLACE FUNCTION probe_hosts() RETURNS SETOF transitions LANGUAGE plpgsql AS $$
DECLARE
    v_host hosts;
BEGIN
    FOR v_host IN
        SELECT * FROM hosts WHERE probe_at <= botpool_now() AND drained_at IS NULL
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

-- Only so many deployments run on a host at a time. One that has to wait for its turn records that, and
-- one that ends wakes those that wait; both under the lock of the host, so that neither misses the other.
CREATE OR REPLACE FUNCTION host_lock(p_engine text, p_host text) RETURNS bigint LANGUAGE sql IMMUTABLE
    AS $$ SELECT hashtextextended('botpool/host/' || p_engine || '/' || p_host, 0) $$;

-- Let a deployment begin on its host, if fewer than p_most are under way there, and none that waits came
-- before. Returns 0 if it may begin; NULL, and it waits for its turn, if it may not. If its bot has
-- failed there it first pauses, p_pause ms for each of its launches, for what ails the host may pass:
-- then the seconds that are left are returned.
CREATE OR REPLACE FUNCTION admit_deployment(
    p_slot_id bigint, p_lease bigint, p_most integer, p_pause integer
) RETURNS double precision LANGUAGE plpgsql AS $$
DECLARE
    v_slot bot_pool_slots;
    v_paused interval;
    v_pause interval;
    v_admitted boolean;
BEGIN
    SELECT * INTO v_slot FROM bot_pool_slots
    WHERE id = p_slot_id AND lease = p_lease AND status = 'deploying';
    IF NOT FOUND THEN RETURN NULL; END IF;

    v_paused := botpool_now() - v_slot.last_assigned_at;
    SELECT (launch_attempts - 1) * p_pause * interval '1 millisecond' INTO v_pause FROM bots
    WHERE id = v_slot.assigned_bot_id AND avoid_host = v_slot.host;
    IF v_paused < v_pause AND v_paused >= interval '0' THEN
        UPDATE bot_pool_slots SET waits_for = 'pause'
        WHERE id = p_slot_id AND lease = p_lease AND status = 'deploying';
        RETURN extract(epoch FROM v_pause - v_paused);
    END IF;

    PERFORM pg_advisory_xact_lock(host_lock(v_slot.engine, v_slot.host));

    SELECT count(*) < p_most INTO v_admitted FROM bot_pool_slots
    WHERE engine = v_slot.engine AND host = v_slot.host AND status = 'deploying'
        AND id <> p_slot_id
        AND (
            deployment_started_at IS NOT NULL
            OR (
                waits_for = 'turn'
                AND (last_assigned_at, id) < (v_slot.last_assigned_at, v_slot.id)
            )
        );
    UPDATE bot_pool_slots
    SET deployment_started_at = CASE WHEN v_admitted THEN botpool_now() END,
        waits_for = CASE WHEN NOT v_admitted THEN 'turn' END
    WHERE id = p_slot_id AND lease = p_lease AND status = 'deploying'
        AND deployment_started_at IS NULL;
    RETURN CASE WHEN FOUND AND v_admitted THEN 0 END;
END $$;

-- Let deployments that wait for their turn on a host be due, as many as may begin, the oldest first.
CREATE OR REPLACE FUNCTION wake_deployments(p_engine text, p_host text, p_most integer)
    RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(host_lock(p_engine, p_host));
    WITH chosen AS MATERIALIZED (
        SELECT id FROM bot_pool_slots
        WHERE engine = p_engine AND host = p_host AND status = 'deploying'
            AND waits_for = 'turn' AND deployment_started_at IS NULL
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
