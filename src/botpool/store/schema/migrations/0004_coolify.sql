-- Engines whose starts bring the image: the pull is held by a slot's deployment, not by a replica.
ALTER TABLE image_pulls
    ADD COLUMN slot_id bigint,
    ADD COLUMN lease   bigint,
    ADD CONSTRAINT pull_of_start CHECK ((slot_id IS NULL) = (lease IS NULL));

-- A slot that was taken over from another pool has not been assigned yet.
ALTER TABLE bot_pool_slots
    DROP CONSTRAINT bot_pool_slots_lease_check,
    ADD CONSTRAINT bot_pool_slots_lease_check CHECK (lease >= 0);

-- What the slot's container was told to call us by; unknown for those that were made before.
ALTER TABLE bot_pool_slots ADD COLUMN runtime_url text;
