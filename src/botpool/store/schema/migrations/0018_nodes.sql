-- The nodes of hosts that are clusters.

-- Where a slot's container was seen, from its start until it is proved stopped.
ALTER TABLE bot_pool_slots ADD COLUMN node text;

-- Where the last launch of a bot failed, as far as that was the node's fault: its next one goes elsewhere.
ALTER TABLE bots ADD COLUMN avoid_node text;
