-- name: reserve
-- Reserve at most $3 deliveries that are due, for $2 ms: no other replica posts them so long. Of a host with
-- deliveries under way ($4 names it once for each) only as many as make $5; one that has so many is
-- passed over, and so delays no other.
WITH under_way AS MATERIALIZED (
    SELECT host, count(*) AS deliveries FROM unnest($4::text[]) AS u (host) GROUP BY host
),
waiting AS (
    SELECT id, next_attempt_at, callback_host(callback_url) AS host
    FROM webhook_deliveries
    WHERE next_attempt_at <= (SELECT botpool_now())
        AND (reserved_until IS NULL OR reserved_until <= (SELECT botpool_now()))
        AND NOT callback_host(callback_url) = ANY (ARRAY(
            SELECT host FROM under_way WHERE deliveries >= $5::bigint
        ))
    ORDER BY next_attempt_at
    LIMIT 1000
),
chosen AS (
    SELECT id
    FROM (
        SELECT *, row_number() OVER (PARTITION BY host ORDER BY next_attempt_at, id) AS place
        FROM waiting
    ) placed
    LEFT JOIN under_way USING (host)
    WHERE place + coalesce(deliveries, 0) <= $5
    ORDER BY next_attempt_at, id
    LIMIT $3
),
due AS MATERIALIZED (
    SELECT id FROM webhook_deliveries
    WHERE id = ANY (ARRAY(SELECT id FROM chosen))
        AND next_attempt_at <= (SELECT botpool_now())
        AND (reserved_until IS NULL OR reserved_until <= (SELECT botpool_now()))
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE webhook_deliveries d
SET reserved_by = $1, reserved_until = botpool_now() + $2 * interval '1 millisecond'
FROM due WHERE d.id = due.id
RETURNING
    d.id, d.bot_id, d.callback_url, d.payload, d.attempts, callback_host(d.callback_url) AS host,
    'msg_' || (SELECT id FROM installation) || '_' || d.id AS message_id, botpool_now() AS read_at;

-- name: give_back
-- Let go of a delivery that was not posted to its end. It is due as it was.
UPDATE webhook_deliveries SET reserved_by = NULL, reserved_until = NULL
WHERE id = $1 AND reserved_by = $2;

-- name: record_attempt
-- Record an attempt, and let go of the delivery: delivered, to be tried again, or given up.
SELECT record_attempt($1::jsonb, $2, $3, $4) AS recorded;

-- name: deliveries
-- What a bot's callback address is or was to be told, in order.
SELECT id, bot_id, payload, created_at, attempts, delivered_at, given_up_at
FROM webhook_deliveries WHERE bot_id = $1 ORDER BY id;

-- name: attempts
-- Every attempt to tell a bot's callback address something, in order.
SELECT a.* FROM webhook_attempts a JOIN webhook_deliveries d ON d.id = a.delivery_id
WHERE d.bot_id = $1 ORDER BY a.delivery_id, a.number;

-- name: secret
-- What webhooks are signed with, unless the settings say otherwise.
SELECT webhook_secret FROM installation;
