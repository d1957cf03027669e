-- Pulls: images on their way to hosts. What is locked first, and why these are functions: queue.sql.

-- The pools whose images no bot has asked for yet on a host, in the order in which they are to be brought
-- there; none while the host gets no new work, another image is on its way there, or a bot there waits for
-- one. What has failed is tried again in p_again ms, and later and later. The caller holds the host's lock.
CREATE OR REPLACE FUNCTION missing_images(p_engine text, p_host text, p_again integer)
    RETURNS SETOF pools LANGUAGE sql AS $$
    SELECT pool.* FROM pools pool
    LEFT JOIN image_pulls p
        ON p.engine = pool.engine AND p.host = p_host AND p.image = pool.image
    WHERE pool.engine = p_engine AND pool.image IS NOT NULL
        AND (
            p.image IS NULL
            OR p.status IN ('asked', 'pulling')
            OR (
                p.status = 'failed'
                AND p.finished_at + p_again * least(2 ^ least(p.attempts - 1, 6), 60)
                    * interval '1 millisecond' <= botpool_now()
            )
        )
        AND EXISTS (
            SELECT FROM hosts h WHERE h.engine = p_engine AND h.host = p_host
                AND h.open AND h.drained_at IS NULL AND h.unhealthy_since IS NULL
        )
        AND NOT EXISTS (
            SELECT FROM image_pulls other WHERE other.engine = p_engine AND other.host = p_host
                AND other.status = 'pulling' AND other.reserved_until > botpool_now()
        )
        AND NOT EXISTS (
            SELECT FROM bot_pool_slots s WHERE s.engine = p_engine AND s.host = p_host
                AND s.status = 'deploying' AND s.waits_for = 'image'
        )
    ORDER BY p.status = 'asked' DESC NULLS LAST, p.attempts NULLS FIRST, pool.platform
$$;

-- Whether another start may bring an image, where starts do. One engine's API starts containers on all
-- hosts, and Coolify has four workers for that and for stops: pulls on four hosts at once would hold up
-- every stop for minutes. The caller holds the lock that is taken here until it has reserved the pull.
CREATE OR REPLACE FUNCTION may_bring_image(p_engine text, p_host text) RETURNS boolean
    LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('botpool/images/' || p_engine, 0));
    RETURN 3 > (
        SELECT count(DISTINCT host) FROM image_pulls
        WHERE engine = p_engine AND host <> p_host AND slot_id IS NOT NULL
            AND status = 'pulling' AND reserved_until > botpool_now()
    );
END $$;

-- Reserve the pull of an image to a host for p_ttl ms, if it isn't there and no other replica pulls it; for
-- the start of a slot under a lease, where that brings it. Its error stays that of the last attempt.
-- Returns the row if it is reserved now.
CREATE OR REPLACE FUNCTION take_pull(
    p_engine text, p_host text, p_image text, p_owner text, p_ttl integer,
    p_slot_id bigint, p_lease bigint
) RETURNS SETOF image_pulls LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT FROM image_pulls p
        WHERE p.engine = p_engine AND p.host = p_host AND p.image = p_image
            AND (p.status = 'present' OR p.reserved_until > botpool_now() OR p.retry_at > botpool_now())
    ) OR (p_slot_id IS NOT NULL AND NOT may_bring_image(p_engine, p_host)) THEN
        RETURN;
    END IF;
    RETURN QUERY
    INSERT INTO image_pulls (
        engine, host, image, status, reserved_by, reserved_until, started_at, slot_id, lease
    )
    VALUES (
        p_engine, p_host, p_image, 'pulling', p_owner,
        botpool_now() + p_ttl * interval '1 millisecond', botpool_now(), p_slot_id, p_lease
    )
    ON CONFLICT (engine, host, image) DO UPDATE
    SET status = 'pulling', reserved_by = excluded.reserved_by,
        reserved_until = excluded.reserved_until, started_at = excluded.started_at,
        finished_at = NULL, retry_at = NULL, current_bytes = 0, total_bytes = 0,
        attempts = image_pulls.attempts + 1, slot_id = excluded.slot_id, lease = excluded.lease
    WHERE (image_pulls.status = 'failed' AND image_pulls.retry_at <= botpool_now())
        OR (image_pulls.status = 'pulling' AND image_pulls.reserved_until <= botpool_now())
        OR image_pulls.status = 'asked'
    RETURNING *;
END $$;

-- Reserve the pull of the next image that no bot has asked for yet on a host. Returns it, if there is one.
CREATE OR REPLACE FUNCTION take_pull_ahead(
    p_engine text, p_host text, p_owner text, p_ttl integer, p_again integer
) RETURNS SETOF image_pulls LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(host_lock(p_engine, p_host));
    RETURN QUERY
    SELECT p.* FROM (SELECT * FROM missing_images(p_engine, p_host, p_again) LIMIT 1) pool,
        LATERAL take_pull(p_engine, p_host, pool.image, p_owner, p_ttl, NULL, NULL) p;
END $$;

-- The same where only a start brings an image: let an idle slot of the host be started without a bot, best
-- one of that image; or a new one, if there is room. It is releasing, under a new lease, until it is proved
-- stopped again. Not while a bot is launched on the host or waits, nor if nothing is left for a bot that
-- comes meanwhile: then its own start brings the image.
CREATE OR REPLACE FUNCTION start_ahead(
    p_engine text, p_host text, p_limit integer, p_again integer
) RETURNS SETOF transitions LANGUAGE plpgsql AS $$
DECLARE
    v_pool pools;
    v_slot bot_pool_slots;
    v_others boolean;
    v_room bigint;
    v_here boolean;
BEGIN
    PERFORM pg_advisory_xact_lock(host_lock(p_engine, p_host));
    IF NOT EXISTS (SELECT FROM missing_images(p_engine, p_host, p_again)) THEN RETURN; END IF;
    PERFORM lock_platforms();
    -- After the locks: bots may have come while they were waited for.
    IF EXISTS (
        SELECT FROM bot_pool_slots
        WHERE engine = p_engine AND host = p_host AND status = 'deploying'
    ) THEN
        RETURN;
    END IF;
    PERFORM pg_advisory_xact_lock(room_lock(p_engine));
    IF NOT may_bring_image(p_engine, p_host) THEN RETURN; END IF;
    SELECT sum(coalesce(room, 1000000)), coalesce(bool_or(host = p_host AND coalesce(room, 1) > 0), false)
    INTO v_room, v_here FROM open_hosts(p_engine);

    FOR v_pool IN SELECT * FROM missing_images(p_engine, p_host, p_again) LOOP
        CONTINUE WHEN v_pool.paused_at IS NOT NULL OR a_bot_waits(v_pool.platform, botpool_now());
        SELECT * INTO v_slot FROM bot_pool_slots
        WHERE engine = p_engine AND host = p_host AND platform = v_pool.platform
            AND status = 'idle' AND NOT held AND NOT draining
        ORDER BY image IS DISTINCT FROM v_pool.image, last_used_at, id
        LIMIT 1
        FOR NO KEY UPDATE SKIP LOCKED;
        v_others := EXISTS (
            SELECT FROM bot_pool_slots
            WHERE platform = v_pool.platform AND status = 'idle' AND NOT held AND id <> v_slot.id
        );
        IF v_slot.id IS NOT NULL THEN
            CONTINUE WHEN NOT v_others AND (v_pool.size >= v_pool.max_size OR coalesce(v_room, 0) < 1);
            UPDATE bot_pool_slots
            SET status = 'releasing', lease = lease + 1, deployment_ref = NULL,
                deployment_status = NULL
            WHERE id = v_slot.id
            RETURNING * INTO v_slot;
            RETURN QUERY SELECT * FROM record_step(
                'slot', 'idle', 'releasing', v_slot, NULL,
                'started without a bot, to bring the image', '{}', botpool_now()
            );
        ELSE
            CONTINUE WHEN NOT v_here OR v_room < 2 OR v_pool.size + 1 >= v_pool.max_size;
            v_slot := (new_slots(v_pool, ARRAY[p_host]))[1];
            RETURN QUERY SELECT * FROM add_slots(v_pool, ARRAY[v_slot], 'made to bring the image');
        END IF;
        PERFORM take_pull(
            p_engine, p_host, v_pool.image, 'start of ' || v_slot.slot_name, p_limit,
            v_slot.id, v_slot.lease
        );
        RETURN;
    END LOOP;
END $$;

-- End the pulls on a host that starts were to bring, and that are over: the image is there once its
-- slot is busy, and another slot may try once the slot is proved stopped, or serves another. Its error is what
-- the start failed with. Returns the images.
CREATE OR REPLACE FUNCTION settle_pulls(p_engine text, p_host text) RETURNS text[]
    LANGUAGE plpgsql AS $$
DECLARE
    v_settled text[];
BEGIN
    WITH settled AS (
        UPDATE image_pulls p
        SET status = CASE WHEN s.status = 'busy' THEN 'present' ELSE 'failed' END,
            error = CASE WHEN s.status IS DISTINCT FROM 'busy' THEN coalesce(
                (
                    SELECT t.reason FROM transitions t
                    WHERE t.slot_id = held.slot_id AND t.machine = 'slot' AND t.lease = held.lease
                        AND t.from_status = 'deploying' AND t.to_status = 'error'
                    ORDER BY t.id DESC
                    LIMIT 1
                ),
                'its deployment came to nothing'
            ) END,
            retry_at = CASE WHEN s.status = 'busy' THEN NULL ELSE botpool_now() END,
            reserved_by = NULL, reserved_until = NULL, slot_id = NULL, lease = NULL,
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
