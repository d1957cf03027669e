-- Listening: the times in which bots could be heard. What is in none of them is no silence of a bot.

-- For how long bots could be heard since p_since: as long as at least one replica listened.
CREATE OR REPLACE FUNCTION heard_for(p_since timestamptz) RETURNS interval LANGUAGE sql AS $$
    SELECT coalesce(sum(upper(span) - lower(span)), interval '0')
    FROM unnest((
        SELECT range_agg(tstzrange(greatest(began_at, p_since), least(ended_at, now)))
        FROM listening, botpool_now() AS now
        WHERE ended_at > p_since AND began_at < now AND p_since < now
    )) span
$$;
