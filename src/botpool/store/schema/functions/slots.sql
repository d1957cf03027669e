-- Slots: taken for bots, given back, drained and deleted. What is locked first, and why these are
-- functions: queue.sql.

-- How long a bot may stay, NULL for any time. A thousand years are as good as any more, and are a time.
CREATE OR REPLACE FUNCTION longest_stay(p_bot bots) RETURNS interval LANGUAGE sql IMMUTABLE
    AS $$
    SELECT least(p_bot.max_duration_ms, 31557600000000) * interval '1 millisecond'
    WHERE p_bot.max_duration_ms IS NOT NULL
$$;

-- A slot that changed its status is looked at at once, unless the new one needs nothing. Launches that
-- fail on its container, before the bot is heard, are counted. What it does is to be shown in its engine's
-- own interface: at once, or if it usually takes seconds only, when it takes longer.
CREATE OR REPLACE FUNCTION schedule_slot() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.failed_steps := 0;
    NEW.step_error := NULL;
    NEW.waits_for := NULL;
    NEW.show_at := botpool_now() + CASE
        WHEN NEW.status IN ('deploying', 'releasing') THEN interval '30 seconds' ELSE interval '0'
    END;
    IF slot_needs_work(NEW.status) THEN
        NEW.due_at := botpool_now();
    ELSIF TG_OP = 'INSERT' OR NEW.due_at IS NOT DISTINCT FROM OLD.due_at THEN
        NEW.due_at := NULL;
        IF NEW.status = 'busy' THEN
            -- Its bot may have a longest stay.
            SELECT botpool_now() + longest_stay(bots) INTO NEW.due_at
            FROM bots WHERE id = NEW.assigned_bot_id;
        END IF;
    END IF;
    IF TG_OP = 'UPDATE' THEN
        IF NEW.lease <> OLD.lease THEN NEW.deployment_started_at := NULL; END IF;
        IF NEW.assigned_bot_id IS NULL THEN
            NEW.last_bot_id := CASE
                WHEN NEW.lease = OLD.lease THEN coalesce(OLD.assigned_bot_id, OLD.last_bot_id)
            END;
        END IF;
        IF NEW.status = 'busy' THEN NEW.launched_at := botpool_now(); END IF;
        IF OLD.assigned_bot_id IS NOT NULL AND NEW.assigned_bot_id IS NULL
            AND (NEW.status = 'error' OR OLD.failed_launches > 0 OR OLD.remakes > 0)
        THEN
            IF EXISTS (
                SELECT FROM bots
                WHERE id = OLD.assigned_bot_id AND last_heartbeat >= OLD.last_assigned_at
            ) THEN
                NEW.failed_launches := 0;
                NEW.failing_since := NULL;
                NEW.remakes := 0;
            ELSIF NEW.status = 'error' AND OLD.container_ref IS NOT NULL
                AND OLD.deployment_started_at IS NOT NULL
            THEN
                NEW.failed_launches := OLD.failed_launches + 1;
                NEW.failing_since := coalesce(OLD.failing_since, OLD.deployment_started_at);
            END IF;
        END IF;
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER bot_pool_slots_schedule_new BEFORE INSERT ON bot_pool_slots
    FOR EACH ROW EXECUTE FUNCTION schedule_slot();
CREATE OR REPLACE TRIGGER bot_pool_slots_schedule BEFORE UPDATE OF status ON bot_pool_slots
    FOR EACH ROW WHEN (OLD.status <> NEW.status)
    EXECUTE FUNCTION schedule_slot();

-- Let a busy slot that a replica has reserved be due when the longest stay of its bot is over, or, without
-- that, not at all. Its bot may just have been told to leave; then it is due as that has set it.
CREATE OR REPLACE FUNCTION rest_slot(p_slot_id bigint, p_lease bigint, p_replica text) RETURNS void
    LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM bot_pool_slots
    WHERE id = p_slot_id AND lease = p_lease AND reserved_by = p_replica AND status = 'busy'
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN RETURN; END IF;
    UPDATE bot_pool_slots s
    SET due_at = b.started_at + longest_stay(b)
    FROM bots b
    WHERE s.id = p_slot_id AND b.id = s.assigned_bot_id AND b.status <> 'LEAVING';
END $$;

-- When a bot was last heard on its slot; its assignment counts, and so does its start.
-- botpool.models.assignments.last_heard is the same.
CREATE OR REPLACE FUNCTION last_heard(p_bot bots, p_slot bot_pool_slots) RETURNS timestamptz
    LANGUAGE sql IMMUTABLE
    AS $$ SELECT greatest(p_bot.last_heartbeat, p_bot.started_at, p_slot.last_assigned_at) $$;

-- The first p_wanted numbers that no slot of this platform has, of p_size slots. Without gaps they are
-- the next ones; only where there are gaps are they looked for.
CREATE OR REPLACE FUNCTION free_numbers(p_platform text, p_size integer, p_wanted integer)
    RETURNS SETOF integer LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF p_size = coalesce((
        SELECT max(number) FROM bot_pool_slots WHERE platform = p_platform
    ), 0) THEN
        RETURN QUERY SELECT generate_series(p_size + 1, p_size + p_wanted);
    ELSE
        RETURN QUERY
        SELECT n FROM generate_series(1, p_size + p_wanted) n
        WHERE NOT EXISTS (
            SELECT FROM bot_pool_slots WHERE platform = p_platform AND number = n
        )
        ORDER BY n
        LIMIT p_wanted;
    END IF;
END $$;

-- Whether a slot of this platform is there for the taking.
CREATE OR REPLACE FUNCTION has_idle(p_platform text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT FROM bot_pool_slots WHERE platform = p_platform AND status = 'idle' AND NOT held
    )
$$;

-- Delete idle slots that keep this platform from p_wanted new ones, as many as that takes, the least recently
-- used first. Where no host has room: those of other platforms beyond the ones that they keep warm. Where the
-- pool is as large as it may be: its own, on hosts that get no new work. Their containers are removed by the
-- comparison with the engine. The caller holds the platform's lock.
CREATE OR REPLACE FUNCTION make_room(p_platform text, p_wanted integer) RETURNS SETOF transitions
    LANGUAGE plpgsql AS $$
DECLARE
    v_pool pools;
    v_useless bigint[] := '{}';
    v_elsewhere boolean;
    v_new integer;
    v_room bigint;
BEGIN
    SELECT * INTO v_pool FROM pools WHERE platform = p_platform;
    v_new := least(p_wanted, v_pool.max_size - v_pool.size);
    IF v_new < 1 THEN
        v_elsewhere := EXISTS (
            SELECT FROM open_hosts(v_pool.engine) WHERE NOT probe AND coalesce(room, 1) > 0
        );
        v_useless := ARRAY(
            SELECT id FROM bot_pool_slots
            WHERE platform = p_platform AND status = 'idle' AND held
                AND engine = v_pool.engine
                -- While others have room, nobody waits for the probe of an unhealthy host.
                AND host NOT IN (
                    SELECT host FROM open_hosts(v_pool.engine) WHERE NOT (probe AND v_elsewhere)
                )
            ORDER BY last_used_at, id
            LIMIT v_pool.size - v_pool.max_size + p_wanted
        );
        v_new := v_pool.max_size - v_pool.size + cardinality(v_useless);
    END IF;
    IF v_new IS NULL OR v_new < 1 THEN RETURN; END IF;

    SELECT sum(coalesce(room, v_new)) INTO v_room FROM open_hosts(v_pool.engine);
    IF coalesce(v_room, 0) < 1 THEN
        -- Before the slots, as those who put new ones on hosts do.
        PERFORM pg_advisory_xact_lock(room_lock(v_pool.engine));
        RETURN QUERY SELECT * FROM delete_idle(
            ARRAY(
                SELECT s.id FROM bot_pool_slots s
                JOIN (
                    SELECT id, platform, row_number() OVER (
                        PARTITION BY platform ORDER BY last_used_at DESC, id DESC
                    ) AS place
                    FROM bot_pool_slots
                    WHERE platform <> p_platform AND status = 'idle' AND NOT held
                ) idle USING (id)
                JOIN pools p ON p.platform = idle.platform
                WHERE s.status = 'idle' AND NOT s.held AND s.engine = v_pool.engine
                    AND s.host IN (SELECT host FROM open_hosts(v_pool.engine))
                    AND idle.place > p.warm
                ORDER BY s.last_used_at, s.id
                LIMIT v_new
                FOR UPDATE OF s SKIP LOCKED
            ),
            'its room was needed for ' || p_platform
        );
        GET DIAGNOSTICS v_room = ROW_COUNT;
        IF v_room = 0 THEN RETURN; END IF;
    END IF;
    RETURN QUERY SELECT * FROM delete_idle(
        v_useless[1 : v_pool.size - v_pool.max_size + least(v_new, v_room)],
        'its host gets no new work, and its pool is as large as it may be'
    );
END $$;

-- Delete those of these slots that are still idle, and that nobody is about to take.
CREATE OR REPLACE FUNCTION delete_idle(p_slot_ids bigint[], p_reason text) RETURNS SETOF transitions
    LANGUAGE plpgsql AS $$
DECLARE
    v_slot bot_pool_slots;
BEGIN
    FOR v_slot IN
        DELETE FROM bot_pool_slots WHERE id IN (
            SELECT id FROM bot_pool_slots WHERE id = ANY (p_slot_ids) AND status = 'idle'
            FOR UPDATE SKIP LOCKED
        )
        RETURNING *
    LOOP
        RETURN QUERY SELECT * FROM record_step(
            'slot', 'idle', NULL, v_slot, NULL, p_reason, '{}', botpool_now()
        );
    END LOOP;
END $$;

-- New slots of a pool, one on each of p_hosts, with the first names that are free. A new slot has an id, a
-- name, a host, lease 0 and no status; it is not in the table yet. The caller holds the platform's lock.
CREATE OR REPLACE FUNCTION new_slots(p_pool pools, p_hosts text[]) RETURNS bot_pool_slots[]
    LANGUAGE plpgsql AS $$
DECLARE
    v_slot bot_pool_slots;
    v_slots bot_pool_slots[] := '{}';
BEGIN
    FOR v_slot.number, v_slot.host IN
        SELECT n, h FROM ROWS FROM (
            free_numbers(p_pool.platform, p_pool.size, cardinality(p_hosts)), unnest(p_hosts)
        ) AS new (n, h)
    LOOP
        v_slot.id := nextval('bot_pool_slots_id_seq');
        v_slot.slot_name := slot_name(p_pool.platform, v_slot.number);
        v_slot.lease := 0;
        v_slots := v_slots || v_slot;
    END LOOP;
    RETURN v_slots;
END $$;

-- The slots that bots of this platform can have now, at most p_wanted: idle ones, on the hosts on which
-- the fewest bots run and the least recently used first; then, where the pool may grow and a host has
-- room, new ones, which are not in the table yet. To grow, the caller holds the platform's lock. p_avoid
-- is a host that is only taken where there is nothing else: where the pool can grow elsewhere, it grows.
CREATE OR REPLACE FUNCTION take_slots(
    p_platform text, p_wanted integer, p_grow boolean, p_avoid text DEFAULT NULL
) RETURNS bot_pool_slots[] LANGUAGE plpgsql AS $$
DECLARE
    v_slots bot_pool_slots[] := idle_slots(p_platform, p_wanted, p_avoid);
    v_pool pools;
BEGIN
    IF cardinality(v_slots) = p_wanted OR (NOT p_grow AND p_avoid IS NULL) THEN
        RETURN v_slots;
    END IF;

    SELECT * INTO v_pool FROM pools WHERE platform = p_platform;
    IF v_pool.platform IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'BP003', MESSAGE = format('there is no pool of %s: configure it', p_platform);
    END IF;
    IF p_avoid IS NOT NULL AND (
        NOT p_grow OR v_pool.size >= v_pool.max_size OR NOT EXISTS (
            SELECT FROM open_hosts(v_pool.engine)
            WHERE host <> p_avoid AND (room IS NULL OR room > 0)
        )
    ) THEN
        RETURN take_slots(p_platform, p_wanted, p_grow);
    END IF;

    IF v_pool.size < v_pool.max_size THEN
        v_slots := v_slots || new_slots(v_pool, choose_hosts(
            v_pool.engine,
            least(p_wanted - cardinality(v_slots), v_pool.max_size - v_pool.size),
            p_avoid
        ));
    END IF;
    IF cardinality(v_slots) = p_wanted THEN RETURN v_slots; END IF;

    -- Another transaction may hold an idle slot and not take it. A bot that leaves here without one
    -- would wait in the queue beside it, so wait for that transaction first.
    RETURN v_slots || ARRAY(
        SELECT s FROM bot_pool_slots s
        WHERE platform = p_platform AND status = 'idle' AND NOT held
            AND id <> ALL (ARRAY(SELECT id FROM unnest(v_slots)))
        ORDER BY last_used_at, id
        LIMIT p_wanted - cardinality(v_slots)
        FOR NO KEY UPDATE
    );
END $$;

-- Idle slots of a platform that are there for the taking, at most p_wanted and not on p_avoid. Where they
-- are on several hosts they are spread: the next one is on the host on which the fewest bots run.
CREATE OR REPLACE FUNCTION idle_slots(p_platform text, p_wanted integer, p_avoid text)
    RETURNS bot_pool_slots[] LANGUAGE plpgsql AS $$
DECLARE
    v_several boolean;
BEGIN
    -- Most installations have one host, and need not count what runs there.
    SELECT count(*) > 1 INTO v_several
    FROM (SELECT FROM hosts WHERE open AND drained_at IS NULL LIMIT 2) several;
    IF NOT v_several THEN
        RETURN ARRAY(
            SELECT s FROM bot_pool_slots s
            WHERE platform = p_platform AND status = 'idle' AND NOT held
                AND (p_avoid IS NULL OR host IS DISTINCT FROM p_avoid)
            ORDER BY last_used_at, id
            LIMIT p_wanted
            FOR NO KEY UPDATE SKIP LOCKED
        );
    END IF;
    -- Only of those that were least recently used, so that it costs the same among many hosts.
    RETURN ARRAY(
        WITH candidate AS MATERIALIZED (
            SELECT id, engine, host, last_used_at FROM bot_pool_slots
            WHERE platform = p_platform AND status = 'idle' AND NOT held
                AND (p_avoid IS NULL OR host IS DISTINCT FROM p_avoid)
            ORDER BY last_used_at, id
            LIMIT p_wanted + 31
        ),
        load AS MATERIALIZED (
            SELECT engine, host, (
                SELECT count(*) FROM bot_pool_slots r
                WHERE r.engine = c.engine AND r.host = c.host AND r.status IN ('deploying', 'busy')
            ) AS running
            FROM (SELECT DISTINCT engine, host FROM candidate) c
        ),
        spread AS (
            SELECT id, running + row_number() OVER (
                PARTITION BY engine, host ORDER BY last_used_at, id
            ) AS bots
            FROM candidate JOIN load USING (engine, host)
        )
        SELECT s FROM bot_pool_slots s JOIN spread USING (id)
        WHERE s.status = 'idle' AND NOT s.held
        ORDER BY bots, last_used_at, s.id
        LIMIT p_wanted
        FOR NO KEY UPDATE OF s SKIP LOCKED
    );
END $$;

-- Put bots on the slots that take_slots gave, in the same order, under new leases. The bots' own rows
-- say already that they are DEPLOYING; p_from is what they were before.
CREATE OR REPLACE FUNCTION occupy_slots(
    p_slots bot_pool_slots[], p_bots bots[], p_from text, p_now timestamptz
) RETURNS SETOF transitions LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
    WITH pair AS MATERIALIZED (
        SELECT
            n, slot.id AS slot_id, slot.number, slot.slot_name, slot.host, slot.container_ref,
            slot.status AS slot_from, slot.lease + 1 AS lease,
            bot.id AS bot_id, bot.platform, bot.correlation_id
        FROM unnest(p_slots) WITH ORDINALITY AS slot
        JOIN (SELECT b.*, ordinality AS n FROM unnest(p_bots) WITH ORDINALITY AS b) bot
            ON n = slot.ordinality
    ),
    idle AS (
        UPDATE bot_pool_slots s
        SET status = 'deploying', assigned_bot_id = bot_id, lease = pair.lease,
            last_used_at = p_now, last_assigned_at = p_now,
            error_message = NULL, deployment_ref = NULL, deployment_status = NULL
        FROM pair
        WHERE s.id = slot_id AND slot_from IS NOT NULL
    ),
    new AS (
        INSERT INTO bot_pool_slots (
            id, platform, number, slot_name, engine, host, image,
            status, assigned_bot_id, lease, last_used_at, last_assigned_at, created_at
        )
        SELECT
            slot_id, platform, number, slot_name, engine, host, image,
            'deploying', bot_id, lease, p_now, p_now, p_now
        FROM pair JOIN pools USING (platform)
        WHERE slot_from IS NULL
        ORDER BY n
    )
    INSERT INTO transitions (
        at, machine, platform, from_status, to_status,
        slot_id, slot_name, container_ref, lease, bot_id, correlation_id, reason
    )
    SELECT
        p_now, machine, platform, from_status, to_status,
        slot_id, slot_name, container_ref, lease, bot_id, correlation_id,
        CASE WHEN slot_from IS NULL THEN 'assigned to a new slot' ELSE 'assigned to an idle slot' END
    FROM pair, LATERAL (
        VALUES ('slot', slot_from, 'deploying'), ('bot', p_from, 'DEPLOYING')
    ) step (machine, from_status, to_status)
    ORDER BY n, machine DESC
    RETURNING *;
END $$;

-- Slots whose container is proved stopped become idle, and go to the bots that wait for them, or make room
-- for those of other platforms that have waited longer. p_from is 'releasing', or 'error' for slots that are
-- repaired. An old lease frees nothing; nor is a slot made idle that is to be deleted.
CREATE OR REPLACE FUNCTION make_idle(
    p_slot_ids bigint[], p_leases bigint[], p_from text, p_reason text
) RETURNS SETOF transitions LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz;
    v_platforms text[];
    v_platform text;
    v_for_all boolean;
BEGIN
    SELECT array_agg(DISTINCT platform ORDER BY platform), bool_or(held) INTO v_platforms, v_for_all
    FROM bot_pool_slots WHERE id = ANY (p_slot_ids);
    -- It may be of use only to others: a new slot elsewhere, or one of another platform.
    v_for_all := v_for_all OR EXISTS (
        SELECT FROM pools
        WHERE platform <> ALL (v_platforms) AND paused_at IS NULL AND size < max_size
            AND a_bot_waits(platform, botpool_now())
    );
    IF v_for_all THEN
        PERFORM lock_platforms();
    ELSE
        FOREACH v_platform IN ARRAY coalesce(v_platforms, '{}') LOOP
            PERFORM pg_advisory_xact_lock_shared(platform_lock(v_platform));
        END LOOP;
    END IF;

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
    ), made_idle AS (
        UPDATE bot_pool_slots s
        SET status = 'idle', recovery_attempts = 0, error_message = NULL
        FROM stopped WHERE s.id = stopped.id
        RETURNING s.*
    )
    INSERT INTO transitions (
        at, machine, platform, from_status, to_status,
        slot_id, slot_name, container_ref, lease, bot_id, correlation_id, reason, details
    )
    SELECT
        v_now, 'slot', platform, p_from, 'idle', id, slot_name, container_ref, lease,
        last_bot_id, (SELECT b.correlation_id FROM bots b WHERE b.id = last_bot_id), p_reason,
        CASE
            WHEN last_bot_id IS NULL THEN '{}'
            ELSE jsonb_build_object('occupiedMs', milliseconds(v_now - last_assigned_at))
        END
    FROM made_idle
    RETURNING *;

    IF v_for_all THEN
        RETURN QUERY SELECT * FROM serve_queues();
    ELSE
        FOREACH v_platform IN ARRAY coalesce(v_platforms, '{}') LOOP
            RETURN QUERY SELECT * FROM serve_queue(v_platform, false);
        END LOOP;
    END IF;
END $$;

-- Delete a slot that is in error, or that is drained and has no bot. Its name and its room are free, and
-- those who wait, of any platform, may have a new slot for it.
CREATE OR REPLACE FUNCTION delete_slot(p_slot_id bigint, p_lease bigint, p_reason text)
    RETURNS SETOF transitions LANGUAGE plpgsql AS $$
DECLARE
    v_slot bot_pool_slots;
BEGIN
    PERFORM lock_platforms();
    DELETE FROM bot_pool_slots
    WHERE id = p_slot_id AND lease = p_lease
        AND (status = 'error' OR (draining AND status IN ('idle', 'releasing')))
    RETURNING * INTO v_slot;
    IF NOT FOUND THEN RETURN; END IF;

    RETURN QUERY SELECT * FROM record_step(
        'slot', v_slot.status, NULL, v_slot, NULL, p_reason,
        jsonb_build_object('recoveryAttempts', v_slot.recovery_attempts), botpool_now()
    );
    RETURN QUERY SELECT * FROM serve_queues();
END $$;

-- Let a slot get no further bot. One that is idle is deleted at once; others when they are free, and with
-- p_tell that is told.
CREATE OR REPLACE FUNCTION drain_slot(p_slot_id bigint, p_reason text, p_tell boolean)
    RETURNS SETOF transitions LANGUAGE plpgsql AS $$
DECLARE
    v_slot bot_pool_slots;
BEGIN
    PERFORM lock_platforms();
    SELECT * INTO v_slot FROM bot_pool_slots WHERE id = p_slot_id FOR NO KEY UPDATE;
    UPDATE bot_pool_slots SET draining = true WHERE id = v_slot.id;
    IF v_slot.status = 'idle' THEN
        RETURN QUERY SELECT * FROM delete_slot(v_slot.id, v_slot.lease, p_reason);
    ELSIF p_tell AND NOT v_slot.draining THEN
        RETURN QUERY SELECT * FROM note_slot(
            v_slot, p_reason || ': it gets no further bot, and is deleted once it is free', '{}'
        );
    END IF;
END $$;

-- Delete a slot that has no bot, now: one that is idle or in error at once, whose container is removed by the
-- comparison with the engine; one that is releasing as soon as its container is proved stopped, which is told.
CREATE OR REPLACE FUNCTION remove_slot(p_slot_id bigint, p_reason text)
    RETURNS SETOF transitions LANGUAGE plpgsql AS $$
DECLARE
    v_slot bot_pool_slots;
BEGIN
    PERFORM lock_platforms();
    SELECT * INTO v_slot FROM bot_pool_slots
    WHERE id = p_slot_id AND assigned_bot_id IS NULL
    FOR NO KEY UPDATE;
    UPDATE bot_pool_slots
    SET draining = true, wakes = wakes + 1,
        due_at = CASE WHEN status = 'idle' THEN due_at ELSE botpool_now() END
    WHERE id = v_slot.id;
    IF v_slot.status IN ('idle', 'error') THEN
        RETURN QUERY SELECT * FROM delete_slot(v_slot.id, v_slot.lease, p_reason);
    ELSIF NOT v_slot.draining THEN
        RETURN QUERY SELECT * FROM note_slot(
            v_slot, p_reason || ': as soon as its container is proved stopped', '{}'
        );
    END IF;
END $$;

-- Put slots that new_slots gave into the table without a bot: each is releasing until its container is made
-- and proved stopped, then idle.
CREATE OR REPLACE FUNCTION add_slots(p_pool pools, p_slots bot_pool_slots[], p_reason text)
    RETURNS SETOF transitions LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := botpool_now();
BEGIN
    RETURN QUERY
    WITH added AS (
        INSERT INTO bot_pool_slots (
            id, platform, number, slot_name, engine, host, image,
            status, lease, last_used_at, last_assigned_at, created_at
        )
        SELECT
            id, p_pool.platform, number, slot_name, p_pool.engine, host, p_pool.image,
            'releasing', lease, v_now, v_now, v_now
        FROM unnest(p_slots)
        ORDER BY number
        RETURNING *
    )
    INSERT INTO transitions (at, machine, platform, to_status, slot_id, slot_name, lease, reason)
    SELECT v_now, 'slot', platform, status, id, slot_name, lease, p_reason FROM added ORDER BY number
    RETURNING *;
END $$;

-- Make slots without a bot until as many are idle, or soon will be, as are to be kept warm; as far as the
-- pool may grow and hosts have room, spread over them; none while it is paused. One in error counts:
-- another may fare no better. The caller holds the platform's lock.
CREATE OR REPLACE FUNCTION keep_warm(p_platform text) RETURNS SETOF transitions LANGUAGE plpgsql AS $$
DECLARE
    v_pool pools;
    v_wanted integer;
BEGIN
    SELECT * INTO v_pool FROM pools WHERE platform = p_platform AND warm > 0 AND paused_at IS NULL;
    IF NOT FOUND OR a_bot_waits(p_platform, botpool_now()) THEN RETURN; END IF;
    SELECT v_pool.warm - count(*) INTO v_wanted FROM bot_pool_slots
    WHERE platform = p_platform AND NOT draining
        AND (status = 'error' OR (status IN ('idle', 'releasing') AND NOT held));
    IF v_wanted < 1 THEN RETURN; END IF;

    RETURN QUERY SELECT * FROM make_room(p_platform, v_wanted);
    SELECT * INTO v_pool FROM pools WHERE platform = p_platform;
    v_wanted := least(v_wanted, v_pool.max_size - v_pool.size);
    IF v_wanted > 0 THEN
        RETURN QUERY SELECT * FROM add_slots(
            v_pool, new_slots(v_pool, choose_hosts(v_pool.engine, v_wanted, NULL)), 'kept warm'
        );
    END IF;
END $$;

-- Slots after a platform and a number, in the order of their names, by whichever field of p_page is given. The
-- conditions are put together anew each time, so that a container or a bot is looked up by its index.
CREATE OR REPLACE FUNCTION list_slots(p_page jsonb) RETURNS SETOF bot_pool_slots
    LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY EXECUTE concat(
        'SELECT * FROM bot_pool_slots WHERE true',
        CASE WHEN p_page ->> 'after' IS NOT NULL THEN
            ' AND (platform, number) > ($1 #>> ''{after,0}'', ($1 #>> ''{after,1}'')::bigint)' END,
        CASE WHEN p_page ->> 'platform' IS NOT NULL
            THEN ' AND platform = $1 ->> ''platform''' END,
        CASE WHEN p_page ->> 'statuses' IS NOT NULL
            THEN ' AND $1 -> ''statuses'' ? status' END,
        CASE WHEN p_page ->> 'slot_name' IS NOT NULL
            THEN ' AND slot_name = $1 ->> ''slot_name''' END,
        CASE WHEN p_page ->> 'container_ref' IS NOT NULL
            THEN ' AND container_ref = $1 ->> ''container_ref''' END,
        CASE WHEN p_page ->> 'assigned_bot_id' IS NOT NULL
            THEN ' AND assigned_bot_id = ($1 ->> ''assigned_bot_id'')::bigint' END,
        ' ORDER BY platform, number LIMIT ($1 ->> ''limit'')::integer'
    )
    USING p_page;
END $$;
