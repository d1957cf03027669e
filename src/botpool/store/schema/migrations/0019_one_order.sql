-- One order for all who wait for room.

-- It takes how many to serve now.
DROP FUNCTION IF EXISTS serve_queue(text, boolean);

-- It takes whether to tell now.
DROP FUNCTION IF EXISTS drain_slot(bigint, text);
