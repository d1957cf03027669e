-- name: timeline
-- What happened to a bot and to the slots that it was on, in order.
SELECT * FROM transitions WHERE bot_id = $1 ORDER BY id;

-- name: of_slot
-- What happened to a slot, in order: the newest $2.
SELECT * FROM (
    SELECT * FROM transitions WHERE slot_id = $1 AND machine = 'slot' ORDER BY id DESC LIMIT $2
) newest ORDER BY id;

-- name: read
-- What was written after row $2 of transaction $1, in order and at most $3 rows, and whose bot each
-- tells of. Only transactions below the oldest that still runs count: nothing can come before them
-- any more. held_back: others are committed, and wait for that. Without a row, all else is NULL.
SELECT held_back, settled.*
FROM (
    SELECT EXISTS (
        SELECT FROM transitions WHERE xid >= (SELECT pg_snapshot_xmin(pg_current_snapshot()))
    )
) waiting (held_back)
LEFT JOIN LATERAL (
    SELECT t.*, (SELECT b.key_id FROM bots b WHERE b.id = t.bot_id) AS key_id
    FROM transitions t
    WHERE (t.xid, t.id) > ($1, $2) AND t.xid < (SELECT pg_snapshot_xmin(pg_current_snapshot()))
    ORDER BY t.xid, t.id
    LIMIT $3
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

-- name: prune
-- Forget transitions older than $1.
DELETE FROM transitions WHERE at < $1;
