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
