-- API keys.

-- Whether a key works: it was neither revoked nor replaced, or is to work for a while beside its successor.
CREATE OR REPLACE FUNCTION key_works(p_key api_keys) RETURNS boolean LANGUAGE sql STABLE
    AS $$ SELECT p_key.expires_at IS NULL OR p_key.expires_at > botpool_now() $$;
