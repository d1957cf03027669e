-- Relaunch: another launch of the same bot when one has failed. What is locked first, and why this is a
-- function: queue.sql.

-- Put the bot of a slot back into the queue, at the place that its creation gave it, and on to the
-- next free slot if there is one, on another host where there is one. Its old slot is in error. Nothing
-- happens under an old lease, when the bot has been in its call and was not asked for to go back
-- there, when it was heard since p_failed's unless_heard_since, when its slot is not what it was, when
-- only another host could do better and there is none, or when it was launched p_max_attempts times. A
-- launch that does not count as one was never begun: its slot is deleted.
CREATE OR REPLACE FUNCTION relaunch_bot(
    p_failed jsonb, p_relaunchable text[], p_max_attempts integer
) RETURNS SETOF transitions LANGUAGE plpgsql AS $$
DECLARE
    v_failed record;
    v_now timestamptz;
    v_slot bot_pool_slots;
    v_bot bots;
    v_from text;
BEGIN
    SELECT * INTO v_failed FROM jsonb_to_record(p_failed) AS f (
        slot_id bigint, lease bigint, cause text, reason text, unless_heard_since timestamptz,
        was text, details jsonb, counts boolean, elsewhere boolean
    );
    PERFORM pg_advisory_xact_lock(platform_lock(platform)) FROM bot_pool_slots
    WHERE id = v_failed.slot_id;

    SELECT * INTO v_slot FROM bot_pool_slots
    WHERE id = v_failed.slot_id AND lease = v_failed.lease AND assigned_bot_id IS NOT NULL
        AND status = coalesce(v_failed.was, status)
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN RETURN; END IF;
    SELECT b.status INTO v_from FROM bots b
    WHERE id = v_slot.assigned_bot_id
        AND (status = ANY (p_relaunchable) OR (status = 'IN_CALL' AND relaunch_in_call))
        AND (
            NOT v_failed.counts
            OR launch_attempts < coalesce(max_launch_attempts, p_max_attempts)
        )
        AND (
            NOT coalesce(v_failed.elsewhere, false)
            OR EXISTS (SELECT FROM open_hosts(v_slot.engine) WHERE host <> v_slot.host)
        )
        AND (
            v_failed.unless_heard_since IS NULL
            OR last_heard(b, v_slot) < v_failed.unless_heard_since
        )
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN RETURN; END IF;

    v_now := botpool_now();
    UPDATE bot_pool_slots
    SET status = 'error', error_message = v_failed.reason, assigned_bot_id = NULL,
        last_released_at = v_now, draining = draining OR NOT v_failed.counts
    WHERE id = v_slot.id;
    UPDATE bots
    SET status = 'QUEUED', started_at = NULL, last_heartbeat = NULL,
        -- If it is known on which node of its host it failed, it need not wait for the host.
        avoid_host = CASE WHEN v_slot.node IS NULL THEN v_slot.host END, avoid_node = v_slot.node,
        relaunched_at = v_now, assigned_at = NULL, image_at = NULL, container_at = NULL,
        claimed_at = NULL, waiting_room_at = NULL,
        launch_attempts = launch_attempts - CASE WHEN v_failed.counts THEN 0 ELSE 1 END
    WHERE id = v_slot.assigned_bot_id
    RETURNING * INTO v_bot;

    RETURN QUERY SELECT * FROM record_step(
        'slot', v_slot.status, 'error', v_slot, v_bot, v_failed.reason,
        v_failed.details || jsonb_build_object(
            'botStatus', v_bot.status,
            'failureCause', v_failed.cause,
            'heldMs', milliseconds(v_now - v_slot.last_assigned_at),
            'launchAttempts', v_bot.launch_attempts
        ),
        v_now
    );
    RETURN QUERY SELECT * FROM enqueue(ARRAY[v_bot], v_from, v_failed.reason, v_now);
    RETURN QUERY SELECT * FROM serve_queue(v_slot.platform, true);
END $$;
