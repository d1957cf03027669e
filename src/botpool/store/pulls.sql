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

-- name: of_slot
-- The pull of an image to a host.
SELECT * FROM image_pulls WHERE engine = $1 AND host = $2 AND image = $3;

-- name: urgent
-- Whether bots on the host of a pull wait for another image, and none for this one.
SELECT FROM bot_pool_slots
WHERE engine = $1 AND host = $2 AND status = 'deploying' AND waits_for = 'image'
HAVING count(*) > 0 AND count(*) FILTER (WHERE image = $3) = 0;

-- name: give_up
-- Let go of a pull, as if it had never been; one that somebody asked for is asked for again.
WITH back AS (
    UPDATE image_pulls SET status = 'asked', reserved_by = NULL, reserved_until = NULL
    WHERE engine = $1 AND host = $2 AND image = $3 AND reserved_by = $4 AND asked_at IS NOT NULL
)
DELETE FROM image_pulls
WHERE engine = $1 AND host = $2 AND image = $3 AND reserved_by = $4 AND asked_at IS NULL;

-- name: ask
-- Somebody ($4) wants these images ($3) on a host. One that failed is tried again at once; whether one is
-- still there is looked up.
INSERT INTO image_pulls (engine, host, image, status, attempts, started_at, asked_at, asked_by)
SELECT $1, $2, image, 'asked', 0, botpool_now(), botpool_now(), $4 FROM unnest($3::text[]) image
ON CONFLICT (engine, host, image) DO UPDATE
SET asked_at = excluded.asked_at, asked_by = excluded.asked_by,
    status = CASE image_pulls.status WHEN 'failed' THEN 'asked' ELSE image_pulls.status END,
    finished_at = CASE image_pulls.status WHEN 'failed' THEN NULL ELSE image_pulls.finished_at END,
    retry_at = NULL;

-- name: asked
-- The images that somebody wants on these hosts ($1), and that no replica is bringing there.
SELECT * FROM image_pulls
WHERE asked_at IS NOT NULL AND engine || '/' || host = ANY ($1::text[])
    AND (status <> 'pulling' OR reserved_until <= botpool_now())
ORDER BY asked_at, engine, host, image;

-- name: lost
-- An image that somebody asked for is not on the host any more, whatever was known.
UPDATE image_pulls SET status = 'asked', finished_at = NULL
WHERE engine = $1 AND host = $2 AND image = $3 AND status = 'present' AND asked_at IS NOT NULL;

-- name: refuse
-- An image that somebody asked for can't be brought to the host, and $4 says why.
UPDATE image_pulls
SET status = 'failed', error = $4, retry_at = botpool_now(), finished_at = botpool_now()
WHERE engine = $1 AND host = $2 AND image = $3 AND status = 'asked';

-- name: answer
-- Tell that an image that somebody asked for is on the host, or why it is not.
WITH asked AS MATERIALIZED (
    SELECT * FROM image_pulls
    WHERE engine = $1 AND host = $2 AND image = $3
        AND asked_at IS NOT NULL AND status IN ('present', 'failed')
    FOR UPDATE
),
answered AS (
    UPDATE image_pulls p SET asked_at = NULL, asked_by = NULL
    FROM asked WHERE (p.engine, p.host, p.image) = (asked.engine, asked.host, asked.image)
)
INSERT INTO transitions (at, machine, from_status, to_status, reason, details)
SELECT
    botpool_now(), 'host', health, health,
    CASE asked.status
        WHEN 'present' THEN image || ' is on ' || host
        ELSE image || ' could not be brought to ' || host || ': ' || error
    END,
    jsonb_build_object(
        'engine', engine, 'host', host, 'image', image, 'outcome', asked.status, 'error', error,
        'by', asked_by, 'askedAt', asked_at
    )
FROM asked, LATERAL (
    SELECT CASE
        WHEN EXISTS (
            SELECT FROM hosts h
            WHERE h.engine = asked.engine AND h.host = asked.host AND unhealthy_since IS NOT NULL
        ) THEN 'unhealthy' ELSE 'healthy'
    END
) host_is (health)
RETURNING *;

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
