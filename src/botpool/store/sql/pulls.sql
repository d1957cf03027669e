-- name: take_pull
-- Take the pull of an image to a host for $5 ms, if it isn't there and nobody else pulls it; for the
-- start of slot $6 under lease $7, where that brings it. Returns the row as it is then; no row where
-- somebody took it this moment.
WITH taken AS (
    INSERT INTO image_pulls (
        engine, host, image, status, claimed_by, claimed_until, started_at, slot_id, lease
    )
    VALUES (
        $1, $2, $3, 'pulling', $4, botpool_now() + $5 * interval '1 millisecond', botpool_now(),
        $6, $7
    )
    ON CONFLICT (engine, host, image) DO UPDATE
    SET status = 'pulling', claimed_by = excluded.claimed_by,
        claimed_until = excluded.claimed_until, started_at = excluded.started_at,
        finished_at = NULL, error = NULL, retry_at = NULL, current_bytes = 0, total_bytes = 0,
        attempts = image_pulls.attempts + 1, slot_id = excluded.slot_id, lease = excluded.lease
    WHERE (image_pulls.status = 'failed' AND image_pulls.retry_at <= botpool_now())
        OR (image_pulls.status = 'pulling' AND image_pulls.claimed_until <= botpool_now())
    RETURNING *
)
SELECT * FROM taken
UNION ALL
SELECT * FROM image_pulls
WHERE engine = $1 AND host = $2 AND image = $3 AND NOT EXISTS (SELECT FROM taken);

-- name: renew_pull
-- Go on pulling for $5 ms, and note how far it is. No row: somebody else has taken it over.
UPDATE image_pulls
SET claimed_until = botpool_now() + $5 * interval '1 millisecond',
    current_bytes = $6, total_bytes = $7
WHERE engine = $1 AND host = $2 AND image = $3 AND claimed_by = $4
RETURNING image;

-- name: settle_pulls
-- End the pulls that starts have brought, or not, on a host. Returns their images.
SELECT unnest(settle_pulls($1, $2)) AS image;

-- name: finish_pull
-- The image is there, or the pull failed ($5) and may be tried again in $6 ms.
UPDATE image_pulls
SET status = CASE WHEN $5::text IS NULL THEN 'present' ELSE 'failed' END, error = $5,
    retry_at = CASE
        WHEN $5 IS NOT NULL THEN botpool_now() + $6::double precision * interval '1 millisecond'
    END,
    claimed_by = NULL, claimed_until = NULL, finished_at = botpool_now()
WHERE engine = $1 AND host = $2 AND image = $3 AND claimed_by = $4;

-- name: wake_pull
-- Let those who wait for an image be due in $5 ms. A statement of its own, after the end of the pull
-- is committed: who recorded that it waits in the meantime is seen by it, or has seen the end.
WITH waiting AS MATERIALIZED (
    SELECT id FROM bot_pool_slots
    WHERE engine = $1 AND host = $2 AND image = $3
        AND status = 'deploying' AND deployment_status = $4
    ORDER BY id
    FOR NO KEY UPDATE
)
UPDATE bot_pool_slots s
SET wakes = wakes + 1, due_at = botpool_now() + $5::double precision * interval '1 millisecond'
FROM waiting WHERE s.id = waiting.id AND status = 'deploying';

-- name: forget_pull
-- The engine says that an image is not on the host, whatever was known.
DELETE FROM image_pulls WHERE engine = $1 AND host = $2 AND image = $3 AND status = 'present';

-- name: list_pulls
-- Every image on every host: being pulled, there, or failed.
SELECT * FROM image_pulls ORDER BY engine, host, image;

-- name: prune_pulls
-- Forget images that no slot has any more, and that were pulled before $1.
DELETE FROM image_pulls p
WHERE finished_at < $1
    AND NOT EXISTS (
        SELECT FROM bot_pool_slots s
        WHERE s.engine = p.engine AND s.host = p.host AND s.image = p.image
    );
