-- What operators see of doctor and of containers.

-- What doctor found last: one row. Somebody asks for it, a replica makes it within its reservation, and it is
-- kept until the next one.
CREATE TABLE diagnosis (
    only_row       boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    asked_at       timestamptz,
    asked_by       text,
    begun_at       timestamptz,
    reserved_by    text,
    reserved_until timestamptz,
    made_at        timestamptz,
    made_by        text,
    findings       jsonb NOT NULL DEFAULT '[]',
    CONSTRAINT diagnosis_asked CHECK ((asked_at IS NULL) = (asked_by IS NULL)),
    CONSTRAINT diagnosis_reserved CHECK (num_nulls(begun_at, reserved_by, reserved_until) IN (0, 3)),
    CONSTRAINT diagnosis_made CHECK ((made_at IS NULL) = (made_by IS NULL))
);
INSERT INTO diagnosis DEFAULT VALUES;

-- What doctor tells is of no platform, as what happens on a host is.
ALTER TABLE transitions
    DROP CONSTRAINT transitions_machine_check,
    ADD CONSTRAINT transitions_machine_check CHECK (
        machine IN ('slot', 'bot', 'pool', 'host', 'doctor')
    ),
    DROP CONSTRAINT transition_platform,
    ADD CONSTRAINT transition_platform CHECK (machine IN ('host', 'doctor') OR platform IS NOT NULL);

-- How a container did while it served a bot, as far as its engine tells.
ALTER TABLE container_logs
    ADD COLUMN exit_code integer,
    ADD COLUMN restarts  integer;
