-- name: invite
-- Let a code sign one browser in with a key, for $3 ms.
INSERT INTO sign_in_codes (digest, key_id, expires_at)
VALUES ($1, $2, botpool_now() + $3 * interval '1 millisecond')
RETURNING expires_at;

-- name: sign_in
-- Use a code ($1) up, and begin a session ($2) for $3 ms. Of two that use a code at once, one waits for the
-- other, and finds it gone. Only the newest $4 sessions of a key go on.
WITH used AS (
    DELETE FROM sign_in_codes c USING api_keys k
    WHERE c.digest = $1 AND c.expires_at > botpool_now() AND k.id = c.key_id AND key_works(k)
    RETURNING c.key_id
),
ended AS (
    DELETE FROM sessions s USING used
    WHERE s.key_id = used.key_id AND s.id <= (
        SELECT o.id FROM sessions o WHERE o.key_id = used.key_id ORDER BY o.id DESC OFFSET $4 - 1 LIMIT 1
    )
),
begun AS (
    INSERT INTO sessions (key_id, digest, created_at, expires_at)
    SELECT key_id, $2, botpool_now(), botpool_now() + $3 * interval '1 millisecond' FROM used
    RETURNING *
)
SELECT b.id AS session_id, b.created_at AS began_at, b.expires_at AS ends_at, k.*
FROM begun b JOIN api_keys k ON k.id = b.key_id;

-- name: find
-- The sessions with these digests, but for those that have expired and those of keys that work no more.
SELECT s.digest AS session_digest, s.id AS session_id, s.created_at AS began_at, s.expires_at AS ends_at, k.*
FROM sessions s JOIN api_keys k ON k.id = s.key_id
WHERE s.digest = ANY ($1::bytea[]) AND s.expires_at > botpool_now() AND key_works(k);

-- name: is_live
-- Whether a session is not over.
SELECT FROM sessions s JOIN api_keys k ON k.id = s.key_id
WHERE s.id = $1 AND s.expires_at > botpool_now() AND key_works(k);

-- name: live
-- The newest $2 sessions, or those of a key ($1).
SELECT s.id AS session_id, s.created_at AS began_at, s.expires_at AS ends_at, k.*
FROM sessions s JOIN api_keys k ON k.id = s.key_id
WHERE s.expires_at > botpool_now() AND key_works(k) AND ($1::bigint IS NULL OR k.id = $1)
ORDER BY s.id DESC
LIMIT $2;

-- name: end
-- End a session; with a key ($2) only one of that key.
DELETE FROM sessions WHERE id = $1 AND ($2::bigint IS NULL OR key_id = $2);

-- name: prune
-- Forget what has expired.
WITH codes AS (DELETE FROM sign_in_codes WHERE expires_at <= botpool_now())
DELETE FROM sessions WHERE expires_at <= botpool_now();
