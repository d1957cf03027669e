-- Hosts on which things go wrong, and what is kept away from them.

-- One row for each host that something was tried on.
CREATE TABLE hosts (
    engine    text NOT NULL,
    host      text NOT NULL,
    -- What has failed since something last went well there, each thing once, if it came shortly after
    -- the one before; and the images that it was about, an empty one where it was about none.
    failed    text[] NOT NULL DEFAULT '{}',
    images    text[] NOT NULL DEFAULT '{}',
    failed_at timestamptz,
    reason    text,
    -- While this is set the host is ill: it gets no new work, but for one probe when it is time.
    ill_since timestamptz,
    probe_at  timestamptz,
    PRIMARY KEY (engine, host),
    CONSTRAINT host_probe CHECK ((ill_since IS NULL) = (probe_at IS NULL))
);

-- A slot whose host is ill gets no bot.
ALTER TABLE bot_pool_slots ADD COLUMN held boolean NOT NULL DEFAULT false;
DROP INDEX bot_pool_slots_idle;
CREATE INDEX bot_pool_slots_idle ON bot_pool_slots (platform, last_used_at, id)
    WHERE status = 'idle' AND NOT held;

-- What the last step for a slot failed with, until one goes well.
ALTER TABLE bot_pool_slots ADD COLUMN step_error text;

-- When nobody could be heard, because no API was there. Nobody was silent then.
CREATE TABLE outages (
    began_at timestamptz NOT NULL,
    ended_at timestamptz NOT NULL,
    PRIMARY KEY (ended_at, began_at)
);

-- Where a bot was last tried and failed: somewhere else is better.
ALTER TABLE bots ADD COLUMN avoid_host text;

-- How often this bot is launched at most; by default as often as the settings say.
ALTER TABLE bots ADD COLUMN max_launch_attempts integer CHECK (max_launch_attempts >= 1);

-- Whether it goes back into its call when its container ends there, or is not heard any more.
ALTER TABLE bots ADD COLUMN relaunch_in_call boolean NOT NULL DEFAULT false;
