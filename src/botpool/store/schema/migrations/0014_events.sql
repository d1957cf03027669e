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
