-- name: name
-- What this botpool calls itself on engines.
SELECT id FROM installation;

-- name: check_writable
-- Write something that nobody reads.
INSERT INTO duties (name, due_at) VALUES ('check writable', botpool_now())
ON CONFLICT (name) DO UPDATE SET due_at = excluded.due_at;

-- name: take_duty
-- Take on what is done every $2 ms, if it is due; or was put off farther than it ever is, by a clock
-- that has since gone back.
INSERT INTO duties (name, due_at)
VALUES ($1, botpool_now() + $2 * interval '1 millisecond')
ON CONFLICT (name) DO UPDATE SET due_at = excluded.due_at
WHERE duties.due_at <= botpool_now() OR duties.due_at > excluded.due_at
RETURNING name;

-- name: announce
-- Wake those that listen on these channels; those that deliver webhooks, if there is one to deliver.
SELECT pg_notify(channel, '') FROM unnest($1::text[]) channel
WHERE channel <> 'botpool_webhooks' OR EXISTS (
    SELECT FROM webhook_deliveries WHERE next_attempt_at <= (SELECT botpool_now())
);

-- name: now
-- The time.
SELECT botpool_now();

-- name: use_virtual_clock
-- Make the time of this database one that is set. For tests and simulations; there is no way back.
CREATE TABLE virtual_clock (now timestamptz NOT NULL);
INSERT INTO virtual_clock VALUES (clock_timestamp());
CREATE OR REPLACE FUNCTION botpool_now() RETURNS timestamptz
    LANGUAGE sql VOLATILE AS $$ SELECT now FROM virtual_clock $$;

-- name: set_virtual_time
-- Set the time of a database that uses a virtual clock.
UPDATE virtual_clock SET now = $1;
