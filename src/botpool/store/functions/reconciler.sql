-- What the reconciler must lock before it looks; why functions, see pool.sql.

-- A slot that changed its status is looked at at once, unless the new one needs nothing.
CREATE OR REPLACE FUNCTION schedule_slot() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.failed_steps := 0;
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

-- Put a slot that has no host on the one of p_hosts that has the fewest slots.
CREATE OR REPLACE FUNCTION place_slot(p_slot_id bigint, p_lease bigint, p_engine text, p_hosts text[])
    RETURNS SETOF bot_pool_slots LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('botpool/place/' || p_engine, 0));
    RETURN QUERY
    UPDATE bot_pool_slots
    SET host = (
        SELECT candidate.host
        FROM unnest(p_hosts) WITH ORDINALITY AS candidate (host, n), LATERAL (
            SELECT count(*) AS slots FROM bot_pool_slots
            WHERE engine = p_engine AND host = candidate.host
        ) load
        ORDER BY slots, n
        LIMIT 1
    )
    WHERE id = p_slot_id AND lease = p_lease AND host IS NULL
    RETURNING *;
END $$;

-- Only so many deployments run on a host at a time. Who finds no room records that it waits, and who
-- leaves wakes those who do; both under the lock of the host, so that neither misses the other.
CREATE OR REPLACE FUNCTION host_lock(p_engine text, p_host text) RETURNS bigint LANGUAGE sql IMMUTABLE
    AS $$ SELECT hashtextextended('botpool/host/' || p_engine || '/' || p_host, 0) $$;

-- Let a deployment onto its host, if fewer than p_most are under way there, and nobody who waits came
-- before. Else its deployment status is p_waiting. Returns whether it was let on.
CREATE OR REPLACE FUNCTION admit_deployment(
    p_slot_id bigint, p_lease bigint, p_most integer, p_waiting text
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_slot bot_pool_slots;
    v_room boolean;
BEGIN
    SELECT * INTO v_slot FROM bot_pool_slots
    WHERE id = p_slot_id AND lease = p_lease AND status = 'deploying';
    IF NOT FOUND THEN RETURN false; END IF;
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
        deployment_status = CASE WHEN v_room THEN deployment_status ELSE p_waiting END
    WHERE id = p_slot_id AND lease = p_lease AND status = 'deploying'
        AND deployment_started_at IS NULL;
    RETURN FOUND AND v_room;
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
