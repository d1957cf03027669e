-- Engines whose starts bring the image: the pull is held by a slot's deployment, not by a replica.
ALTER TABLE image_pulls
    ADD COLUMN slot_id bigint,
    ADD COLUMN lease   bigint,
    ADD CONSTRAINT pull_of_start CHECK ((slot_id IS NULL) = (lease IS NULL));
