-- name: seen
-- A replica ($1) is there, with this role, version and machine; and it has been since it first said so.
INSERT INTO replicas (name, role, version, host, started_at, last_seen_at)
VALUES ($1, $2, $3, $4, botpool_now(), botpool_now())
ON CONFLICT (name) DO UPDATE SET last_seen_at = excluded.last_seen_at;

-- name: gone
-- A replica has ended.
DELETE FROM replicas WHERE name = $1;

-- name: live
-- The replicas that were seen within $1 ms, the oldest first.
SELECT * FROM replicas WHERE last_seen_at > botpool_now() - $1 * interval '1 millisecond'
ORDER BY started_at, name;

-- name: workers
-- How many workers were seen within $1 ms, and when one last worked: by its own word, or by when the queue,
-- which workers look after, was to be looked after again.
SELECT
    count(*) FILTER (WHERE last_seen_at > botpool_now() - $1 * interval '1 millisecond') AS live,
    greatest(
        max(last_seen_at), (SELECT least(due_at, botpool_now()) FROM duties WHERE name = 'queue')
    ) AS worked_at
FROM replicas WHERE role <> 'api';

-- name: prune
-- Forget replicas that were last seen before $1.
DELETE FROM replicas WHERE last_seen_at < $1;
