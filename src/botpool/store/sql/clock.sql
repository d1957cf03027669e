-- name: use_virtual_clock
-- Make the time of this database one that is set. For tests and simulations; there is no way back.
CREATE TABLE virtual_clock (now timestamptz NOT NULL);
INSERT INTO virtual_clock VALUES (clock_timestamp());
CREATE OR REPLACE FUNCTION botpool_now() RETURNS timestamptz
    LANGUAGE sql VOLATILE AS $$ SELECT now FROM virtual_clock $$;

-- name: set_virtual_time
-- Set the time of a database that uses a virtual clock.
UPDATE virtual_clock SET now = $1;

-- name: now
-- The time.
SELECT botpool_now();
