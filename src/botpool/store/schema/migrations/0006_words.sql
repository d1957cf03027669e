-- One word for one thing: a replica's hold on a slot, a pull or a delivery is a reservation, a host is
-- healthy or unhealthy, and what a slot waits for is a value of its own, not a sentence.

ALTER TABLE bot_pool_slots RENAME COLUMN claimed_by TO reserved_by;
ALTER TABLE bot_pool_slots RENAME COLUMN claimed_until TO reserved_until;
ALTER TABLE bot_pool_slots RENAME CONSTRAINT slot_claim TO slot_reservation;
ALTER TABLE image_pulls RENAME COLUMN claimed_by TO reserved_by;
ALTER TABLE image_pulls RENAME COLUMN claimed_until TO reserved_until;
ALTER TABLE image_pulls RENAME CONSTRAINT pull_claim TO pull_reservation;
ALTER TABLE webhook_deliveries RENAME COLUMN claimed_by TO reserved_by;
ALTER TABLE webhook_deliveries RENAME COLUMN claimed_until TO reserved_until;
ALTER TABLE webhook_deliveries RENAME CONSTRAINT delivery_claim TO delivery_reservation;
ALTER TABLE hosts RENAME COLUMN ill_since TO unhealthy_since;

-- What a slot that deploys waits for: a host, its image, its turn on the host, or the end of the pause
-- after a launch that failed. deployment_status is what the engine says, and nothing else.
ALTER TABLE bot_pool_slots
    ADD COLUMN waits_for text CHECK (waits_for IN ('host', 'image', 'turn', 'pause'));
UPDATE bot_pool_slots
SET deployment_status = NULL,
    waits_for = CASE deployment_status
        WHEN 'waits for a host' THEN 'host'
        WHEN 'waits for the image' THEN 'image'
        WHEN 'waits for room on the host' THEN 'turn'
        ELSE 'pause'
    END
WHERE deployment_status LIKE 'waits %';
ALTER TABLE bot_pool_slots
    ADD CONSTRAINT slot_waits CHECK (waits_for IS NULL OR status = 'deploying');

UPDATE duties SET name = 'compare ' || substr(name, 6) WHERE name LIKE 'sync %';

-- What has another name or other arguments now. The present functions stand in functions/.
DROP FUNCTION IF EXISTS free_slot(text, boolean);
DROP FUNCTION IF EXISTS free_slot(text, boolean, text);
DROP FUNCTION IF EXISTS occupy_slot(bot_pool_slots, bots, text, timestamptz);
DROP FUNCTION IF EXISTS first_free_number(text, integer);
DROP FUNCTION IF EXISTS free_slots(bigint[], bigint[], text, text);
DROP FUNCTION IF EXISTS enqueue(bots, text, timestamptz, timestamptz, text);
DROP FUNCTION IF EXISTS somebody_waits(text, timestamptz);
DROP FUNCTION IF EXISTS estimated_wait_ms(text, bigint);
DROP FUNCTION IF EXISTS create_bots(
    text, text[], text[], integer[], integer[], text[], jsonb[], jsonb[], bigint[], text[], text[],
    text[], bytea[], integer[], boolean[]
);
DROP FUNCTION IF EXISTS relaunch_bot(bigint, bigint, text, text[], integer, timestamptz, text);
DROP FUNCTION IF EXISTS list_bots(bigint, integer, bigint, text, text[], text, text, text);
DROP FUNCTION IF EXISTS note_failure(text, text, text, text, text, integer, integer, integer);
DROP FUNCTION IF EXISTS next_probe(timestamptz);
DROP FUNCTION IF EXISTS release_held(text, text, integer);
DROP FUNCTION IF EXISTS admit_deployment(bigint, bigint, integer, integer, text, text);
DROP FUNCTION IF EXISTS wake_deployments(text, text, integer, text);
DROP FUNCTION IF EXISTS record_attempt(
    bigint, text, timestamptz, integer, text, integer, boolean, double precision
);
