-- What operators see and ask for: paused pools, the phases of a launch, comparisons and pulls on request.

-- While a pool is paused, none of its bots is launched: they wait. Who paused it, when, and why.
ALTER TABLE pools
    ADD COLUMN paused_at    timestamptz,
    ADD COLUMN paused_by    text,
    ADD COLUMN pause_reason text,
    ADD CONSTRAINT pool_pause CHECK (
        paused_at IS NOT NULL OR (paused_by IS NULL AND pause_reason IS NULL)
    );

-- How far a bot's last launch has come, and when. created_at, or relaunched_at, is its beginning;
-- started_at and joined_at, which were there before, are when its container ran and when it was in its call.
ALTER TABLE bots
    ADD COLUMN relaunched_at   timestamptz, -- its last launch is another one than its first
    ADD COLUMN assigned_at     timestamptz, -- it had its slot
    ADD COLUMN image_at        timestamptz, -- its image was on the host
    ADD COLUMN container_at    timestamptz, -- a container was made for it; NULL if one was there
    ADD COLUMN claimed_at      timestamptz, -- it was heard
    ADD COLUMN waiting_room_at timestamptz; -- it was in the waiting room or, without one, in its call

-- Pools and hosts have something to tell, too. What happens on a host is of no platform.
ALTER TABLE transitions
    ALTER COLUMN platform DROP NOT NULL,
    DROP CONSTRAINT transitions_machine_check,
    ADD CONSTRAINT transitions_machine_check CHECK (machine IN ('slot', 'bot', 'pool', 'host')),
    ADD CONSTRAINT transition_platform CHECK (machine = 'host' OR platform IS NOT NULL);

-- The last launches that came to their end: what is usual.
CREATE INDEX transitions_in_call ON transitions (platform, id)
    WHERE machine = 'bot' AND to_status = 'IN_CALL' AND from_status <> 'IN_CALL';
-- The waits that were told to callers; and the slots that are gone.
CREATE INDEX transitions_told ON transitions (at)
    WHERE machine = 'bot' AND from_status IS NULL AND to_status = 'QUEUED';
CREATE INDEX transitions_deleted ON transitions (at) WHERE machine = 'slot' AND to_status IS NULL;
-- The bots that failed lately.
CREATE INDEX transitions_failed ON transitions (at) WHERE machine = 'bot' AND to_status = 'FATAL';

-- Somebody wants to know what the engine says of a slot; and what it said last.
ALTER TABLE bot_pool_slots
    ADD COLUMN compare_asked_at timestamptz,
    ADD COLUMN compared_at      timestamptz,
    ADD COLUMN compared_state   text,
    ADD COLUMN compared_said    text,
    ADD CONSTRAINT slot_compared CHECK (
        (compared_at IS NULL) = (compared_state IS NULL)
        AND (compared_at IS NULL) = (compared_said IS NULL)
    );
CREATE INDEX bot_pool_slots_compare ON bot_pool_slots (compare_asked_at)
    WHERE compare_asked_at IS NOT NULL;

-- Somebody asked for an image on a host. asked: and no replica has begun to bring it.
ALTER TABLE image_pulls
    ADD COLUMN asked_at timestamptz,
    ADD COLUMN asked_by text,
    DROP CONSTRAINT image_pulls_status_check,
    ADD CONSTRAINT image_pulls_status_check CHECK (
        status IN ('asked', 'pulling', 'present', 'failed')
    ),
    DROP CONSTRAINT pull_finished,
    ADD CONSTRAINT pull_finished CHECK ((status IN ('asked', 'pulling')) = (finished_at IS NULL)),
    ADD CONSTRAINT pull_asked CHECK (
        (asked_at IS NULL) = (asked_by IS NULL) AND (status <> 'asked' OR asked_at IS NOT NULL)
    );
