-- The estimate of a wait.

-- How many milliseconds pass, as things go lately, until the next bot of the queue has its slot: every
-- slot of the platform becomes free once in the time that slots were lately occupied, so one does
-- every share of it. A bot at position n waits n times as long. NULL while nothing is known, and while the
-- pool is paused: nobody knows for how long.
CREATE OR REPLACE FUNCTION wait_ms_a_place(p_platform text) RETURNS numeric LANGUAGE sql STABLE AS $$
    SELECT avg(occupied_ms) / nullif((
        SELECT size - (
            SELECT count(*) FROM bot_pool_slots WHERE platform = p_platform AND status = 'error'
        )
        FROM pools WHERE platform = p_platform AND paused_at IS NULL
    ), 0)
    FROM (
        SELECT (details ->> 'occupiedMs')::bigint AS occupied_ms
        FROM transitions
        WHERE platform = p_platform
            AND machine = 'slot' AND from_status = 'releasing' AND to_status = 'idle'
        ORDER BY id DESC
        LIMIT 100
    ) recent
$$;
