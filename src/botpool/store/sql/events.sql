-- name: add_events
-- Keep what a bot tells, under its lease; beyond the newest $5 of a bot, the oldest make way. No row:
-- the lease is over.
WITH holder AS MATERIALIZED (
    SELECT assigned_bot_id AS bot_id FROM bot_pool_slots
    WHERE id = $1 AND lease = $2 AND assigned_bot_id IS NOT NULL
),
added AS (
    INSERT INTO bot_events (bot_id, at, type, data)
    SELECT bot_id, botpool_now(), type, data
    FROM holder, unnest($3::text[], $4::jsonb[]) WITH ORDINALITY AS event (type, data, n)
    ORDER BY n
),
dropped AS (
    DELETE FROM bot_events e USING holder
    WHERE e.bot_id = holder.bot_id AND e.id <= (
        SELECT id FROM bot_events o WHERE o.bot_id = holder.bot_id
        ORDER BY id DESC OFFSET greatest($5 - cardinality($3::text[]), 0) LIMIT 1
    )
)
SELECT bot_id FROM holder;

-- name: add_log_lines
-- Keep what a bot logs, under its lease; beyond the newest $5 of a bot, the oldest make way. No row:
-- the lease is over.
WITH holder AS MATERIALIZED (
    SELECT assigned_bot_id AS bot_id FROM bot_pool_slots
    WHERE id = $1 AND lease = $2 AND assigned_bot_id IS NOT NULL
),
added AS (
    INSERT INTO bot_logs (bot_id, at, level, line)
    SELECT bot_id, botpool_now(), level, line
    FROM holder, unnest($3::text[], $4::text[]) WITH ORDINALITY AS log (level, line, n)
    ORDER BY n
),
dropped AS (
    DELETE FROM bot_logs l USING holder
    WHERE l.bot_id = holder.bot_id AND l.id <= (
        SELECT id FROM bot_logs o WHERE o.bot_id = holder.bot_id
        ORDER BY id DESC OFFSET greatest($5 - cardinality($3::text[]), 0) LIMIT 1
    )
)
SELECT bot_id FROM holder;

-- name: list_events
-- What a bot told, in order.
SELECT at, type, data FROM bot_events WHERE bot_id = $1 ORDER BY id;

-- name: list_log_lines
-- What a bot logged, in order.
SELECT at, level, line FROM bot_logs WHERE bot_id = $1 ORDER BY id;
