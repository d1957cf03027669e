-- name: add
-- Let a key be known, unless it is; either way, return it as it is known. That the update returns
-- it, and not a second look, makes it so for two replicas that add the same key at once.
INSERT INTO api_keys (name, role, project_id, digest, prefix, created_at)
VALUES ($1, $2, $3, $4, $5, botpool_now())
ON CONFLICT (digest) DO UPDATE SET digest = excluded.digest
RETURNING *;

-- name: all
-- Every key, or those of project $1, those that work no more too, the oldest first.
SELECT * FROM api_keys WHERE $1::bigint IS NULL OR project_id = $1 ORDER BY id;

-- name: find
-- The keys with these digests ($1) or ids ($2), but for those that work no more.
SELECT *, botpool_now() AS read_at FROM api_keys
WHERE (digest = ANY ($1::bytea[]) OR id = ANY ($2::bigint[]))
    AND key_works(api_keys);

-- name: revoke
-- Let a key open nothing any more. One that worked no more before keeps its time.
UPDATE api_keys SET expires_at = least(expires_at, botpool_now()) WHERE id = $1
RETURNING *;

-- name: rotate
-- Add a key like the one with the id $1, which works for another $4 ms at most. No row: there is none that
-- works.
WITH old AS (
    UPDATE api_keys
    SET expires_at = least(expires_at, botpool_now() + $4::bigint * interval '1 millisecond')
    WHERE id = $1 AND key_works(api_keys)
    RETURNING *
)
INSERT INTO api_keys (name, role, project_id, digest, prefix, created_at)
SELECT name, role, project_id, $2, $3, botpool_now() FROM old
RETURNING *;

-- name: note_uses
-- Note that these keys are in use, once in $2 ms.
UPDATE api_keys SET last_used_at = botpool_now()
WHERE id = ANY ($1::bigint[])
    AND (last_used_at IS NULL OR last_used_at <= botpool_now() - $2 * interval '1 millisecond');
