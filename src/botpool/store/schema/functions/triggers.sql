-- The triggers that don't depend on the table of steps. Those that do: guards.py.

CREATE OR REPLACE TRIGGER bots_ended BEFORE UPDATE ON bots
    FOR EACH ROW WHEN (OLD.ended_at IS NOT NULL)
    EXECUTE FUNCTION refuse_ended();

CREATE OR REPLACE TRIGGER bots_relaunch BEFORE UPDATE OF status ON bots
    FOR EACH ROW WHEN (
        OLD.status = 'IN_CALL' AND NEW.status IN ('QUEUED', 'DEPLOYING') AND NOT NEW.relaunch_in_call
    )
    EXECUTE FUNCTION refuse_step();

CREATE OR REPLACE TRIGGER bot_pool_slots_lease BEFORE UPDATE ON bot_pool_slots
    FOR EACH ROW WHEN (
        NEW.lease <> OLD.lease + CASE
            WHEN NEW.assigned_bot_id IS DISTINCT FROM OLD.assigned_bot_id
                AND NEW.assigned_bot_id IS NOT NULL THEN 1
            WHEN OLD.status = 'idle' AND NEW.status = 'releasing' THEN 1
            ELSE 0
        END
    )
    EXECUTE FUNCTION refuse_lease();

CREATE OR REPLACE TRIGGER bot_pool_slots_size BEFORE INSERT OR DELETE ON bot_pool_slots
    FOR EACH ROW EXECUTE FUNCTION count_slot();

-- Constraint triggers run at the end of the transaction. They can't be replaced, only made anew.
DROP TRIGGER IF EXISTS bots_place ON bots;
CREATE CONSTRAINT TRIGGER bots_place AFTER INSERT OR UPDATE OF status ON bots
    DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION check_place_of_bot();

DROP TRIGGER IF EXISTS bot_pool_slots_place ON bot_pool_slots;
CREATE CONSTRAINT TRIGGER bot_pool_slots_place
    AFTER INSERT OR DELETE OR UPDATE OF assigned_bot_id, platform ON bot_pool_slots
    DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION check_place_of_slot();

DROP TRIGGER IF EXISTS bot_pool_queue_place ON bot_pool_queue;
CREATE CONSTRAINT TRIGGER bot_pool_queue_place AFTER INSERT OR DELETE OR UPDATE ON bot_pool_queue
    DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION check_place_of_entry();
