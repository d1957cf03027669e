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

-- Put a slot that has no host on the one of p_hosts that has the fewest slots. Where each has p_most
-- or more, it stays without.
DROP FUNCTION IF EXISTS place_slot(bigint, bigint, text, text[]);
CREATE OR REPLACE FUNCTION place_slot(
    p_slot_id bigint, p_lease bigint, p_engine text, p_hosts text[], p_most integer
) RETURNS SETOF bot_pool_slots LANGUAGE plpgsql AS $$
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
        WHERE p_most IS NULL OR slots < p_most
        ORDER BY slots, n
        LIMIT 1
    )
    WHERE id = p_slot_id AND lease = p_lease AND host IS NULL
    RETURNING *;
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
