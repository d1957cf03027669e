-- Projects own bots, keys and webhook endpoints. A key can be replaced without anything being lost.

CREATE TABLE projects (
    id                       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name                     text NOT NULL CONSTRAINT project_name UNIQUE,
    -- Limits. NULL: none.
    max_live_bots            integer CHECK (max_live_bots >= 0),
    max_creations_per_minute integer CHECK (max_creations_per_minute >= 0),
    max_duration_ms          bigint CHECK (max_duration_ms >= 1),
    created_at               timestamptz NOT NULL
);

-- The first one, with the id 1, is the default project. It is always there.
INSERT INTO projects (name, created_at) VALUES ('default', botpool_now());

-- Clients' keys belong to a project; an admin and a viewer see all of them.
ALTER TABLE api_keys
    ADD COLUMN project_id bigint REFERENCES projects (id) ON DELETE CASCADE,
    DROP CONSTRAINT api_keys_role_check,
    ADD CONSTRAINT api_keys_role_check CHECK (role IN ('admin', 'viewer', 'client'));

-- When it stops working: it was revoked, or replaced by another key, beside which it works for a while.
ALTER TABLE api_keys RENAME COLUMN revoked_at TO expires_at;

-- What each client's key has so far is a project of its own, named after the key.
DO $$
DECLARE
    v_key record;
    v_project bigint;
BEGIN
    FOR v_key IN SELECT * FROM api_keys WHERE role = 'client' ORDER BY id LOOP
        INSERT INTO projects (name, created_at)
        SELECT
            CASE
                WHEN EXISTS (SELECT FROM projects WHERE name = v_key.name)
                THEN v_key.name || ' (key ' || v_key.id || ')'
                ELSE v_key.name
            END,
            v_key.created_at
        RETURNING id INTO v_project;
        UPDATE api_keys SET project_id = v_project WHERE id = v_key.id;
    END LOOP;
END $$;
ALTER TABLE api_keys
    ADD CONSTRAINT key_project CHECK ((role = 'client') = (project_id IS NOT NULL));
CREATE INDEX api_keys_project ON api_keys (project_id);

-- Who asked for a bot (key_id) is history now; whose it is, is its project.
ALTER TABLE bots
    DROP CONSTRAINT bots_key_id_fkey,
    ADD COLUMN project_id bigint NOT NULL DEFAULT 1;
DROP INDEX bots_idempotency, bots_deduplication, bots_key;

-- A bot that has ended changes no more; here it is only told whose it is.
ALTER TABLE bots DISABLE TRIGGER USER;
UPDATE bots b SET project_id = k.project_id
FROM api_keys k WHERE k.id = b.key_id AND k.project_id IS NOT NULL;
-- Several admins' keys share the default project: of two bots with the same key, the newer keeps it.
UPDATE bots b SET idempotency_key = NULL, request_digest = NULL
WHERE b.project_id = 1 AND b.idempotency_key IS NOT NULL AND EXISTS (
    SELECT FROM bots o
    WHERE o.project_id = 1 AND o.idempotency_key = b.idempotency_key AND o.id > b.id
);
UPDATE bots b SET deduplication_key = NULL
WHERE b.project_id = 1 AND b.deduplication_key IS NOT NULL AND b.ended_at IS NULL AND EXISTS (
    SELECT FROM bots o
    WHERE o.project_id = 1 AND o.deduplication_key = b.deduplication_key AND o.ended_at IS NULL
        AND o.id > b.id
);
ALTER TABLE bots ENABLE TRIGGER USER;
ALTER TABLE bots
    ADD CONSTRAINT bot_project FOREIGN KEY (project_id) REFERENCES projects (id) ON DELETE CASCADE;

-- One bot a request, and one live bot a deduplication key, in each project.
CREATE UNIQUE INDEX bots_idempotency ON bots (project_id, idempotency_key)
    WHERE idempotency_key IS NOT NULL;
CREATE UNIQUE INDEX bots_deduplication ON bots (project_id, deduplication_key)
    WHERE deduplication_key IS NOT NULL AND ended_at IS NULL;
-- The bots of a project, newest first; and those that live, which a limit counts.
CREATE INDEX bots_project ON bots (project_id, id);
CREATE INDEX bots_live ON bots (project_id) WHERE ended_at IS NULL;

-- Webhooks: where a project wants its events posted to, beside the callbacks of single bots.
CREATE TABLE webhook_endpoints (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    project_id    bigint NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    url           text NOT NULL,
    description   text NOT NULL,
    event_types   text[] NOT NULL CHECK (cardinality(event_types) > 0),
    created_at    timestamptz NOT NULL,
    -- Since when nothing was delivered, if the last attempt failed.
    failing_since timestamptz,
    -- Nothing is sent there while it is paused.
    paused_at     timestamptz,
    pause_reason  text,
    CONSTRAINT endpoint_pause CHECK ((paused_at IS NULL) = (pause_reason IS NULL))
);
CREATE INDEX webhook_endpoints_project ON webhook_endpoints (project_id);

-- What deliveries are signed with: of an endpoint, or of a project for the callbacks of its bots. As they
-- are: a signature is made with them. The last one has no end; the one before is valid beside it for a while.
-- A project without one is from before, and its deliveries are signed with the installation's.
CREATE TABLE webhook_secrets (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    project_id  bigint REFERENCES projects (id) ON DELETE CASCADE,
    endpoint_id bigint REFERENCES webhook_endpoints (id) ON DELETE CASCADE,
    secret      text NOT NULL,
    created_at  timestamptz NOT NULL,
    expires_at  timestamptz,
    CONSTRAINT secret_owner CHECK (num_nonnulls(project_id, endpoint_id) = 1)
);
CREATE UNIQUE INDEX webhook_secrets_last
    ON webhook_secrets (coalesce(project_id, 0), coalesce(endpoint_id, 0)) WHERE expires_at IS NULL;
CREATE INDEX webhook_secrets_project ON webhook_secrets (project_id);
CREATE INDEX webhook_secrets_endpoint ON webhook_secrets (endpoint_id);

ALTER TABLE webhook_deliveries
    -- NULL: it goes to the bot's callback.
    ADD COLUMN endpoint_id bigint REFERENCES webhook_endpoints (id) ON DELETE CASCADE,
    ADD COLUMN project_id  bigint,
    ADD COLUMN type        text NOT NULL DEFAULT 'bot.status_changed',
    -- How many attempts were made since it was written or sent again.
    ADD COLUMN tries       integer NOT NULL DEFAULT 0,
    -- It was sent again on request: it waits for no other delivery, and none waits for it.
    ADD COLUMN resent_at   timestamptz;
ALTER TABLE webhook_deliveries RENAME COLUMN callback_url TO url;
UPDATE webhook_deliveries d SET project_id = b.project_id, tries = attempts
FROM bots b WHERE b.id = d.bot_id;
ALTER TABLE webhook_deliveries
    ALTER COLUMN project_id SET NOT NULL,
    ALTER COLUMN type DROP DEFAULT,
    -- What a bot reported is no transition, and where an endpoint is, is known when it is sent.
    ALTER COLUMN transition_id DROP NOT NULL,
    ALTER COLUMN url DROP NOT NULL,
    ADD CONSTRAINT delivery_place CHECK ((endpoint_id IS NULL) = (url IS NOT NULL));
-- What is open of a bot, in order, for each place that it goes to.
CREATE INDEX webhook_deliveries_open ON webhook_deliveries (bot_id, coalesce(endpoint_id, 0), id)
    WHERE next_attempt_at IS NOT NULL AND resent_at IS NULL;
-- Lists.
CREATE INDEX webhook_deliveries_project ON webhook_deliveries (project_id, id);
CREATE INDEX webhook_deliveries_endpoint ON webhook_deliveries (endpoint_id, id)
    WHERE endpoint_id IS NOT NULL;

DROP FUNCTION IF EXISTS record_attempt(jsonb, text, boolean, double precision);
