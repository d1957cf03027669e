-- What scrapes count with: how many slots there are, read from an index alone.

-- The slots of a host; and how many of each platform and status are there, without their rows.
DROP INDEX bot_pool_slots_host;
CREATE INDEX bot_pool_slots_host ON bot_pool_slots (engine, host, platform, status);
