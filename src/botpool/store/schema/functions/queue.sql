-- The queue of a platform: the bots that wait for a slot, and how they get one.
--
-- Why functions: a statement sees the database as it was when the statement began, so one that
-- waits for a lock and then counts slots counts those of before the wait. Inside a function every
-- statement looks anew, and lock, look and write are still one round trip and one transaction.
--
-- The platform's advisory lock keeps two things apart: bots that join the queue (exclusive), and
-- slots that become idle (shared, so they don't wait for each other). Without it a bot could join
-- the queue while a slot becomes idle, neither seeing the other, and wait beside a free slot.
-- Taking an idle slot needs no lock: where a slot is idle, no bot waits.
--
-- While a pool is paused, bots wait beside its idle slots. Pausing and resuming take the lock, exclusive;
-- whoever would take a slot looks whether the pool is paused as it looks whether a bot waits.
--
-- Locks are always taken in this order: host, platform, room, pool, slots by their id, queue entry, bot.
--
-- Every function that changes something returns the rows that it wrote to transitions.

CREATE OR REPLACE FUNCTION platform_lock(p_platform text) RETURNS bigint LANGUAGE sql IMMUTABLE
    AS $$ SELECT hashtextextended('botpool/' || p_platform, 0) $$;

-- Whether a bot waits for a slot of this platform and may still have one. The order is there for the
-- planner: it makes it look at one entry of the index, where EXISTS makes it read other platforms'.
CREATE OR REPLACE FUNCTION a_bot_waits(p_platform text, p_now timestamptz) RETURNS boolean
    LANGUAGE sql STABLE AS $$
    SELECT (
        SELECT id FROM bot_pool_queue
        WHERE platform = p_platform AND timeout_at > p_now
        ORDER BY priority, bot_id
        LIMIT 1
    ) IS NOT NULL
$$;

-- Whether no bot of this platform is launched for now.
CREATE OR REPLACE FUNCTION is_paused(p_platform text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT coalesce((SELECT paused_at IS NOT NULL FROM pools WHERE platform = p_platform), false)
$$;

-- The bots that wait are counted in blocks of 1,024 ids: a place in the queue is the sum of the blocks up
-- to its own, less those behind it in that block. So nobody counts more than a block.
CREATE OR REPLACE FUNCTION queue_block(p_bot_id bigint) RETURNS bigint LANGUAGE sql IMMUTABLE
    AS $$ SELECT p_bot_id >> 10 $$;

-- How many bots wait, by block; the rows of a block have to be summed up.
CREATE OR REPLACE VIEW waiting_bots AS
    SELECT platform, priority, block, bots FROM queue_counts
    UNION ALL
    SELECT platform, priority, block, bots FROM queue_changes;

-- Count those who join the queue (1) or leave it (-1).
CREATE OR REPLACE FUNCTION count_waiting() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO queue_changes (platform, priority, block, bots)
    SELECT platform, priority, queue_block(bot_id), count(*) * TG_ARGV[0]::integer
    FROM changed
    GROUP BY platform, priority, queue_block(bot_id);
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER bot_pool_queue_joined AFTER INSERT ON bot_pool_queue
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION count_waiting('1');
CREATE OR REPLACE TRIGGER bot_pool_queue_left AFTER DELETE ON bot_pool_queue
    REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION count_waiting('-1');
CREATE OR REPLACE TRIGGER bot_pool_queue_moved_away AFTER UPDATE ON bot_pool_queue
    REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION count_waiting('-1');
CREATE OR REPLACE TRIGGER bot_pool_queue_moved_here AFTER UPDATE ON bot_pool_queue
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION count_waiting('1');

-- Add what changed to the counts, once it is much. The caller holds the platform's lock, exclusive.
CREATE OR REPLACE FUNCTION add_up_waiting(p_platform text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM queue_changes WHERE platform = p_platform ORDER BY id OFFSET 100 LIMIT 1;
    IF NOT FOUND THEN RETURN; END IF;

    WITH change AS (
        DELETE FROM queue_changes WHERE platform = p_platform
        RETURNING priority, block, bots
    )
    INSERT INTO queue_counts AS counted (platform, priority, block, bots)
    SELECT p_platform, priority, block, sum(bots) FROM change GROUP BY priority, block
    ON CONFLICT (platform, priority, block) DO UPDATE SET bots = counted.bots + excluded.bots;
    DELETE FROM queue_counts WHERE platform = p_platform AND bots = 0;
END $$;

-- How many bots wait before one with this priority and id, whether it waits itself or not.
CREATE OR REPLACE FUNCTION bots_ahead(p_platform text, p_priority integer, p_bot_id bigint)
    RETURNS bigint LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN coalesce((
        SELECT sum(bots) FROM waiting_bots
        WHERE platform = p_platform AND (priority, block) <= (p_priority, queue_block(p_bot_id))
    ), 0) - (
        SELECT count(*) FROM bot_pool_queue
        WHERE platform = p_platform AND priority = p_priority
            AND bot_id >= p_bot_id AND bot_id < (queue_block(p_bot_id) + 1) << 10
    );
END $$;

-- Let bots of one platform, whose rows say QUEUED already, wait. A bot's place counts from its
-- creation, its deadline from now. The caller holds the platform's lock, exclusive.
CREATE OR REPLACE FUNCTION enqueue(p_bots bots[], p_from text, p_reason text, p_now timestamptz)
    RETURNS SETOF transitions LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
    WITH entry AS (
        INSERT INTO bot_pool_queue (bot_id, platform, priority, queued_at, timeout_at)
        SELECT
            id, platform, priority, created_at, p_now + queue_timeout_ms * interval '1 millisecond'
        FROM unnest(p_bots)
        ORDER BY id
        RETURNING *
    ),
    -- Those who waited before; summed up once for all that join them together.
    ahead AS MATERIALIZED (
        SELECT priority, bots_ahead(min(platform), priority, min(id)) AS bots
        FROM unnest(p_bots)
        GROUP BY priority
    ),
    placed AS (
        SELECT
            entry.bot_id, entry.platform, entry.timeout_at,
            ahead.bots + row_number() OVER (ORDER BY priority, bot_id) AS position
        FROM entry JOIN ahead USING (priority)
    ),
    pace AS MATERIALIZED (
        SELECT wait_ms_a_place(platform) AS wait_ms FROM unnest(p_bots) LIMIT 1
    )
    INSERT INTO transitions (
        at, machine, platform, from_status, to_status, bot_id, correlation_id, reason, details
    )
    SELECT
        p_now, 'bot', placed.platform, p_from, 'QUEUED', bot_id, b.correlation_id, p_reason,
        jsonb_strip_nulls(jsonb_build_object(
            'queuePosition', position,
            'estimatedWaitMs', ceil(position * wait_ms)::bigint,
            'timeoutAt', timeout_at
        ))
    FROM placed JOIN unnest(p_bots) b ON b.id = bot_id, pace
    ORDER BY bot_id
    RETURNING *;
    PERFORM add_up_waiting(p_bots[1].platform);
END $$;

-- Give the platform's free slots to its waiting bots, in the order of the queue, p_most at most. The caller
-- holds the platform's lock: shared, or to grow, exclusive. The slot is taken before the entry: an entry
-- that was locked and then not served would be passed over by a transaction that has a slot for it.
CREATE OR REPLACE FUNCTION serve_queue(p_platform text, p_grow boolean, p_most integer DEFAULT NULL)
    RETURNS SETOF transitions LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := botpool_now();
    v_avoid text;
    v_slots bot_pool_slots[];
    v_bot_id bigint;
    v_bot bots;
BEGIN
    WHILE a_bot_waits(p_platform, v_now) AND NOT is_paused(p_platform) LOOP
        SELECT b.avoid_host INTO v_avoid FROM bots b WHERE b.id = (
            SELECT bot_id FROM bot_pool_queue
            WHERE platform = p_platform AND timeout_at > v_now
            ORDER BY priority, bot_id
            LIMIT 1
        );
        IF p_grow AND NOT has_idle(p_platform) THEN
            RETURN QUERY SELECT * FROM make_room(p_platform, 1);
        END IF;
        v_slots := take_slots(p_platform, 1, p_grow, v_avoid);
        EXIT WHEN v_slots = '{}';

        DELETE FROM bot_pool_queue
        WHERE id = (
            SELECT id FROM bot_pool_queue
            WHERE platform = p_platform AND timeout_at > v_now
            ORDER BY priority, bot_id
            LIMIT 1
            FOR NO KEY UPDATE SKIP LOCKED
        )
        RETURNING bot_id INTO v_bot_id;
        EXIT WHEN NOT FOUND;

        UPDATE bots
        SET status = 'DEPLOYING', launch_attempts = launch_attempts + 1,
            slot_name = v_slots[1].slot_name, container_ref = v_slots[1].container_ref,
            lease = v_slots[1].lease + 1, assigned_at = v_now
        WHERE id = v_bot_id
        RETURNING * INTO v_bot;

        RETURN QUERY SELECT * FROM occupy_slots(v_slots, ARRAY[v_bot], 'QUEUED', v_now);
        p_most := p_most - 1;
        EXIT WHEN p_most = 0;
    END LOOP;
END $$;

-- Take the locks of all platforms: room on a host is for every platform.
CREATE OR REPLACE FUNCTION lock_platforms() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_platform text;
BEGIN
    FOR v_platform IN SELECT platform FROM pools ORDER BY platform LOOP
        PERFORM pg_advisory_xact_lock(platform_lock(v_platform));
    END LOOP;
END $$;

-- Give what is free to those who wait, of every platform, in one order: room on a host is for all of them. The
-- caller holds the locks of all platforms.
CREATE OR REPLACE FUNCTION serve_queues() RETURNS SETOF transitions LANGUAGE plpgsql AS $$
DECLARE
    v_platform text;
    v_in_vain text[] := '{}';
BEGIN
    LOOP
        SELECT platform INTO v_platform FROM pools, LATERAL (
            SELECT priority, bot_id FROM bot_pool_queue q
            WHERE q.platform = pools.platform AND timeout_at > botpool_now()
            ORDER BY priority, bot_id
            LIMIT 1
        ) first
        WHERE platform <> ALL (v_in_vain)
        ORDER BY priority, bot_id
        LIMIT 1;
        EXIT WHEN NOT FOUND;
        RETURN QUERY SELECT * FROM serve_queue(v_platform, true, 1);
        IF NOT FOUND THEN v_in_vain := v_in_vain || v_platform; END IF;
    END LOOP;
END $$;

-- Give what is free to those who wait, and make the slots that are kept warm. Every change that frees a
-- slot serves the queue itself; this is for what no change tells of, such as one that was killed after it
-- had passed over a locked entry.
CREATE OR REPLACE FUNCTION assign_waiting(p_platform text) RETURNS SETOF transitions
    LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(platform_lock(p_platform));
    RETURN QUERY SELECT * FROM serve_queue(p_platform, true);
    RETURN QUERY SELECT * FROM keep_warm(p_platform);
    PERFORM add_up_waiting(p_platform);
END $$;

-- Say how far the pool of a platform may grow, how many of its slots are kept warm, and what new ones are
-- made of. Those who wait may have room now.
CREATE OR REPLACE FUNCTION set_pool(
    p_platform text, p_max_size integer, p_warm integer, p_engine text, p_image text
) RETURNS SETOF transitions LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(platform_lock(p_platform));
    PERFORM pg_advisory_xact_lock(room_lock(p_engine));
    INSERT INTO pools (platform, max_size, warm, engine, image)
    VALUES (p_platform, p_max_size, p_warm, p_engine, p_image)
    ON CONFLICT (platform) DO UPDATE
    SET max_size = p_max_size, warm = p_warm, engine = p_engine, image = p_image;
    RETURN QUERY SELECT * FROM serve_queue(p_platform, true);
END $$;

-- Launch no bot of a platform until it is resumed: bots that come wait, as do those that wait already, and
-- those whose launch fails. Bots that have a slot stay on it. A pool that is paused already stays so since
-- then, and by whom it was.
CREATE OR REPLACE FUNCTION pause_pool(p_platform text, p_by text, p_reason text)
    RETURNS SETOF transitions LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz;
BEGIN
    PERFORM pg_advisory_xact_lock(platform_lock(p_platform));
    v_now := botpool_now();
    UPDATE pools SET paused_at = v_now, paused_by = p_by, pause_reason = p_reason
    WHERE platform = p_platform AND paused_at IS NULL;
    IF NOT FOUND THEN RETURN; END IF;
    RETURN QUERY
    INSERT INTO transitions (at, machine, platform, from_status, to_status, reason, details)
    VALUES (
        v_now, 'pool', p_platform, 'open', 'paused', coalesce(p_reason, 'paused'),
        jsonb_build_object('by', p_by)
    )
    RETURNING *;
END $$;

-- Launch bots of a platform again. Those who wait are served at once, in order.
CREATE OR REPLACE FUNCTION resume_pool(p_platform text, p_by text)
    RETURNS SETOF transitions LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz;
    v_since timestamptz;
BEGIN
    PERFORM pg_advisory_xact_lock(platform_lock(p_platform));
    PERFORM pg_advisory_xact_lock(room_lock(engine)) FROM pools WHERE platform = p_platform;
    v_now := botpool_now();
    SELECT paused_at INTO v_since FROM pools WHERE platform = p_platform;
    UPDATE pools SET paused_at = NULL, paused_by = NULL, pause_reason = NULL
    WHERE platform = p_platform AND paused_at IS NOT NULL;
    IF NOT FOUND THEN RETURN; END IF;
    RETURN QUERY
    INSERT INTO transitions (at, machine, platform, from_status, to_status, reason, details)
    VALUES (
        v_now, 'pool', p_platform, 'paused', 'open', 'resumed',
        jsonb_build_object('by', p_by, 'pausedMs', milliseconds(v_now - v_since))
    )
    RETURNING *;
    RETURN QUERY SELECT * FROM serve_queue(p_platform, true);
END $$;
