-- What happens to slots and bots is written with the change itself, one row a change.

CREATE OR REPLACE FUNCTION milliseconds(p_interval interval) RETURNS bigint LANGUAGE sql IMMUTABLE
    AS $$ SELECT (extract(epoch FROM p_interval) * 1000)::bigint $$;

-- Write what happened to a slot or a bot. Either may be NULL where it has no part in it.
CREATE OR REPLACE FUNCTION record_step(
    p_machine text, p_from text, p_to text, p_slot bot_pool_slots, p_bot bots, p_reason text,
    p_details jsonb, p_now timestamptz
) RETURNS SETOF transitions LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
    INSERT INTO transitions (
        at, machine, platform, from_status, to_status,
        slot_id, slot_name, container_ref, lease, bot_id, correlation_id, reason, details
    )
    VALUES (
        p_now, p_machine, coalesce(p_slot.platform, p_bot.platform), p_from, p_to,
        p_slot.id, p_slot.slot_name, p_slot.container_ref, p_slot.lease,
        p_bot.id, p_bot.correlation_id, p_reason, p_details
    )
    RETURNING *;
END $$;

-- Write what happened to a slot that keeps its status, and to the bot that it has or had last.
CREATE OR REPLACE FUNCTION note_slot(p_slot bot_pool_slots, p_reason text, p_details jsonb)
    RETURNS SETOF transitions LANGUAGE plpgsql AS $$
DECLARE
    v_bot bots;
BEGIN
    SELECT * INTO v_bot FROM bots WHERE id = coalesce(p_slot.assigned_bot_id, p_slot.last_bot_id);
    RETURN QUERY SELECT * FROM record_step(
        'slot', p_slot.status, p_slot.status, p_slot, v_bot, p_reason, p_details, botpool_now()
    );
END $$;

-- Tell in the timelines of slots, each under its lease, and of the bots that they have or had last, what goes
-- wrong (p_error; p_reason in a sentence) at which attempt. Only where that is news: the error that was told
-- last under the lease was another. One that differs in numbers alone, such as durations, is the same.
CREATE OR REPLACE FUNCTION tell_error(
    p_slot_ids bigint[], p_leases bigint[], p_error text, p_reason text, p_attempt integer
) RETURNS SETOF transitions LANGUAGE plpgsql AS $$
BEGIN
    -- So that of two who tell the same at once, the second sees what the first has told.
    PERFORM FROM bot_pool_slots WHERE id = ANY (p_slot_ids) ORDER BY id FOR NO KEY UPDATE;
    RETURN QUERY
    INSERT INTO transitions (
        at, machine, platform, from_status, to_status,
        slot_id, slot_name, container_ref, lease, bot_id, correlation_id, reason, details
    )
    SELECT
        botpool_now(), 'slot', s.platform, s.status, s.status,
        s.id, s.slot_name, s.container_ref, s.lease, b.id, b.correlation_id, p_reason,
        jsonb_build_object('attempt', p_attempt, 'error', p_error)
    FROM unnest(p_slot_ids, p_leases) AS asked (slot_id, lease)
    JOIN bot_pool_slots s ON s.id = asked.slot_id AND s.lease = asked.lease
    LEFT JOIN bots b ON b.id = coalesce(s.assigned_bot_id, s.last_bot_id)
    LEFT JOIN LATERAL (
        -- All that was written under one lease is among the newest.
        SELECT newest.details ->> 'error' AS error FROM (
            SELECT t.id, t.lease, t.details FROM transitions t
            WHERE t.slot_id = s.id AND t.machine = 'slot'
            ORDER BY t.id DESC
            LIMIT 100
        ) newest
        WHERE newest.lease = s.lease AND newest.details ? 'error'
        ORDER BY newest.id DESC
        LIMIT 1
    ) told ON true
    WHERE regexp_replace(told.error, '[0-9]+', '#', 'g')
        IS DISTINCT FROM regexp_replace(p_error, '[0-9]+', '#', 'g')
    ORDER BY s.id
    RETURNING *;
END $$;
