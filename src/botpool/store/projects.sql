-- name: all
-- Every project, or the one with the id $1, the oldest first, with its numbers.
SELECT
    p.*, coalesce(live, 0) AS live, coalesce(waiting, 0) AS waiting,
    coalesce(created_today, 0) AS created_today, coalesce(failed_today, 0) AS failed_today
FROM projects p
LEFT JOIN (
    SELECT project_id AS id, count(*) AS live, count(*) FILTER (WHERE status = 'QUEUED') AS waiting
    FROM bots WHERE ended_at IS NULL AND ($1::bigint IS NULL OR project_id = $1)
    GROUP BY project_id
) now USING (id)
LEFT JOIN (
    SELECT
        project_id AS id, count(*) AS created_today,
        count(*) FILTER (WHERE status = 'FATAL') AS failed_today
    FROM bots
    WHERE created_at >= date_trunc('day', botpool_now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC'
        AND ($1 IS NULL OR project_id = $1)
    GROUP BY project_id
) today USING (id)
WHERE $1 IS NULL OR p.id = $1
ORDER BY p.id;

-- name: id_of
-- The id of the project with a name.
SELECT id FROM projects WHERE name = $1;

-- name: add
-- Add a project with a name, limits ($2), and the secret that signs what its bots' callbacks get.
WITH added AS (
    INSERT INTO projects (name, max_live_bots, max_creations_per_minute, max_duration_ms, created_at)
    SELECT $1, max_live_bots, max_creations_per_minute, max_duration_ms, botpool_now()
    FROM jsonb_populate_record(NULL::projects, $2::jsonb)
    RETURNING *
)
INSERT INTO webhook_secrets (project_id, secret, created_at)
SELECT id, $3, created_at FROM added
RETURNING project_id AS id;

-- name: change
-- Change what $2 has of a project: its name, its limits.
UPDATE projects p
SET name = new.name, max_live_bots = new.max_live_bots,
    max_creations_per_minute = new.max_creations_per_minute, max_duration_ms = new.max_duration_ms
FROM projects old, jsonb_populate_record(old, $2::jsonb) new
WHERE p.id = $1 AND old.id = $1
RETURNING p.id;

-- name: delete
-- Delete a project with all that is its own, unless it has a live bot.
SELECT FROM delete_project($1) AS deleted WHERE deleted;
