-- What the reconciler works from: which slot is due and who has taken it, pulls under way, duties.

-- One row: what this botpool calls itself on engines that it shares with others.
CREATE TABLE installation (
    id text PRIMARY KEY
);
INSERT INTO installation VALUES (left(replace(gen_random_uuid()::text, '-', ''), 12));

ALTER TABLE bot_pool_slots
    -- When the slot needs to be looked at. A trigger sets it with every change of status.
    ADD COLUMN due_at                timestamptz,
    -- Who works on it, and until when others keep off.
    ADD COLUMN claimed_by            text,
    ADD COLUMN claimed_until         timestamptz,
    -- How often somebody let it be due who had something for it. Who works on it compares.
    ADD COLUMN wakes                 integer NOT NULL DEFAULT 0,
    -- How many looks at it have failed in a row.
    ADD COLUMN failed_steps          integer NOT NULL DEFAULT 0,
    -- When this deployment was let onto its host.
    ADD COLUMN deployment_started_at timestamptz,
    -- How many containers it has had.
    ADD COLUMN creations             integer NOT NULL DEFAULT 0,
    -- Opens the runtime calls of the slot's present container.
    ADD COLUMN token_hash            bytea UNIQUE,
    -- Whom it served last. History: the bot may be forgotten.
    ADD COLUMN last_bot_id           bigint,
    ADD CONSTRAINT slot_claim CHECK ((claimed_by IS NULL) = (claimed_until IS NULL));

UPDATE bot_pool_slots SET due_at = botpool_now() WHERE status IN ('deploying', 'releasing', 'error');

ALTER TABLE bot_pool_slots
    ADD CONSTRAINT slot_due CHECK (status IN ('idle', 'busy') OR due_at IS NOT NULL);

-- What is due, and taken by nobody.
CREATE INDEX bot_pool_slots_due ON bot_pool_slots (greatest(due_at, claimed_until))
    WHERE due_at IS NOT NULL;
-- Deployments under way on a host, and those that wait for it.
CREATE INDEX bot_pool_slots_deploying ON bot_pool_slots (engine, host, last_assigned_at)
    WHERE status = 'deploying';
-- The slots of a host.
CREATE INDEX bot_pool_slots_host ON bot_pool_slots (engine, host);

-- One row for each image on each host: being pulled, there, or failed.
CREATE TABLE image_pulls (
    engine        text NOT NULL,
    host          text NOT NULL,
    image         text NOT NULL,
    status        text NOT NULL CHECK (status IN ('pulling', 'present', 'failed')),
    claimed_by    text,
    claimed_until timestamptz,
    attempts      integer NOT NULL DEFAULT 1,
    current_bytes bigint NOT NULL DEFAULT 0,
    total_bytes   bigint NOT NULL DEFAULT 0,
    error         text,
    started_at    timestamptz NOT NULL,
    finished_at   timestamptz,
    -- When a failed one may be tried again.
    retry_at      timestamptz,
    PRIMARY KEY (engine, host, image),
    CONSTRAINT pull_claim CHECK (
        (status = 'pulling') = (claimed_by IS NOT NULL)
        AND (claimed_by IS NULL) = (claimed_until IS NULL)
    ),
    CONSTRAINT pull_finished CHECK ((status = 'pulling') = (finished_at IS NULL)),
    CONSTRAINT pull_failed CHECK (
        (status = 'failed') = (error IS NOT NULL) AND (status = 'failed') = (retry_at IS NOT NULL)
    )
);

-- What is done every so often, by one replica at a time.
CREATE TABLE duties (
    name   text PRIMARY KEY,
    due_at timestamptz NOT NULL
);

-- What a container wrote while it served a bot, kept when its slot was released.
CREATE TABLE container_logs (
    bot_id  bigint NOT NULL REFERENCES bots (id) ON DELETE CASCADE,
    slot_id bigint NOT NULL,
    lease   bigint NOT NULL,
    at      timestamptz NOT NULL,
    lines   text[] NOT NULL,
    PRIMARY KEY (bot_id, slot_id, lease)
);
