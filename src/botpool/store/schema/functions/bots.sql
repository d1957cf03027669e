-- Bots: how they come to be, how they are stopped, and how they are found. What is locked first, and
-- why these are functions: queue.sql.

-- Create bots of a platform, in this order. p_bots has an object for each, whose fields are columns of
-- the table. Each gets the idle slot least recently used; none overtakes those who wait. To wait or
-- to grow the pool takes the platform's lock: without p_grow, bots for which no idle slot is there for
-- the taking are not created.
CREATE OR REPLACE FUNCTION create_bots(p_platform text, p_bots jsonb, p_grow boolean)
    RETURNS SETOF transitions LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz;
    v_slots bot_pool_slots[] := '{}';
    v_bots bots[];
BEGIN
    IF p_grow THEN
        PERFORM pg_advisory_xact_lock(platform_lock(p_platform));
        -- Without growing: whoever makes room serves the queue, and to look for room here costs time.
        RETURN QUERY SELECT * FROM serve_queue(p_platform, false);
    END IF;

    v_now := botpool_now();
    IF NOT is_paused(p_platform)
        AND NOT a_bot_waits(p_platform, CASE WHEN p_grow THEN v_now ELSE '-infinity' END)
    THEN
        IF p_grow AND NOT has_idle(p_platform) THEN
            RETURN QUERY SELECT * FROM make_room(p_platform, jsonb_array_length(p_bots));
        END IF;
        v_slots := take_slots(p_platform, jsonb_array_length(p_bots), p_grow);
    END IF;

    SELECT array_agg(jsonb_populate_record(NULL::bots, asked || jsonb_build_object(
        'id', nextval('bots_id_seq'),
        'status', CASE WHEN slot.id IS NULL THEN 'QUEUED' ELSE 'DEPLOYING' END,
        'launch_attempts', CASE WHEN slot.id IS NULL THEN 0 ELSE 1 END,
        'slot_name', slot.slot_name,
        'container_ref', slot.container_ref,
        'lease', slot.lease + 1,
        'assigned_at', CASE WHEN slot.id IS NOT NULL THEN v_now END,
        'created_at', v_now
    )))
    INTO v_bots
    FROM jsonb_array_elements(p_bots) WITH ORDINALITY AS request (asked, n)
    LEFT JOIN unnest(v_slots) WITH ORDINALITY AS slot ON slot.ordinality = n
    WHERE slot.id IS NOT NULL OR p_grow;
    IF v_bots IS NULL THEN RETURN; END IF;

    INSERT INTO bots SELECT * FROM unnest(v_bots);
    IF v_slots <> '{}' THEN
        RETURN QUERY SELECT * FROM
            occupy_slots(v_slots, v_bots[1 : cardinality(v_slots)], NULL, v_now);
    END IF;
    IF cardinality(v_bots) > cardinality(v_slots) THEN
        RETURN QUERY SELECT * FROM
            enqueue(
                v_bots[cardinality(v_slots) + 1 :], NULL,
                CASE WHEN is_paused(p_platform) THEN 'launches are paused' ELSE 'every slot is taken' END,
                v_now
            );
    END IF;
END $$;

-- Stop a bot on request: one that waits or deploys is cancelled, and its slot released; one whose
-- container runs is told to leave, and its slot looked at when the time to do so is over. One that
-- leaves already, or has ended, stays as it is. p_cause is what one that leaves ends with, if anything.
CREATE OR REPLACE FUNCTION stop_bot(
    p_bot_id bigint, p_reason text, p_grace_ms integer, p_cause text
) RETURNS SETOF transitions LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := botpool_now();
    v_waited boolean;
    v_slot bot_pool_slots;
    v_bot bots;
    v_from text;
BEGIN
    LOOP
        -- Only a transaction that has locked the bot's place moves it.
        DELETE FROM bot_pool_queue WHERE bot_id = p_bot_id;
        v_waited := FOUND;
        SELECT * INTO v_slot FROM bot_pool_slots WHERE assigned_bot_id = p_bot_id FOR NO KEY UPDATE;
        SELECT * INTO v_bot FROM bots WHERE id = p_bot_id;
        IF NOT FOUND OR v_bot.ended_at IS NOT NULL OR v_bot.status = 'LEAVING' THEN RETURN; END IF;
        EXIT WHEN v_waited OR v_slot.id IS NOT NULL OR v_bot.status = 'PENDING';
        -- It went from the one place to the other between the two looks: look again.
    END LOOP;

    v_from := v_bot.status;
    UPDATE bots
    SET status = CASE WHEN v_from IN ('PENDING', 'QUEUED', 'DEPLOYING') THEN 'CANCELLED' ELSE 'LEAVING' END,
        ended_at = CASE WHEN v_from IN ('PENDING', 'QUEUED', 'DEPLOYING') THEN v_now END,
        leaves_for = p_cause
    WHERE id = p_bot_id
    RETURNING * INTO v_bot;

    IF v_bot.status = 'LEAVING' THEN
        UPDATE bot_pool_slots SET due_at = v_now + p_grace_ms * interval '1 millisecond'
        WHERE id = v_slot.id;
    ELSIF v_slot.id IS NOT NULL THEN
        UPDATE bot_pool_slots
        SET status = 'releasing', assigned_bot_id = NULL, last_released_at = v_now
        WHERE id = v_slot.id;
        RETURN QUERY SELECT * FROM record_step(
            'slot', v_slot.status, 'releasing', v_slot, v_bot, p_reason,
            jsonb_build_object(
                'botStatus', v_bot.status, 'heldMs', milliseconds(v_now - v_slot.last_assigned_at)
            ),
            v_now
        );
    END IF;
    RETURN QUERY SELECT * FROM record_step(
        'bot', v_from, v_bot.status, v_slot, v_bot, p_reason,
        CASE WHEN p_cause IS NULL THEN '{}' ELSE jsonb_build_object('cause', p_cause) END, v_now
    );
END $$;

-- Note when a bot was in its call; when it left, or was told to; and what it was told to leave for, once it
-- has. After a relaunch it has yet to join.
CREATE OR REPLACE FUNCTION note_stay() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.status = 'IN_CALL' THEN
        NEW.joined_at := botpool_now();
    ELSIF OLD.status = 'IN_CALL' THEN
        IF NEW.status IN ('QUEUED', 'DEPLOYING') THEN
            NEW.joined_at := NULL;
        ELSE
            NEW.left_at := botpool_now();
        END IF;
    END IF;
    IF NEW.status = 'DONE' THEN NEW.failure_cause := NEW.leaves_for; END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER bots_stay BEFORE UPDATE OF status ON bots
    FOR EACH ROW WHEN (
        OLD.status <> NEW.status
        AND (NEW.status = 'IN_CALL' OR OLD.status = 'IN_CALL' OR NEW.leaves_for IS NOT NULL)
    )
    EXECUTE FUNCTION note_stay();

-- Delete an ended bot that no slot has any more, and all that tells of it: what it reported and logged, its
-- deliveries, and its transitions. Of those of its slots remain what happened and when, for the operator.
-- False: there is no such bot, it has not ended, or its slot still has it.
CREATE OR REPLACE FUNCTION delete_bot(p_bot_id bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM bots b
    WHERE id = p_bot_id AND ended_at IS NOT NULL
        AND NOT EXISTS (SELECT FROM bot_pool_slots WHERE assigned_bot_id = b.id);
    IF NOT FOUND THEN RETURN false; END IF;
    DELETE FROM transitions WHERE bot_id = p_bot_id AND machine = 'bot';
    UPDATE transitions SET bot_id = NULL, correlation_id = NULL, reason = 'deleted with its bot'
    WHERE bot_id = p_bot_id;
    RETURN true;
END $$;

-- The bot whose events and log lines are kept under a lease: the one that the slot has, and the one that it
-- had last until its container is proved stopped, for the last lines tell why. They change no state.
CREATE OR REPLACE FUNCTION bot_that_speaks(p_slot_id bigint, p_lease bigint) RETURNS bigint
    LANGUAGE sql STABLE AS $$
    SELECT b.id FROM bot_pool_slots s
    JOIN bots b ON b.id = coalesce(
        s.assigned_bot_id, CASE WHEN s.status IN ('releasing', 'error') THEN s.last_bot_id END
    )
    WHERE s.id = p_slot_id AND s.lease = p_lease
$$;

-- Bots before an id, newest first, by whichever field of p_page is given. The conditions are put
-- together anew each time, so that a correlation or a container is looked up by its index. Times are
-- bounds of ids, too, so that no more is read than lies between them: ids follow creation but for those
-- of a moment, so the bound is that of the nearest 1,000.
CREATE OR REPLACE FUNCTION list_bots(p_page jsonb) RETURNS SETOF bots LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_statuses text[] := ARRAY(SELECT jsonb_array_elements_text(nullif(p_page -> 'statuses', 'null')));
BEGIN
    RETURN QUERY EXECUTE concat(
        'SELECT * FROM bots WHERE id < ($1 ->> ''before'')::bigint',
        CASE WHEN p_page ->> 'project_id' IS NOT NULL
            THEN ' AND project_id = ($1 ->> ''project_id'')::bigint' END,
        CASE WHEN p_page ->> 'platform' IS NOT NULL
            THEN ' AND platform = $1 ->> ''platform''' END,
        CASE WHEN p_page ->> 'statuses' IS NOT NULL
            THEN ' AND status = ANY ($2)' END,
        CASE WHEN p_page ->> 'container_ref' IS NOT NULL
            THEN ' AND container_ref = $1 ->> ''container_ref''' END,
        CASE WHEN p_page ->> 'correlation_id' IS NOT NULL
            THEN ' AND correlation_id = $1 ->> ''correlation_id''' END,
        CASE WHEN p_page ->> 'deduplication_key' IS NOT NULL
            THEN ' AND deduplication_key = $1 ->> ''deduplication_key''' END,
        CASE WHEN p_page ->> 'meeting_url' IS NOT NULL
            THEN ' AND hashtextextended(meeting_url, 0) = hashtextextended($1 ->> ''meeting_url'', 0)'
                ' AND meeting_url = $1 ->> ''meeting_url''' END,
        (
            SELECT concat(' AND metadata <> ''{}''', string_agg(format(
                ' AND (metadata @> ($1 #> ''{metadata,%s,0}'') OR metadata @> ($1 #> ''{metadata,%s,1}''))',
                n - 1, n - 1
            ), ''))
            FROM jsonb_array_elements(nullif(p_page -> 'metadata', 'null')) WITH ORDINALITY AS m (_, n)
            HAVING count(*) > 0
        ),
        CASE WHEN p_page ->> 'created_before' IS NOT NULL
            THEN ' AND created_at < ($1 ->> ''created_before'')::timestamptz AND id <= $3' END,
        CASE WHEN p_page ->> 'created_after' IS NOT NULL
            THEN ' AND created_at >= ($1 ->> ''created_after'')::timestamptz AND id >= $4' END,
        ' ORDER BY id DESC LIMIT ($1 ->> ''limit'')::integer'
    )
    USING
        p_page, v_statuses,
        (
            SELECT max(id) FROM (
                SELECT id FROM bots
                WHERE created_at < (p_page ->> 'created_before')::timestamptz
                ORDER BY created_at DESC, id DESC
                LIMIT 1000
            ) newest
        ),
        (
            SELECT min(id) FROM (
                SELECT id FROM bots
                WHERE created_at >= (p_page ->> 'created_after')::timestamptz
                ORDER BY created_at, id
                LIMIT 1000
            ) oldest
        );
END $$;

-- One page of bots as people look for them: filtered, and ordered by one of a few columns, then by id. The place
-- of the last bot of the page before is what it was ordered by, as text, and its id.
CREATE OR REPLACE FUNCTION search_bots(p_page jsonb) RETURNS SETOF bots LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_statuses text[] := ARRAY(SELECT jsonb_array_elements_text(nullif(p_page -> 'statuses', 'null')));
    v_pattern text := '%' || regexp_replace(p_page ->> 'text', '([\\%_])', '\\\1', 'g') || '%';
    v_by text := CASE p_page ->> 'sort'
        WHEN 'name' THEN 'lower(bot_display_name), '
        WHEN 'platform' THEN 'platform, '
        WHEN 'status' THEN 'status, '
        WHEN 'slot' THEN 'concat(slot_name), '
        ELSE ''
    END;
    v_way text := CASE WHEN (p_page ->> 'descending')::boolean THEN ' DESC' ELSE ' ASC' END;
BEGIN
    RETURN QUERY EXECUTE concat(
        'SELECT * FROM bots WHERE true',
        CASE WHEN p_page ->> 'project_id' IS NOT NULL
            THEN ' AND project_id = ($1 ->> ''project_id'')::bigint' END,
        CASE WHEN p_page ->> 'platform' IS NOT NULL
            THEN ' AND platform = $1 ->> ''platform''' END,
        CASE WHEN p_page ->> 'statuses' IS NOT NULL
            THEN ' AND status = ANY ($2)' END,
        CASE WHEN p_page ->> 'text' IS NOT NULL
            THEN ' AND ($1 ->> ''text'' IN (id::text, correlation_id) OR bot_display_name ILIKE $3'
                ' OR meeting_url ILIKE $3 OR slot_name ILIKE $3 OR deduplication_key ILIKE $3)' END,
        CASE WHEN p_page ->> 'after_id' IS NOT NULL THEN concat(
            ' AND (', v_by, 'id)', CASE v_way WHEN ' DESC' THEN ' < ' ELSE ' > ' END,
            '(', CASE WHEN v_by <> '' THEN '$1 ->> ''after_value'', ' END, '($1 ->> ''after_id'')::bigint)'
        ) END,
        ' ORDER BY ', replace(v_by, ', ', v_way || ', '), 'id', v_way, ' LIMIT ($1 ->> ''limit'')::integer'
    )
    USING p_page, v_statuses, v_pattern;
END $$;
