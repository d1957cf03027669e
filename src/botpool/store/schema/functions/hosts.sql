-- Hosts: which of them get new work, and how many deployments run on each at a time. What is locked
-- first, and why these are functions: queue.sql.

-- Slots are put on hosts one after the other, so that none gets more than it has room for.
CREATE OR REPLACE FUNCTION room_lock(p_engine text) RETURNS bigint LANGUAGE sql IMMUTABLE
    AS $$ SELECT hashtextextended('botpool/room/' || p_engine, 0) $$;

-- Whether a host is in no replica's settings any more: none has said that it keeps it for ten minutes in
-- which bots could be heard. An older replica does not say so, but compares it with its slots.
CREATE OR REPLACE FUNCTION host_given_up(p_engine text, p_host text) RETURNS boolean LANGUAGE sql AS $$
    SELECT heard_for(coalesce(
        (SELECT due_at FROM duties WHERE name = 'keep ' || p_engine || '/' || p_host),
        (SELECT due_at FROM duties WHERE name = 'compare ' || p_engine || '/' || p_host)
    )) > interval '10 minutes'
$$;

-- Whether a host's slots may get bots: it is not drained, it answers, and it is healthy.
CREATE OR REPLACE FUNCTION gets_work(p_host hosts) RETURNS boolean LANGUAGE sql IMMUTABLE
    AS $$ SELECT p_host.open AND p_host.drained_at IS NULL AND p_host.unhealthy_since IS NULL $$;

-- The hosts of an engine that get new work, how many slots each can take (NULL: no limit), and how many
-- of its slots have a bot. An unhealthy host gets none until it is time for a probe; a host that is
-- drained, that does not answer, or that is given up, gets none.
CREATE OR REPLACE FUNCTION open_hosts(p_engine text)
    RETURNS TABLE (host text, room bigint, running bigint, slots bigint, probe boolean)
    LANGUAGE sql AS $$
    SELECT
        h.host,
        -- A limit that was lowered may leave more slots than it allows.
        CASE WHEN h.capacity IS NOT NULL THEN greatest(h.capacity - coalesce(load.slots, 0), 0) END,
        coalesce(load.running, 0), coalesce(load.slots, 0), h.unhealthy_since IS NOT NULL
    FROM hosts h
    LEFT JOIN (
        SELECT s.host, count(*) AS slots, count(s.assigned_bot_id) AS running
        FROM bot_pool_slots s WHERE s.engine = p_engine GROUP BY s.host
    ) load ON load.host = h.host
    WHERE h.engine = p_engine AND h.open AND h.drained_at IS NULL
        AND (h.unhealthy_since IS NULL OR h.probe_at <= botpool_now())
        AND NOT host_given_up(h.engine, h.host)
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

-- Note that a replica keeps these hosts (engine/host), and says so again within p_every ms. Bots that wait
-- get the room of a host that was given up.
CREATE OR REPLACE FUNCTION keep_hosts(p_hosts text[], p_every integer) RETURNS SETOF transitions
    LANGUAGE plpgsql AS $$
DECLARE
    v_back boolean;
BEGIN
    v_back := EXISTS (
        SELECT FROM hosts WHERE engine || '/' || host = ANY (p_hosts) AND host_given_up(engine, host)
    );
    INSERT INTO duties (name, due_at)
    SELECT 'keep ' || host, botpool_now() + p_every * interval '1 millisecond'
    FROM unnest(p_hosts) host
    ORDER BY host
    ON CONFLICT (name) DO UPDATE SET due_at = excluded.due_at
    WHERE duties.due_at <= botpool_now() OR duties.due_at > excluded.due_at;
    IF v_back THEN
        PERFORM lock_platforms();
        RETURN QUERY SELECT * FROM serve_queues();
    END IF;
END $$;

-- Note what a replica tells of the hosts of an engine (p_hosts: host, capacity, open; NULL where it does not
-- know). The slots of a host that does not answer get no bot. Bots that wait get the room that there is now.
CREATE OR REPLACE FUNCTION report_hosts(p_engine text, p_hosts jsonb) RETURNS SETOF transitions
    LANGUAGE plpgsql AS $$
DECLARE
    v_open jsonb;
    v_changed hosts[];
    v_host hosts;
BEGIN
    SELECT jsonb_object_agg(told.host, told.open) INTO v_open
    FROM jsonb_to_recordset(p_hosts) AS told (host text, open boolean);
    WITH changed AS (
        INSERT INTO hosts AS h (engine, host, capacity, open)
        SELECT p_engine, told.host, told.capacity, coalesce(told.open, true)
        FROM jsonb_to_recordset(p_hosts) AS told (host text, capacity integer, open boolean)
        ORDER BY told.host
        -- Who does not know changes nothing, not even what another one has just told.
        ON CONFLICT (engine, host) DO UPDATE
        SET capacity = excluded.capacity, open = coalesce((v_open ->> h.host)::boolean, h.open)
        WHERE h.capacity IS DISTINCT FROM excluded.capacity
            OR h.open IS DISTINCT FROM coalesce((v_open ->> h.host)::boolean, h.open)
        RETURNING h.*
    )
    SELECT array_agg(changed::hosts ORDER BY host) INTO v_changed FROM changed;

    -- Before any slot.
    IF EXISTS (SELECT FROM unnest(v_changed) AS changed WHERE gets_work(changed)) THEN
        PERFORM lock_platforms();
    END IF;
    -- Each time: a slot may have been put there while that was told first.
    PERFORM hold_slots(p_engine, host) FROM hosts
    WHERE engine = p_engine AND (NOT open OR drained_at IS NOT NULL);
    FOREACH v_host IN ARRAY coalesce(v_changed, '{}') LOOP
        IF gets_work(v_host) THEN
            RETURN QUERY SELECT * FROM unhold_slots(p_engine, v_host.host, NULL);
        END IF;
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
    ELSIF gets_work(v_host) THEN
        RETURN QUERY SELECT * FROM unhold_slots(p_engine, p_host, NULL);
    END IF;
END $$;

-- Only so many deployments run on a host at a time. One that has to wait for its turn records that, and
-- one that ends wakes those that wait; both under the lock of the host, so that neither misses the other.
CREATE OR REPLACE FUNCTION host_lock(p_engine text, p_host text) RETURNS bigint LANGUAGE sql IMMUTABLE
    AS $$ SELECT hashtextextended('botpool/host/' || p_engine || '/' || p_host, 0) $$;

-- A bot whose slot asks for its turn has its image. The caller has locked the slot.
CREATE OR REPLACE FUNCTION note_image(p_bot_id bigint) RETURNS void LANGUAGE sql
    AS $$ UPDATE bots SET image_at = botpool_now() WHERE id = p_bot_id AND image_at IS NULL $$;

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
    v_changed boolean;
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
        IF FOUND THEN PERFORM note_image(v_slot.assigned_bot_id); END IF;
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
    v_changed := FOUND;
    IF v_changed THEN PERFORM note_image(v_slot.assigned_bot_id); END IF;
    RETURN CASE WHEN v_changed AND v_admitted THEN 0 END;
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
