-- name: reserve
-- Reserve at most $3 deliveries that are due, for $2 ms: no other replica posts them so long. Of a host with
-- deliveries under way ($4 names it once for each) only as many as make $5; one that has so many is
-- passed over, and so delays no other. secrets: what to sign it with, the newest first; none: with the
-- installation's.
WITH under_way AS MATERIALIZED (
    SELECT host, count(*) AS deliveries FROM unnest($4::text[]) AS u (host) GROUP BY host
),
waiting AS (
    SELECT d.id, next_attempt_at, callback_host(coalesce(e.url, d.url)) AS host
    FROM webhook_deliveries d LEFT JOIN webhook_endpoints e ON e.id = d.endpoint_id
    WHERE next_attempt_at <= (SELECT botpool_now())
        AND (reserved_until IS NULL OR reserved_until <= (SELECT botpool_now()))
        AND NOT callback_host(coalesce(e.url, d.url)) = ANY (ARRAY(
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
),
reserved AS (
    UPDATE webhook_deliveries d
    SET reserved_by = $1, reserved_until = botpool_now() + $2 * interval '1 millisecond'
    FROM due WHERE d.id = due.id
    RETURNING d.*
)
SELECT
    d.id, d.bot_id, b.correlation_id, d.endpoint_id, place.url, d.payload, d.tries, callback_host(place.url) AS host,
    message_id(d.id) AS message_id, botpool_now() AS read_at,
    ARRAY(
        SELECT secret FROM webhook_secrets s
        WHERE (
            s.endpoint_id = d.endpoint_id OR (d.endpoint_id IS NULL AND s.project_id = d.project_id)
        ) AND (expires_at IS NULL OR expires_at > botpool_now())
        ORDER BY s.id DESC
    ) AS secrets
FROM reserved d
JOIN bots b ON b.id = d.bot_id
LEFT JOIN webhook_endpoints e ON e.id = d.endpoint_id
CROSS JOIN LATERAL (SELECT coalesce(e.url, d.url) AS url) place
ORDER BY d.id;

-- name: give_back
-- Let go of a delivery that was not posted to its end. It is due as it was.
UPDATE webhook_deliveries SET reserved_by = NULL, reserved_until = NULL
WHERE id = $1 AND reserved_by = $2;

-- name: record_attempt
-- Record an attempt, and let go of the delivery: delivered, to be tried again, or given up.
SELECT record_attempt($1::jsonb, $2, $3, $4, $5) AS outcome;

-- name: page
-- One page of deliveries ($1), newest first: before an id, of a project, endpoint, bot, type or status, or
-- written since a time, where these are given; with the last attempt of each.
SELECT
    d.*, message_id(d.id) AS message_id, coalesce(e.url, d.url) AS posted_to,
    a.status AS last_status, a.error AS last_error
FROM list_deliveries($1::jsonb) d
LEFT JOIN webhook_endpoints e ON e.id = d.endpoint_id
LEFT JOIN webhook_attempts a ON a.delivery_id = d.id AND a.number = d.attempts
ORDER BY d.id DESC;

-- name: get
-- One delivery.
SELECT
    d.*, message_id(d.id) AS message_id, coalesce(e.url, d.url) AS posted_to,
    a.status AS last_status, a.error AS last_error
FROM webhook_deliveries d
LEFT JOIN webhook_endpoints e ON e.id = d.endpoint_id
LEFT JOIN webhook_attempts a ON a.delivery_id = d.id AND a.number = d.attempts
WHERE d.id = $1;

-- name: attempts
-- Every attempt to deliver, in order.
SELECT * FROM webhook_attempts WHERE delivery_id = $1 ORDER BY number;

-- name: resend
-- Send a delivery again, if it is closed and its endpoint isn't paused.
UPDATE webhook_deliveries d
SET next_attempt_at = botpool_now(), tries = 0, resent_at = botpool_now(),
    delivered_at = NULL, given_up_at = NULL
WHERE id = $1 AND next_attempt_at IS NULL
    AND NOT EXISTS (
        SELECT FROM webhook_endpoints e WHERE e.id = d.endpoint_id AND paused_at IS NOT NULL
    );

-- name: resend_many
-- Send the closed ones of the deliveries that $1 lists again, but for those to endpoints that are paused.
UPDATE webhook_deliveries d
SET next_attempt_at = botpool_now(), tries = 0, resent_at = botpool_now(),
    delivered_at = NULL, given_up_at = NULL
FROM list_deliveries($1::jsonb) listed
WHERE d.id = listed.id AND d.next_attempt_at IS NULL
    AND NOT EXISTS (
        SELECT FROM webhook_endpoints e WHERE e.id = d.endpoint_id AND paused_at IS NOT NULL
    );

-- name: endpoints
-- Every endpoint, or those of project $1, the oldest first.
SELECT * FROM webhook_endpoints WHERE $1::bigint IS NULL OR project_id = $1 ORDER BY id;

-- name: endpoint
-- One endpoint.
SELECT * FROM webhook_endpoints WHERE id = $1;

-- name: add_endpoint
-- Add an endpoint ($1) with its secret, unless its project has $3 by now.
WITH added AS (
    INSERT INTO webhook_endpoints (project_id, url, description, event_types, created_at)
    SELECT project_id, url, description, event_types, botpool_now()
    FROM jsonb_populate_record(NULL::webhook_endpoints, $1::jsonb) new
    WHERE $3 > (SELECT count(*) FROM webhook_endpoints e WHERE e.project_id = new.project_id)
    RETURNING *
),
signed AS (
    INSERT INTO webhook_secrets (endpoint_id, secret, created_at)
    SELECT id, $2, created_at FROM added
)
SELECT * FROM added;

-- name: change_endpoint
-- Change what $2 has of an endpoint: its address, its description, the types of its events.
UPDATE webhook_endpoints e
SET url = new.url, description = new.description, event_types = new.event_types
FROM webhook_endpoints old, jsonb_populate_record(old, $2::jsonb) new
WHERE e.id = $1 AND old.id = $1;

-- name: pause_endpoint
-- Send nothing to an endpoint until it is resumed.
SELECT pause_endpoint($1, $2);

-- name: resume_endpoint
-- Send to an endpoint again, what has waited first.
SELECT resume_endpoint($1);

-- name: delete_endpoint
-- Delete an endpoint with its deliveries.
DELETE FROM webhook_endpoints WHERE id = $1;

-- name: rotate_endpoint_secret
-- Give an endpoint a new secret. The one before is valid for a while.
SELECT rotate_secret(NULL, $1, $2, $3, NULL);

-- name: rotate_project_secret
-- Give a project a new secret. The one before, or $4 if it has none, is valid for a while.
SELECT rotate_secret($1, NULL, $2, $3, $4);

-- name: installation_secret
-- What deliveries of projects without a secret of their own are signed with, unless the settings say
-- otherwise.
SELECT webhook_secret FROM installation;
