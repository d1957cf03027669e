-- Browsers that are signed in, and the codes that sign them in. Both are random and kept as hashes: what is
-- in these tables opens nothing.

CREATE TABLE sessions (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- Opens what this key does, until that is revoked.
    key_id     bigint NOT NULL REFERENCES api_keys (id) ON DELETE CASCADE,
    digest     bytea NOT NULL UNIQUE,
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL
);
CREATE INDEX sessions_key ON sessions (key_id, id);
CREATE INDEX sessions_expiry ON sessions (expires_at);

-- Each is for one use: it is deleted with it.
CREATE TABLE sign_in_codes (
    digest     bytea PRIMARY KEY,
    key_id     bigint NOT NULL REFERENCES api_keys (id) ON DELETE CASCADE,
    expires_at timestamptz NOT NULL
);
CREATE INDEX sign_in_codes_expiry ON sign_in_codes (expires_at);
