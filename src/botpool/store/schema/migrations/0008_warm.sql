-- The first bot is fast, too, and no container costs bots their launches again and again.

ALTER TABLE bot_pool_slots
    -- When it was last busy: a launch went well.
    ADD COLUMN launched_at     timestamptz,
    -- How many launches in a row have failed on its present container, and when the first of them began.
    ADD COLUMN failed_launches integer NOT NULL DEFAULT 0 CHECK (failed_launches >= 0),
    ADD COLUMN failing_since   timestamptz,
    -- How often its container was made anew for that, since a bot was last heard in one of them.
    ADD COLUMN remakes         integer NOT NULL DEFAULT 0 CHECK (remakes >= 0),
    ADD CONSTRAINT slot_failing CHECK ((failed_launches > 0) = (failing_since IS NOT NULL));

-- What a running container has written so far is read when somebody wants it; final: it has ended.
ALTER TABLE container_logs
    ADD COLUMN final     boolean NOT NULL DEFAULT true,
    ADD COLUMN wanted_at timestamptz;
CREATE INDEX container_logs_wanted ON container_logs (wanted_at) WHERE wanted_at IS NOT NULL;

-- Slots are kept warm, too.
DROP FUNCTION IF EXISTS set_pool(text, integer, text, text);

-- What a pull failed with is told until it has succeeded, not only until it is tried again.
ALTER TABLE image_pulls
    DROP CONSTRAINT pull_failed,
    ADD CONSTRAINT pull_failed CHECK (
        (status <> 'failed' OR error IS NOT NULL) AND (status <> 'present' OR error IS NULL)
        AND (status = 'failed') = (retry_at IS NOT NULL)
    );
