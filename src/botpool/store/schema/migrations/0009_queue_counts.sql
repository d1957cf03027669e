-- How many bots wait, known without counting them one by one.

-- Bots of a priority wait in the order of their creation. Their ids have it, whatever the clock does.
DROP INDEX bot_pool_queue_order;
CREATE INDEX bot_pool_queue_order ON bot_pool_queue (platform, priority, bot_id);

-- How many bots of a platform and a priority wait, by blocks of their ids.
CREATE TABLE queue_counts (
    platform text NOT NULL,
    priority integer NOT NULL,
    block    bigint NOT NULL,
    bots     integer NOT NULL,
    PRIMARY KEY (platform, priority, block)
) WITH (fillfactor = 50);

-- How many joined (or, if negative, left) since. A trigger adds a row with every change of the queue, so
-- that those who take bots out of it at the same time don't wait for each other; and whoever holds the
-- platform's lock adds them to the counts.
CREATE TABLE queue_changes (
    id       bigint GENERATED ALWAYS AS IDENTITY,
    platform text NOT NULL,
    priority integer NOT NULL,
    block    bigint NOT NULL,
    bots     integer NOT NULL,
    PRIMARY KEY (platform, id)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

INSERT INTO queue_counts (platform, priority, block, bots)
SELECT platform, priority, bot_id >> 10, count(*) FROM bot_pool_queue GROUP BY 1, 2, 3;
