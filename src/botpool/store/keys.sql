-- name: add
-- Let a key be known, unless it is; either way, return it as it is known. That the update returns
-- it, and not a second look, makes it so for two replicas that add the same key at once.
INSERT INTO api_keys (name, role, digest, prefix, created_at)
VALUES ($1, $2, $3, $4, botpool_now())
ON CONFLICT (digest) DO UPDATE SET digest = excluded.digest
RETURNING *;

-- name: all
-- Every key, revoked ones too, the oldest first.
SELECT * FROM api_keys ORDER BY id;

-- name: find
-- The keys with these digests ($1) or ids ($2), but for those that are revoked.
SELECT *, botpool_now() AS read_at FROM api_keys
WHERE revoked_at IS NULL AND (digest = ANY ($1::bytea[]) OR id = ANY ($2::bigint[]));

-- name: revoke
-- Let a key open nothing any more. One that was revoked before keeps its time.
UPDATE api_keys SET revoked_at = coalesce(revoked_at, botpool_now()) WHERE id = $1
RETURNING *;

-- name: note_uses
-- Note that these keys are in use, once in $2 ms.
UPDATE api_keys SET last_used_at = botpool_now()
WHERE id = ANY ($1::bigint[])
    AND (last_used_at IS NULL OR last_used_at <= botpool_now() - $2 * interval '1 millisecond');
