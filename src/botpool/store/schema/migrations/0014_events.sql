-- One event, one shape: what bots report is told as their transitions are.

-- Both have their ids from one sequence, so that an id is one event, and their order is one order.
ALTER TABLE bot_events ALTER COLUMN id DROP IDENTITY;
SELECT setval('transitions_id_seq', greatest(max(id), (SELECT last_value FROM transitions_id_seq)))
FROM bot_events HAVING max(id) IS NOT NULL;
UPDATE bot_events e SET id = renumbered.id
FROM (
    SELECT id AS old, nextval('transitions_id_seq') AS id
    FROM (SELECT id FROM bot_events ORDER BY id) ordered
) renumbered
WHERE e.id = renumbered.old;
ALTER TABLE bot_events ALTER COLUMN id SET DEFAULT nextval('transitions_id_seq');

-- The transaction that wrote it, as transitions have it. Unknown for those from before: no stream tells them.
ALTER TABLE bot_events ADD COLUMN xid xid8;
ALTER TABLE bot_events ALTER COLUMN xid SET DEFAULT pg_current_xact_id();
CREATE INDEX bot_events_xid ON bot_events (xid, id);

-- Deliveries that wait are told in the new shape as far as their words go.
UPDATE webhook_deliveries
SET payload = jsonb_set(payload, '{data}', (payload -> 'data') - 'occurredAt')
    || jsonb_build_object('id', 'evt_' || transition_id)
WHERE next_attempt_at IS NOT NULL;

-- What callers ask of a bot, and are told of its stay.
ALTER TABLE bots
    ADD COLUMN max_duration_ms bigint CHECK (max_duration_ms > 0),
    -- When it was in its call, and when it left that or was told to.
    ADD COLUMN joined_at timestamptz,
    ADD COLUMN left_at timestamptz,
    -- Why it was told to leave, if that is what it ends with.
    ADD COLUMN leaves_for text CHECK (leaves_for IN ('max_duration')),
    DROP CONSTRAINT bot_failure,
    -- A bot that leaves because its longest stay is over is DONE, and has that cause.
    ADD CONSTRAINT bot_failure CHECK (
        CASE status
            WHEN 'FATAL' THEN failure_cause IS NOT NULL AND failure_reason IS NOT NULL
            WHEN 'DONE' THEN failure_cause IS NOT DISTINCT FROM leaves_for
            ELSE failure_cause IS NULL
        END
    );
DROP FUNCTION IF EXISTS stop_bot(bigint, text, integer);

-- Bots by their metadata, their meeting, and the time of their creation. A URL may be too long for an index.
CREATE INDEX bots_metadata ON bots USING gin (metadata jsonb_path_ops) WHERE metadata <> '{}';
CREATE INDEX bots_meeting ON bots (hashtextextended(meeting_url, 0), id);
DROP INDEX bots_created_at;
CREATE INDEX bots_created ON bots (created_at, id);
