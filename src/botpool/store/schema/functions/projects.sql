-- Projects: what their limits let in, and how one is deleted.

-- Which of these bots their projects' limits let in. p_bots has an object for each, as create_bots takes
-- them. rulings has an object for each that a limit concerns, with its place in p_bots, from 0: the limit
-- that refuses it, or the longest stay that it gets. The row of a project with limits is locked until the
-- transaction ends, before any other lock, so that creations at the same time, on any replica, don't exceed
-- them together. A request that was answered before passes: it gets that answer again.
CREATE OR REPLACE FUNCTION admit_bots(p_bots jsonb, OUT admitted jsonb, OUT rulings jsonb)
    LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz;
    v_project projects;
    v_bot record;
    v_live integer;
    v_recent timestamptz[];
    v_limit text;
BEGIN
    admitted := p_bots;
    IF NOT EXISTS (
        SELECT FROM projects
        WHERE id IN (SELECT (bot ->> 'project_id')::bigint FROM jsonb_array_elements(p_bots) bot)
            AND num_nonnulls(max_live_bots, max_creations_per_minute, max_duration_ms) > 0
    ) THEN RETURN; END IF;

    FOR v_project IN
        SELECT * FROM projects
        WHERE id IN (SELECT (bot ->> 'project_id')::bigint FROM jsonb_array_elements(p_bots) bot)
            AND num_nonnulls(max_live_bots, max_creations_per_minute, max_duration_ms) > 0
        ORDER BY id
        FOR NO KEY UPDATE
    LOOP
        v_now := botpool_now();
        SELECT count(*) INTO v_live FROM bots
        WHERE project_id = v_project.id AND ended_at IS NULL AND v_project.max_live_bots IS NOT NULL;
        -- When the newest were created, the newest first: as many as a minute may have.
        v_recent := ARRAY(
            SELECT created_at
            FROM (
                SELECT created_at FROM bots WHERE project_id = v_project.id
                ORDER BY id DESC LIMIT coalesce(v_project.max_creations_per_minute, 0)
            ) newest
            WHERE created_at > v_now - interval '1 minute'
        );
        FOR v_bot IN
            SELECT n - 1 AS place, (asked ->> 'max_duration_ms')::bigint AS max_duration_ms
            FROM jsonb_array_elements(p_bots) WITH ORDINALITY AS b (asked, n)
            WHERE (asked ->> 'project_id')::bigint = v_project.id
                AND NOT EXISTS (
                    SELECT FROM bots
                    WHERE project_id = v_project.id AND idempotency_key = asked ->> 'idempotency_key'
                )
            ORDER BY n
        LOOP
            v_limit := CASE
                WHEN v_bot.max_duration_ms > v_project.max_duration_ms THEN 'max_duration_ms'
                WHEN v_live >= v_project.max_live_bots THEN 'max_live_bots'
                WHEN cardinality(v_recent) >= v_project.max_creations_per_minute
                    THEN 'max_creations_per_minute'
            END;
            IF v_limit IS NULL THEN
                v_live := v_live + 1;
                v_recent := v_now || v_recent;
                CONTINUE WHEN v_project.max_duration_ms IS NULL;
                v_bot.max_duration_ms := coalesce(v_bot.max_duration_ms, v_project.max_duration_ms);
                admitted := jsonb_set(
                    admitted, ARRAY[v_bot.place::text, 'max_duration_ms'], to_jsonb(v_bot.max_duration_ms)
                );
            END IF;
            rulings := coalesce(rulings, '[]') || jsonb_build_object(
                'place', v_bot.place, 'refused_by', v_limit, 'most', to_jsonb(v_project) -> v_limit,
                'max_duration_ms', v_bot.max_duration_ms,
                'retry_in_seconds', CASE v_limit WHEN 'max_creations_per_minute' THEN greatest(1, ceil(
                    extract(epoch FROM v_recent[v_project.max_creations_per_minute]
                        + interval '1 minute' - v_now)
                )) END
            );
        END LOOP;
    END LOOP;

    IF rulings IS NOT NULL THEN
        SELECT coalesce(jsonb_agg(asked ORDER BY n), '[]') INTO admitted
        FROM jsonb_array_elements(admitted) WITH ORDINALITY AS b (asked, n)
        WHERE NOT EXISTS (
            SELECT FROM jsonb_to_recordset(rulings) AS r (place bigint, refused_by text)
            WHERE place = n - 1 AND refused_by IS NOT NULL
        );
    END IF;
END $$;

-- Delete a project with all that is its own: ended bots and what is kept of them, keys, webhook endpoints
-- and deliveries. One with a live bot stays. False: it has one.
CREATE OR REPLACE FUNCTION delete_project(p_project_id bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    -- A bot that is created meanwhile waits for this lock, and then finds no project.
    PERFORM FROM projects WHERE id = p_project_id FOR UPDATE;
    IF EXISTS (SELECT FROM bots WHERE project_id = p_project_id AND ended_at IS NULL) THEN
        RETURN false;
    END IF;
    DELETE FROM projects WHERE id = p_project_id;
    RETURN true;
END $$;
