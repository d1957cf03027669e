-- No bot waits for nothing: when bots could be heard, the room on hosts, replicas, and what slots wait
-- for.

-- When a replica could hear bots. Times that are in no row are no silence of a bot. This was kept the
-- other way round before: by the times in which no API was there.
CREATE TABLE listening (
    replica  text NOT NULL,
    began_at timestamptz NOT NULL,
    ended_at timestamptz NOT NULL,
    PRIMARY KEY (ended_at, replica),
    CONSTRAINT listening_goes_on CHECK (ended_at >= began_at)
);
CREATE INDEX listening_replica ON listening (replica, ended_at);
DROP TABLE outages;
DELETE FROM duties WHERE name = 'hear';

-- What the replicas that have a host tell of it: how many slots it may have (NULL: no limit), and
-- whether it answers. A host that was drained gets no new work until it is undrained.
ALTER TABLE hosts
    ADD COLUMN capacity   integer CHECK (capacity >= 1),
    ADD COLUMN open       boolean NOT NULL DEFAULT false,
    ADD COLUMN drained_at timestamptz;
INSERT INTO hosts (engine, host, open)
SELECT DISTINCT engine, host, true FROM bot_pool_slots WHERE host IS NOT NULL
ON CONFLICT (engine, host) DO UPDATE SET open = true;

-- A slot is put on a host when it is made, so none waits for one any more.
UPDATE bot_pool_slots SET waits_for = NULL WHERE waits_for = 'host';
ALTER TABLE bot_pool_slots
    DROP CONSTRAINT bot_pool_slots_waits_for_check,
    ADD CONSTRAINT bot_pool_slots_waits_for_check CHECK (waits_for IN ('image', 'turn', 'pause'));

DROP FUNCTION IF EXISTS place_slot(bigint, bigint, text, text[], integer);

-- How many slots of a platform are kept idle, ready for the next bots.
ALTER TABLE pools ADD COLUMN warm integer NOT NULL DEFAULT 0 CHECK (warm >= 0);

-- Bots that were created together have one time, and keep the order of their creation when they come
-- back into the queue.
DROP INDEX bot_pool_queue_order;
CREATE INDEX bot_pool_queue_order ON bot_pool_queue (platform, priority, queued_at, bot_id);

-- A slot's timeline.
CREATE INDEX transitions_slot ON transitions (slot_id, id) WHERE machine = 'slot';

-- The running botpools on this database.
CREATE TABLE replicas (
    name         text PRIMARY KEY,
    role         text NOT NULL CHECK (role IN ('all', 'api', 'worker')),
    version      text NOT NULL,
    host         text NOT NULL,
    started_at   timestamptz NOT NULL,
    last_seen_at timestamptz NOT NULL
);
