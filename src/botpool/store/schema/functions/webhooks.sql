-- What is told of bots: one delivery for each event and each place that wants it. A bot's callback address
-- gets every change of its status; an endpoint of its project the types of events that were chosen for it.
--
-- Deliveries of a bot to one place go out one after the other. Only the first that is open has a time at
-- which it is due; those behind it have 'infinity', so that a look for work doesn't read them. Closing the
-- first lets the next be due. The bot's row keeps the two apart: whoever writes a delivery has locked it, and
-- closing a delivery locks it before the next is looked for. Without it, one written while the one before is
-- closed would be due never. One that is sent again on request is outside of this order.
--
-- While an endpoint is paused, none of its deliveries is due. An endpoint's row is locked after the bot's and
-- before any delivery.

-- The host that an address leads to, for all of its ports. What is under way is bounded by it.
CREATE OR REPLACE FUNCTION callback_host(p_url text) RETURNS text LANGUAGE sql IMMUTABLE
    AS $$
    SELECT coalesce(lower(substring(p_url FROM '^[^:]*://(?:[^/?#@]*@)?(\[[^]]*\]|[^/?#:]*)')), '')
$$;

-- The id by which receivers know a delivery. It is the same in every attempt.
CREATE OR REPLACE FUNCTION message_id(p_delivery_id bigint) RETURNS text LANGUAGE sql STABLE
    AS $$ SELECT 'msg_' || (SELECT id FROM installation) || '_' || p_delivery_id $$;

-- Whether an endpoint is paused, and stays so until the transaction ends: it isn't resumed meanwhile by
-- somebody who can't see what is written here.
CREATE OR REPLACE FUNCTION stays_paused(p_endpoint_id bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM webhook_endpoints WHERE id = p_endpoint_id AND paused_at IS NOT NULL) THEN
        RETURN false;
    END IF;
    PERFORM FROM webhook_endpoints WHERE id = p_endpoint_id AND paused_at IS NOT NULL FOR SHARE;
    RETURN FOUND;
END $$;

-- Write the deliveries that tell of an event of a bot, whose row is locked: one to the callback, if this is a
-- change of status, and one to each endpoint that wants it.
CREATE OR REPLACE FUNCTION write_deliveries(
    p_bot bots, p_type text, p_transition_id bigint, p_event jsonb, p_at timestamptz
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO webhook_deliveries (
        project_id, bot_id, endpoint_id, url, type, transition_id, payload, created_at, next_attempt_at
    )
    SELECT
        p_bot.project_id, p_bot.id, endpoint_id, url, p_type, p_transition_id, p_event, p_at,
        CASE
            -- Not EXISTS: to answer that, all that is open of the bot may be read.
            WHEN (
                SELECT d.id FROM webhook_deliveries d
                WHERE d.bot_id = p_bot.id AND coalesce(d.endpoint_id, 0) = coalesce(place.endpoint_id, 0)
                    AND d.next_attempt_at IS NOT NULL AND d.resent_at IS NULL
                ORDER BY d.id
                LIMIT 1
            ) IS NOT NULL OR stays_paused(endpoint_id) THEN 'infinity'
            ELSE p_at
        END
    FROM (
        SELECT NULL::bigint AS endpoint_id, p_bot.callback_url AS url
        WHERE p_bot.callback_url IS NOT NULL AND p_type = 'bot.status_changed'
        UNION ALL
        SELECT id, NULL FROM webhook_endpoints
        WHERE project_id = p_bot.project_id AND p_type = ANY (event_types)
    ) place
    ORDER BY endpoint_id;
END $$;

-- Tell of a bot's new status. Most bots have no callback and no endpoint, and creating them is to cost no
-- more than a look at their row: no variable, and no plan of the rest.
CREATE OR REPLACE FUNCTION tell_transition() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM bots b WHERE id = NEW.bot_id AND (
            callback_url IS NOT NULL
            OR EXISTS (SELECT FROM webhook_endpoints e WHERE e.project_id = b.project_id)
        )
    ) THEN RETURN NULL; END IF;
    PERFORM write_deliveries(
        bots, 'bot.status_changed', NEW.id, transition_event(NEW, bots), NEW.at
    ) FROM bots WHERE id = NEW.bot_id;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER transitions_delivery AFTER INSERT ON transitions
    FOR EACH ROW WHEN (NEW.machine = 'bot' AND NEW.from_status IS DISTINCT FROM NEW.to_status)
    EXECUTE FUNCTION tell_transition();

-- Tell of what a bot reported, if an endpoint wants to know. Of those to an endpoint, the newest 5,000 of a bot
-- are kept, whether they wait or are closed; the next to be sent is kept in any case.
CREATE OR REPLACE FUNCTION tell_reports() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    v_bot bots;
    v_endpoint_id bigint;
    v_last bigint;
BEGIN
    FOR v_bot IN
        SELECT * FROM bots b
        WHERE id IN (SELECT bot_id FROM reported)
            AND EXISTS (
                SELECT FROM webhook_endpoints e
                WHERE e.project_id = b.project_id AND 'bot.event' = ANY (event_types)
            )
        FOR NO KEY UPDATE
    LOOP
        PERFORM write_deliveries(
            v_bot, 'bot.event', NULL, reported_event(ROW(event.*)::bot_events, v_bot), at
        ) FROM (SELECT * FROM reported WHERE bot_id = v_bot.id ORDER BY id) event;
        FOR v_endpoint_id, v_last IN
            SELECT e.id, (
                SELECT d.id FROM webhook_deliveries d
                WHERE d.bot_id = v_bot.id AND coalesce(d.endpoint_id, 0) = e.id AND d.type = 'bot.event'
                ORDER BY d.id DESC OFFSET 5000 LIMIT 1
            )
            FROM webhook_endpoints e WHERE e.project_id = v_bot.project_id
        LOOP
            DELETE FROM webhook_deliveries
            WHERE bot_id = v_bot.id AND id <= v_last AND coalesce(endpoint_id, 0) = v_endpoint_id
                AND type = 'bot.event' AND reserved_by IS NULL
                AND (next_attempt_at IS NULL OR next_attempt_at = 'infinity');
        END LOOP;
    END LOOP;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER bot_events_delivery AFTER INSERT ON bot_events
    REFERENCING NEW TABLE AS reported
    FOR EACH STATEMENT EXECUTE FUNCTION tell_reports();

-- Record an attempt of the replica that has reserved the delivery, and let go of it: it was delivered, or
-- is tried again in p_retry_in_ms, or, without that, given up. An endpoint at which all attempts have failed
-- for p_pause_after_ms is paused. Returns 'recorded'; 'paused', if this paused the endpoint; or 'lost':
-- another replica has the delivery by now.
CREATE OR REPLACE FUNCTION record_attempt(
    p_attempt jsonb, p_replica text, p_delivered boolean, p_retry_in_ms double precision,
    p_pause_after_ms bigint
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz;
    v_attempt webhook_attempts := jsonb_populate_record(NULL::webhook_attempts, p_attempt);
    v_delivery webhook_deliveries;
    v_pauses boolean;
    v_paused boolean;
BEGIN
    SELECT * INTO v_delivery FROM webhook_deliveries
    WHERE id = v_attempt.delivery_id AND reserved_by = p_replica;
    IF NOT FOUND THEN RETURN 'lost'; END IF;
    IF p_delivered OR p_retry_in_ms IS NULL THEN
        PERFORM FROM bots WHERE id = v_delivery.bot_id FOR NO KEY UPDATE;
    END IF;

    v_now := botpool_now();
    IF p_delivered THEN
        UPDATE webhook_endpoints SET failing_since = NULL
        WHERE id = v_delivery.endpoint_id AND failing_since IS NOT NULL;
    ELSE
        UPDATE webhook_endpoints SET failing_since = coalesce(failing_since, v_now)
        WHERE id = v_delivery.endpoint_id
        RETURNING
            paused_at IS NULL AND failing_since <= v_now - p_pause_after_ms * interval '1 millisecond'
        INTO v_pauses;
        IF v_pauses THEN
            PERFORM pause_endpoint(v_delivery.endpoint_id, format(
                'nothing was delivered since %s; the last attempt: %s',
                (SELECT iso_time(failing_since) FROM webhook_endpoints WHERE id = v_delivery.endpoint_id),
                coalesce(v_attempt.error, 'the answer was ' || v_attempt.status)
            ));
        END IF;
    END IF;
    v_pauses := coalesce(v_pauses, false);
    v_paused := v_pauses OR stays_paused(v_delivery.endpoint_id);

    UPDATE webhook_deliveries
    SET attempts = attempts + 1, tries = tries + 1, reserved_by = NULL, reserved_until = NULL,
        next_attempt_at = CASE
            WHEN p_delivered OR p_retry_in_ms IS NULL THEN NULL
            WHEN v_paused THEN 'infinity'
            ELSE v_now + p_retry_in_ms * interval '1 millisecond'
        END,
        delivered_at = CASE WHEN p_delivered THEN v_now END,
        given_up_at = CASE WHEN NOT p_delivered AND p_retry_in_ms IS NULL THEN v_now END
    WHERE id = v_attempt.delivery_id AND reserved_by = p_replica
    RETURNING * INTO v_delivery;
    IF NOT FOUND THEN RETURN 'lost'; END IF;

    v_attempt.number := v_delivery.attempts;
    INSERT INTO webhook_attempts SELECT v_attempt.*;

    IF v_delivery.next_attempt_at IS NULL AND v_delivery.resent_at IS NULL AND NOT v_paused THEN
        UPDATE webhook_deliveries SET next_attempt_at = v_now
        WHERE id = (
            SELECT id FROM webhook_deliveries
            WHERE bot_id = v_delivery.bot_id
                AND coalesce(endpoint_id, 0) = coalesce(v_delivery.endpoint_id, 0)
                AND next_attempt_at IS NOT NULL AND resent_at IS NULL
            ORDER BY id
            LIMIT 1
        );
    END IF;
    RETURN CASE WHEN v_pauses THEN 'paused' ELSE 'recorded' END;
END $$;

-- Send nothing to an endpoint until it is resumed. What waits is kept.
CREATE OR REPLACE FUNCTION pause_endpoint(p_endpoint_id bigint, p_reason text) RETURNS void
    LANGUAGE plpgsql AS $$
BEGIN
    UPDATE webhook_endpoints SET paused_at = botpool_now(), pause_reason = p_reason
    WHERE id = p_endpoint_id AND paused_at IS NULL;
    IF NOT FOUND THEN RETURN; END IF;
    UPDATE webhook_deliveries SET next_attempt_at = 'infinity'
    WHERE endpoint_id = p_endpoint_id AND next_attempt_at < 'infinity';
END $$;

-- Send to an endpoint again: first what has waited, of each bot in order.
CREATE OR REPLACE FUNCTION resume_endpoint(p_endpoint_id bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE webhook_endpoints SET paused_at = NULL, pause_reason = NULL, failing_since = NULL
    WHERE id = p_endpoint_id AND paused_at IS NOT NULL;
    IF NOT FOUND THEN RETURN; END IF;
    UPDATE webhook_deliveries d SET next_attempt_at = botpool_now()
    FROM (
        SELECT DISTINCT ON (bot_id, CASE WHEN resent_at IS NOT NULL THEN id END) id
        FROM webhook_deliveries
        WHERE endpoint_id = p_endpoint_id AND next_attempt_at IS NOT NULL
        ORDER BY bot_id, CASE WHEN resent_at IS NOT NULL THEN id END, id
    ) first
    WHERE d.id = first.id AND d.next_attempt_at IS NOT NULL;
END $$;

-- Give an endpoint, or a project for the callbacks of its bots, a new secret. The one that it had, p_had if
-- none is here, is valid for another p_overlap_ms; one that was replaced before is valid no more.
CREATE OR REPLACE FUNCTION rotate_secret(
    p_project_id bigint, p_endpoint_id bigint, p_secret text, p_overlap_ms bigint, p_had text
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz;
BEGIN
    -- One at a time.
    PERFORM FROM projects WHERE id = p_project_id FOR NO KEY UPDATE;
    PERFORM FROM webhook_endpoints WHERE id = p_endpoint_id FOR NO KEY UPDATE;
    v_now := botpool_now();
    DELETE FROM webhook_secrets
    WHERE (project_id = p_project_id OR endpoint_id = p_endpoint_id) AND expires_at IS NOT NULL;
    UPDATE webhook_secrets SET expires_at = v_now + p_overlap_ms * interval '1 millisecond'
    WHERE project_id = p_project_id OR endpoint_id = p_endpoint_id;
    IF NOT FOUND AND p_had IS NOT NULL THEN
        INSERT INTO webhook_secrets (project_id, endpoint_id, secret, created_at, expires_at)
        VALUES (
            p_project_id, p_endpoint_id, p_had, v_now, v_now + p_overlap_ms * interval '1 millisecond'
        );
    END IF;
    INSERT INTO webhook_secrets (project_id, endpoint_id, secret, created_at)
    VALUES (p_project_id, p_endpoint_id, p_secret, v_now);
END $$;

-- Deliveries before an id, newest first, by whichever field of p_page is given. The conditions are put
-- together anew each time, so that each list is read by its index.
CREATE OR REPLACE FUNCTION list_deliveries(p_page jsonb) RETURNS SETOF webhook_deliveries
    LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY EXECUTE concat(
        'SELECT * FROM webhook_deliveries WHERE id < ($1 ->> ''before'')::bigint',
        CASE WHEN p_page ->> 'project_id' IS NOT NULL
            THEN ' AND project_id = ($1 ->> ''project_id'')::bigint' END,
        CASE WHEN p_page ->> 'endpoint_id' IS NOT NULL
            THEN ' AND endpoint_id = ($1 ->> ''endpoint_id'')::bigint' END,
        CASE WHEN p_page ->> 'bot_id' IS NOT NULL
            THEN ' AND bot_id = ($1 ->> ''bot_id'')::bigint' END,
        CASE WHEN p_page ->> 'type' IS NOT NULL
            THEN ' AND type = $1 ->> ''type''' END,
        CASE WHEN p_page ->> 'since' IS NOT NULL
            THEN ' AND created_at >= ($1 ->> ''since'')::timestamptz' END,
        CASE p_page ->> 'status'
            WHEN 'open' THEN ' AND next_attempt_at IS NOT NULL'
            WHEN 'delivered' THEN ' AND delivered_at IS NOT NULL'
            WHEN 'given_up' THEN ' AND given_up_at IS NOT NULL'
        END,
        ' ORDER BY id DESC LIMIT ($1 ->> ''limit'')::integer'
    )
    USING p_page;
END $$;
