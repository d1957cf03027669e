-- What the API needs: keys, whose bot is whose, what bots say, and what callers are told.

CREATE TABLE api_keys (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name         text NOT NULL,
    role         text NOT NULL CHECK (role IN ('admin', 'client')),
    -- Keys are random, so a plain hash will do. The key itself is shown once, and kept nowhere.
    digest       bytea NOT NULL UNIQUE,
    -- Its first letters, by which people tell keys apart.
    prefix       text NOT NULL,
    created_at   timestamptz NOT NULL,
    last_used_at timestamptz,
    revoked_at   timestamptz
);

ALTER TABLE bots
    -- Who asked for it: sees it, and may stop it.
    ADD COLUMN key_id            bigint REFERENCES api_keys (id),
    ADD COLUMN callback_url      text,
    ADD COLUMN deduplication_key text,
    -- The request that it came from, so that the same one twice is one bot.
    ADD COLUMN idempotency_key   text,
    ADD COLUMN request_digest    bytea,
    ADD CONSTRAINT bot_request CHECK ((idempotency_key IS NULL) = (request_digest IS NULL));

-- One bot a request, and one live bot a deduplication key, of each caller.
CREATE UNIQUE INDEX bots_idempotency ON bots (coalesce(key_id, 0), idempotency_key)
    WHERE idempotency_key IS NOT NULL;
CREATE UNIQUE INDEX bots_deduplication ON bots (coalesce(key_id, 0), deduplication_key)
    WHERE deduplication_key IS NOT NULL AND ended_at IS NULL;
-- The bots of a caller, newest first; and those of a correlation.
CREATE INDEX bots_key ON bots (key_id, id);
CREATE INDEX bots_correlation ON bots (correlation_id);

-- Gets no further bot, and is deleted when it has none.
ALTER TABLE bot_pool_slots ADD COLUMN draining boolean NOT NULL DEFAULT false;

-- What bots say beside their status. Bounded: the oldest of a bot make way.
CREATE TABLE bot_events (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    bot_id bigint NOT NULL REFERENCES bots (id) ON DELETE CASCADE,
    at     timestamptz NOT NULL,
    type   text NOT NULL,
    data   jsonb NOT NULL
);
CREATE INDEX bot_events_bot ON bot_events (bot_id, id);

CREATE TABLE bot_logs (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    bot_id bigint NOT NULL REFERENCES bots (id) ON DELETE CASCADE,
    at     timestamptz NOT NULL,
    level  text NOT NULL,
    line   text NOT NULL
);
CREATE INDEX bot_logs_bot ON bot_logs (bot_id, id);

-- Readers of the record go by the transaction, then by the row. Numbers alone would not do: a row may
-- become visible after one with a higher number. Every transaction below the oldest that still runs
-- is complete.
ALTER TABLE transitions ADD COLUMN xid xid8 NOT NULL DEFAULT pg_current_xact_id();
CREATE INDEX transitions_xid ON transitions (xid, id);

-- What is to be told to a bot's callback address: written by a trigger with the change that it tells
-- of, and sent later, in order for each bot.
CREATE TABLE webhook_deliveries (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    bot_id          bigint NOT NULL REFERENCES bots (id) ON DELETE CASCADE,
    transition_id   bigint NOT NULL,
    callback_url    text NOT NULL,
    payload         jsonb NOT NULL,
    created_at      timestamptz NOT NULL,
    next_attempt_at timestamptz, -- NULL: delivered, or given up
    attempts        integer NOT NULL DEFAULT 0,
    delivered_at    timestamptz,
    given_up_at     timestamptz,
    claimed_by      text,
    claimed_until   timestamptz,
    CONSTRAINT delivery_open CHECK (
        (next_attempt_at IS NULL) = (delivered_at IS NOT NULL OR given_up_at IS NOT NULL)
    ),
    CONSTRAINT delivery_claim CHECK ((claimed_by IS NULL) = (claimed_until IS NULL))
);
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (next_attempt_at)
    WHERE next_attempt_at IS NOT NULL;
CREATE INDEX webhook_deliveries_bot ON webhook_deliveries (bot_id, id);

CREATE TABLE webhook_attempts (
    delivery_id bigint NOT NULL REFERENCES webhook_deliveries (id) ON DELETE CASCADE,
    number      integer NOT NULL,
    at          timestamptz NOT NULL,
    status      integer,
    error       text,
    took_ms     integer NOT NULL,
    PRIMARY KEY (delivery_id, number)
);

-- What webhooks are signed with, unless the settings say otherwise.
ALTER TABLE installation ADD COLUMN webhook_secret text NOT NULL
    DEFAULT 'whsec_' || encode(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()), 'base64');
