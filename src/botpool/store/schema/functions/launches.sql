-- Launches: how long the phases of a bot's last launch took, in milliseconds.

-- Never less than 0, whatever the clock did; NULL without an end.
CREATE OR REPLACE FUNCTION ms_between(p_from timestamptz, p_to timestamptz) RETURNS double precision
    LANGUAGE sql IMMUTABLE
    AS $$ SELECT extract(epoch FROM p_to - least(p_from, p_to))::double precision * 1000 $$;

-- A phase begins where the one before it that took place has ended; one that did not take place, or has not
-- ended, is NULL. The last three are the bot's own; total is from the beginning into the call.
-- botpool.models.launches.phases_of says the same of their times.
CREATE OR REPLACE FUNCTION launch_phases(p_bot bots) RETURNS TABLE (
    queued double precision, pulled double precision, created double precision, started double precision,
    claimed double precision, joined double precision, in_call double precision, total double precision
) LANGUAGE sql IMMUTABLE AS $$
    SELECT
        ms_between(began_at, p_bot.assigned_at),
        ms_between(coalesce(p_bot.assigned_at, began_at), p_bot.image_at),
        ms_between(coalesce(p_bot.image_at, p_bot.assigned_at, began_at), p_bot.container_at),
        ms_between(
            coalesce(p_bot.container_at, p_bot.image_at, p_bot.assigned_at, began_at), p_bot.started_at
        ),
        ms_between(coalesce(p_bot.started_at, p_bot.assigned_at, began_at), p_bot.claimed_at),
        ms_between(coalesce(p_bot.claimed_at, p_bot.started_at, began_at), p_bot.waiting_room_at),
        ms_between(coalesce(p_bot.waiting_room_at, p_bot.claimed_at, began_at), p_bot.joined_at),
        ms_between(began_at, p_bot.joined_at)
    FROM (SELECT coalesce(p_bot.relaunched_at, p_bot.created_at) AS began_at) launch
$$;
