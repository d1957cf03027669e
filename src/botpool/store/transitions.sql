-- name: timeline
-- What happened to a bot and to the slots that it was on, in order.
SELECT * FROM transitions WHERE bot_id = $1 ORDER BY id;

-- name: latest
-- The newest $1 changes of bots that people want to hear of, among the last ones of all, the newest first.
SELECT * FROM (SELECT * FROM transitions ORDER BY id DESC LIMIT $1::integer * 20) newest
WHERE machine = 'bot' AND to_status IN ('QUEUED', 'IN_CALL', 'DONE', 'FATAL', 'CANCELLED')
    AND from_status IS DISTINCT FROM to_status
ORDER BY id DESC LIMIT $1;

-- name: prune
-- Forget transitions older than $1.
DELETE FROM transitions WHERE at < $1;
