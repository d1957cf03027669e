-- name: note
-- A replica ($1) could hear bots for the last $2 ms. Notes that follow each other closely are one row.
WITH noted AS MATERIALIZED (
    SELECT botpool_now() AS now, botpool_now() - $2 * interval '1 millisecond' AS since
),
extended AS (
    UPDATE listening l SET ended_at = now FROM noted
    WHERE l.replica = $1 AND l.ended_at BETWEEN since - interval '1 second' AND now
    RETURNING l.replica
)
INSERT INTO listening (replica, began_at, ended_at)
SELECT $1, since, now FROM noted WHERE NOT EXISTS (SELECT FROM extended)
ON CONFLICT DO NOTHING;

-- name: take_back
-- A replica ($1) could not hear bots for the last $2 ms that it noted.
UPDATE listening SET ended_at = greatest(began_at, ended_at - $2 * interval '1 millisecond')
WHERE replica = $1 AND ended_at = (SELECT max(ended_at) FROM listening WHERE replica = $1);

-- name: heard_for
-- For how long bots could be heard since $1.
SELECT heard_for($1) AS time;

-- name: prune
-- Forget times of listening that ended before $1.
DELETE FROM listening WHERE ended_at < $1;
