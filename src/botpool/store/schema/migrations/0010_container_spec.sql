-- What a slot's container was made with: the image, the settings, the variables, and where it calls us.
-- Only a digest, because some of it is secret. Unknown for containers that were made before, and for
-- those that another pool made. It takes the place of the URL alone.
ALTER TABLE bot_pool_slots
    ADD COLUMN spec_digest bytea,
    DROP COLUMN runtime_url;
