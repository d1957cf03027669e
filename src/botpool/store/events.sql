-- name: of_bot
-- What happened to a bot ($1) and to the slots that it was on, and what it reported, in order, after the
-- place $2: at most $3 events, and none after they have made $4 bytes full. found: how many there were,
-- up to one beyond $3.
WITH place AS MATERIALIZED (
    (SELECT id FROM transitions WHERE bot_id = $1 AND id > $2 ORDER BY id LIMIT $3::bigint + 1)
    UNION ALL
    (SELECT id FROM bot_events WHERE bot_id = $1 AND id > $2 ORDER BY id LIMIT $3 + 1)
    ORDER BY id LIMIT $3 + 1
),
told AS MATERIALIZED (
    SELECT
        place.id, count(*) OVER () AS found, row_number() OVER (ORDER BY place.id) AS n,
        coalesce(
            (SELECT transition_event(t, b) FROM transitions t WHERE t.id = place.id),
            (SELECT reported_event(e, b) FROM bot_events e WHERE e.id = place.id)
        ) AS event
    FROM place, bots b
    WHERE b.id = $1
)
SELECT id, found, event
FROM (
    SELECT *, sum(octet_length(event::text)) OVER (ORDER BY id ROWS UNBOUNDED PRECEDING)
        - octet_length(event::text) AS bytes_before
    FROM told
) measured
WHERE n <= $3 AND bytes_before < $4::bigint
ORDER BY id;

-- name: of_slot
-- What happened to a slot ($1) before the place $2, the newest first: at most $3 events, and none after
-- they have made $4 bytes full. found: how many there were, up to one beyond $3.
WITH told AS MATERIALIZED (
    SELECT
        id, count(*) OVER () AS found, row_number() OVER (ORDER BY id DESC) AS n,
        transition_event(step, NULL) AS event
    FROM (
        SELECT id, t AS step FROM transitions t
        WHERE slot_id = $1 AND machine = 'slot' AND id < $2
        ORDER BY id DESC
        LIMIT $3::bigint + 1
    ) newest
)
SELECT id, found, event
FROM (
    SELECT *, sum(octet_length(event::text)) OVER (ORDER BY id DESC ROWS UNBOUNDED PRECEDING)
        - octet_length(event::text) AS bytes_before
    FROM told
) measured
WHERE n <= $3 AND bytes_before < $4::bigint
ORDER BY id DESC;

-- name: read
-- What was written after row $2 of transaction $1, in order and at most $3 rows, and whose bot each
-- tells of. Only transactions below the oldest that still runs count: nothing can come before them
-- any more. held_back: others are committed, and wait for that. Without a row, all else is NULL.
SELECT held_back, settled.*
FROM (
    SELECT EXISTS (
        SELECT FROM transitions WHERE xid >= (SELECT pg_snapshot_xmin(pg_current_snapshot()))
    ) OR EXISTS (
        SELECT FROM bot_events WHERE xid >= (SELECT pg_snapshot_xmin(pg_current_snapshot()))
    )
) waiting (held_back)
LEFT JOIN LATERAL (
    SELECT
        page.xid, page.id, page.at, (owner.bot).project_id,
        CASE
            WHEN reported IS NULL THEN transition_event(step, owner.bot)
            ELSE reported_event(reported, owner.bot)
        END AS event
    FROM (
        (
            SELECT xid, id, at, bot_id, t AS step, NULL::bot_events AS reported FROM transitions t
            WHERE (xid, id) > ($1, $2) AND xid < (SELECT pg_snapshot_xmin(pg_current_snapshot()))
            ORDER BY xid, id
            LIMIT $3
        )
        UNION ALL
        (
            SELECT xid, id, at, bot_id, NULL, e FROM bot_events e
            WHERE (xid, id) > ($1, $2) AND xid < (SELECT pg_snapshot_xmin(pg_current_snapshot()))
            ORDER BY xid, id
            LIMIT $3
        )
        ORDER BY xid, id
        LIMIT $3
    ) page
    -- One look for each: the planner would else read all bots.
    LEFT JOIN LATERAL (SELECT b AS bot FROM bots b WHERE b.id = page.bot_id LIMIT 1) owner ON true
) settled ON true
ORDER BY settled.xid, settled.id;

-- name: bounds
-- Where the record begins, if it has a row; below which transaction it is settled; from which one on
-- there is nothing yet; and the time.
SELECT
    oldest.xid AS oldest_xid, oldest.id AS oldest_id,
    pg_snapshot_xmin(pg_current_snapshot()) AS settled_xid,
    pg_snapshot_xmax(pg_current_snapshot()) AS next_xid,
    botpool_now() AS read_at
FROM (VALUES (1)) one
LEFT JOIN LATERAL (SELECT xid, id FROM transitions ORDER BY xid, id LIMIT 1) oldest ON true;
