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
