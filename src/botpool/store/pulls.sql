-- name: take
-- Reserve the pull of an image to a host for $5 ms, if it isn't there and no other replica pulls it; for
-- the start of slot $6 under lease $7, where that brings it. Returns the row as it is then; no row where
-- another replica took it this moment.
WITH taken AS (
    INSERT INTO image_pulls (
        engine, host, image, status, reserved_by, reserved_until, started_at, slot_id, lease
    )
    VALUES (
        $1, $2, $3, 'pulling', $4, botpool_now() + $5 * interval '1 millisecond', botpool_now(),
        $6, $7
    )
    ON CONFLICT (engine, host, image) DO UPDATE
    SET status = 'pulling', reserved_by = excluded.reserved_by,
        reserved_until = excluded.reserved_until, started_at = excluded.started_at,
        finished_at = NULL, error = NULL, retry_at = NULL, current_bytes = 0, total_bytes = 0,
        attempts = image_pulls.attempts + 1, slot_id = excluded.slot_id, lease = excluded.lease
    WHERE (image_pulls.status = 'failed' AND image_pulls.retry_at <= botpool_now())
        OR (image_pulls.status = 'pulling' AND image_pulls.reserved_until <= botpool_now())
    RETURNING *
)
SELECT * FROM taken
UNION ALL
SELECT * FROM image_pulls
WHERE engine = $1 AND host = $2 AND image = $3 AND NOT EXISTS (SELECT FROM taken);

-- name: renew
-- Go on pulling for $5 ms, and note how far it is. No row: another replica has taken it over.
UPDATE image_pulls
SET reserved_until = botpool_now() + $5 * interval '1 millisecond',
    current_bytes = $6, total_bytes = $7
WHERE engine = $1 AND host = $2 AND image = $3 AND reserved_by = $4
RETURNING image;

-- name: finish
-- The image is there, or the pull failed ($5) and may be tried again in $6 ms.
UPDATE image_pulls
SET status = CASE WHEN $5::text IS NULL THEN 'present' ELSE 'failed' END, error = $5,
    retry_at = CASE
        WHEN $5 IS NOT NULL THEN botpool_now() + $6::double precision * interval '1 millisecond'
    END,
    reserved_by = NULL, reserved_until = NULL, finished_at = botpool_now()
WHERE engine = $1 AND host = $2 AND image = $3 AND reserved_by = $4;

-- name: settle
-- End the pulls that starts have brought, or not, on a host. Returns their images.
SELECT unnest(settle_pulls($1, $2)) AS image;

-- name: wake
-- Let slots that wait for an image be due in $4 ms. A statement of its own, after the end of the pull is
-- committed: a slot that recorded in the meantime that it waits is seen by it, or has seen the end.
WITH waiting AS MATERIALIZED (
    SELECT id FROM bot_pool_slots
    WHERE engine = $1 AND host = $2 AND image = $3
        AND status = 'deploying' AND waits_for = 'image'
    ORDER BY id
    FOR NO KEY UPDATE
)
UPDATE bot_pool_slots s
SET wakes = wakes + 1, due_at = botpool_now() + $4::double precision * interval '1 millisecond'
FROM waiting WHERE s.id = waiting.id AND status = 'deploying';

-- name: forget
-- The engine says that an image is not on the host, whatever was known.
DELETE FROM image_pulls WHERE engine = $1 AND host = $2 AND image = $3 AND status = 'present';

-- name: all
-- Every image on every host: being pulled, there, or failed.
SELECT * FROM image_pulls ORDER BY engine, host, image;

-- name: expired
-- Pulls whose reservation has expired, and which no replica has taken over.
SELECT * FROM image_pulls WHERE status = 'pulling' AND reserved_until < botpool_now()
ORDER BY engine, host, image;

-- name: abandon
-- Let another replica have a pull whose reservation has expired.
UPDATE image_pulls
SET status = 'failed', error = 'the replica that pulled it is gone', retry_at = botpool_now(),
    reserved_by = NULL, reserved_until = NULL, slot_id = NULL, lease = NULL,
    finished_at = botpool_now()
WHERE engine = $1 AND host = $2 AND image = $3 AND status = 'pulling'
    AND reserved_until < botpool_now()
RETURNING image;

-- name: prune
-- Forget images that no slot has any more, and that were pulled before $1.
DELETE FROM image_pulls p
WHERE finished_at < $1
    AND NOT EXISTS (
        SELECT FROM bot_pool_slots s
        WHERE s.engine = p.engine AND s.host = p.host AND s.image = p.image
    );
