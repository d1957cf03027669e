-- What the triggers call when a row is about to break a promise. Error codes of class BP are ours.

-- Refuse a status that can't follow the one before it.
CREATE OR REPLACE FUNCTION refuse_step() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'BP001',
        MESSAGE = format(
            '%s %s can''t go from %s to %s', TG_TABLE_NAME,
            CASE WHEN TG_OP = 'DELETE' THEN OLD.id ELSE NEW.id END,
            CASE WHEN TG_OP = 'INSERT' THEN 'nothing' ELSE OLD.status END,
            CASE WHEN TG_OP = 'DELETE' THEN 'nothing' ELSE NEW.status END
        );
END $$;

-- Refuse any change of a bot that has ended.
CREATE OR REPLACE FUNCTION refuse_ended() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'BP001', MESSAGE = format('bot %s is %s and changes no more', OLD.id, OLD.status);
END $$;

-- Refuse a lease that doesn't grow by one with every assignment, and every start without a bot, and only
-- then.
CREATE OR REPLACE FUNCTION refuse_lease() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'BP002',
        MESSAGE = format('slot %s can''t go from lease %s to %s', OLD.id, OLD.lease, NEW.lease);
END $$;

-- Count a platform's slots, and refuse one beyond its maximum.
CREATE OR REPLACE FUNCTION count_slot() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        UPDATE pools SET size = size - 1 WHERE platform = OLD.platform;
        RETURN OLD;
    END IF;
    UPDATE pools SET size = size + 1 WHERE platform = NEW.platform AND size < max_size;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'BP003',
            MESSAGE = format('%s is beyond the maximum of its pool', NEW.slot_name);
    END IF;
    RETURN NEW;
END $$;

-- Every live bot is somewhere at the end of a transaction: in the queue, with a deadline, or on a
-- slot of its platform. A bot that is nowhere would never end. So a bot is PENDING only within the
-- transaction that creates it.
CREATE OR REPLACE FUNCTION check_place(p_bot_id bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    bot record;
    in_queue boolean;
    on_slot boolean;
BEGIN
    SELECT id, status, platform INTO bot FROM bots WHERE id = p_bot_id;
    IF NOT FOUND THEN RETURN; END IF;
    in_queue := EXISTS (SELECT FROM bot_pool_queue WHERE bot_id = bot.id AND platform = bot.platform);
    on_slot := EXISTS (
        SELECT FROM bot_pool_slots WHERE assigned_bot_id = bot.id AND platform = bot.platform
    );
    IF bot.status = 'PENDING'
        OR in_queue <> (bot.status = 'QUEUED')
        OR (NOT on_slot AND bot.status = ANY (bot_holds_slot()))
        OR (on_slot AND bot.status = 'QUEUED')
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'BP004',
            MESSAGE = format(
                'bot %s is %s, but its place is: queue %s, slot %s', bot.id, bot.status, in_queue, on_slot
            );
    END IF;
END $$;

CREATE OR REPLACE FUNCTION check_place_of_bot() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM check_place(NEW.id); RETURN NULL; END $$;

CREATE OR REPLACE FUNCTION check_place_of_slot() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN PERFORM check_place(OLD.assigned_bot_id); END IF;
    IF TG_OP <> 'DELETE' THEN PERFORM check_place(NEW.assigned_bot_id); END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION check_place_of_entry() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM check_place(CASE WHEN TG_OP = 'DELETE' THEN OLD.bot_id ELSE NEW.bot_id END);
    RETURN NULL;
END $$;
