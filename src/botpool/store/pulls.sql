-- name: take
-- Reserve the pull of an image to a host for $5 ms, if it isn't there and no other replica pulls it; for
-- the start of slot $6 under lease $7, where that brings it. Returns the row as it is then; no row where
-- another replica took it this moment.
WITH taken AS MATERIALIZED (
    SELECT * FROM take_pull($1, $2, $3, $4, $5, $6, $7)
)
SELECT * FROM taken
UNION ALL
SELECT * FROM image_pulls
WHERE engine = $1 AND host = $2 AND image = $3 AND NOT EXISTS (SELECT FROM taken);

-- name: take_ahead
-- Reserve the pull of an image that no bot has asked for yet to a host ($1, $2), for $4 ms.
SELECT * FROM take_pull_ahead($1, $2, $3, $4, $5);

-- name: start_ahead
-- Where only a start brings an image: let a slot of the host be started without a bot.
SELECT * FROM start_ahead($1, $2, $3, $4);

-- name: of_start
-- The pull that the start of a slot ($1) under a lease ($2) is to bring.
SELECT * FROM image_pulls WHERE slot_id = $1 AND lease = $2 AND status = 'pulling';

-- name: urgent
-- Whether bots on the host of a pull wait for another image, and none for this one.
SELECT FROM bot_pool_slots
WHERE engine = $1 AND host = $2 AND status = 'deploying' AND waits_for = 'image'
HAVING count(*) > 0 AND count(*) FILTER (WHERE image = $3) = 0;

-- name: give_up
-- Let go of a pull, as if it had never been.
DELETE FROM image_pulls WHERE engine = $1 AND host = $2 AND image = $3 AND reserved_by = $4;

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
