-- What a bot's callback address is told: one delivery for each change of the bot's status.
--
-- Deliveries of a bot go out one after the other. Only the first that is open has a time at which it
-- is due; those behind it have 'infinity', so that a look for work doesn't read them. Closing the first
-- lets the next be due. The bot's row keeps the two apart: a change of a bot's status has locked it
-- when the delivery is written, and closing a delivery locks it before the next is looked for. Without
-- it, one written while the one before is closed would be due never.

-- The host that an address leads to, for all of its ports. What is under way is bounded by it.
CREATE OR REPLACE FUNCTION callback_host(p_url text) RETURNS text LANGUAGE sql IMMUTABLE
    AS $$
    SELECT coalesce(lower(substring(p_url FROM '^[^:]*://(?:[^/?#@]*@)?(\[[^]]*\]|[^/?#:]*)')), '')
$$;

-- Write the delivery that tells of a bot's new status. Most bots have no callback, and creating them
-- is to cost no more than a look at their row: no variable, and no plan of the rest.
CREATE OR REPLACE FUNCTION write_delivery() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (SELECT callback_url FROM bots WHERE id = NEW.bot_id) IS NULL THEN RETURN NULL; END IF;

    INSERT INTO webhook_deliveries (
        bot_id, transition_id, callback_url, payload, created_at, next_attempt_at
    )
    SELECT
        id, NEW.id, callback_url, transition_event(NEW, bots), NEW.at,
        CASE
            WHEN EXISTS (
                SELECT FROM webhook_deliveries d
                WHERE d.bot_id = bots.id AND d.next_attempt_at IS NOT NULL
            ) THEN 'infinity'
            ELSE NEW.at
        END
    FROM bots WHERE id = NEW.bot_id;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER transitions_delivery AFTER INSERT ON transitions
    FOR EACH ROW WHEN (NEW.machine = 'bot' AND NEW.from_status IS DISTINCT FROM NEW.to_status)
    EXECUTE FUNCTION write_delivery();

-- Record an attempt of the replica that has reserved the delivery, and let go of it: it was delivered, or
-- is tried again in p_retry_in_ms, or, without that, given up. False: another replica has it by now.
CREATE OR REPLACE FUNCTION record_attempt(
    p_attempt jsonb, p_replica text, p_delivered boolean, p_retry_in_ms double precision
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz;
    v_attempt webhook_attempts := jsonb_populate_record(NULL::webhook_attempts, p_attempt);
    v_delivery webhook_deliveries;
BEGIN
    IF p_delivered OR p_retry_in_ms IS NULL THEN
        PERFORM FROM bots
        WHERE id = (SELECT bot_id FROM webhook_deliveries WHERE id = v_attempt.delivery_id)
        FOR NO KEY UPDATE;
    END IF;

    v_now := botpool_now();
    UPDATE webhook_deliveries
    SET attempts = attempts + 1, reserved_by = NULL, reserved_until = NULL,
        next_attempt_at = CASE
            WHEN NOT p_delivered THEN v_now + p_retry_in_ms * interval '1 millisecond'
        END,
        delivered_at = CASE WHEN p_delivered THEN v_now END,
        given_up_at = CASE WHEN NOT p_delivered AND p_retry_in_ms IS NULL THEN v_now END
    WHERE id = v_attempt.delivery_id AND reserved_by = p_replica
    RETURNING * INTO v_delivery;
    IF NOT FOUND THEN RETURN false; END IF;

    v_attempt.number := v_delivery.attempts;
    INSERT INTO webhook_attempts SELECT v_attempt.*;

    IF v_delivery.next_attempt_at IS NULL THEN
        UPDATE webhook_deliveries SET next_attempt_at = v_now
        WHERE id = (
            SELECT id FROM webhook_deliveries
            WHERE bot_id = v_delivery.bot_id AND next_attempt_at IS NOT NULL
            ORDER BY id
            LIMIT 1
        );
    END IF;
    RETURN true;
END $$;
