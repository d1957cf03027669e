-- name: timeline
-- What happened to a bot and to the slots that it was on, in order.
SELECT * FROM transitions WHERE bot_id = $1 ORDER BY id;

-- name: prune
-- Forget transitions older than $1.
DELETE FROM transitions WHERE at < $1;
