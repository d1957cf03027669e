-- Events: what happened, as everyone is told. A webhook, the stream and a timeline tell a happening in these
-- words, and in no others: {id, type, timestamp, data}. Its id is the same wherever it is told.

-- As receivers get it, whatever the time zone of the session.
CREATE OR REPLACE FUNCTION iso_time(p_at timestamptz) RETURNS text LANGUAGE sql IMMUTABLE
    AS $$ SELECT to_char(p_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') $$;

CREATE OR REPLACE FUNCTION event(p_id bigint, p_type text, p_at timestamptz, p_data jsonb)
    RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT jsonb_build_object(
        'id', 'evt_' || p_id, 'type', p_type, 'timestamp', iso_time(p_at), 'data', p_data
    )
$$;

-- A transition as an event. p_bot is its bot, NULL if it has none or if that is deleted. One that leaves the
-- status as it was is a note. What happens to a pool or a host, or what doctor
-- tells, is of no slot and no bot.
CREATE OR REPLACE FUNCTION transition_event(p_step transitions, p_bot bots) RETURNS jsonb
    LANGUAGE sql STABLE AS $$
    SELECT event(
        p_step.id,
        p_step.machine || CASE
            WHEN p_step.from_status = p_step.to_status THEN '.noted' ELSE '.status_changed'
        END,
        p_step.at,
        jsonb_build_object(
            'platform', p_step.platform,
            'status', p_step.to_status,
            'previousStatus', p_step.from_status,
            'reason', p_step.reason,
            'details', p_step.details
        ) || CASE
            WHEN p_step.machine IN ('pool', 'host', 'doctor') THEN '{}'
            ELSE jsonb_build_object(
                'slotId', p_step.slot_id,
                'slotName', p_step.slot_name,
                'containerRef', p_step.container_ref,
                'lease', p_step.lease,
                'botId', p_step.bot_id,
                'correlationId', p_step.correlation_id
            )
        END || CASE p_step.machine
            WHEN 'bot' THEN jsonb_build_object(
                'meetingUrl', p_bot.meeting_url,
                'botDisplayName', p_bot.bot_display_name,
                'metadata', coalesce(p_bot.metadata, '{}'),
                -- An ended bot changes no more, so its row still has what it ended with.
                'failureCause', CASE WHEN p_step.to_status = p_bot.status THEN p_bot.failure_cause END,
                'failureReason', CASE WHEN p_step.to_status = p_bot.status THEN p_bot.failure_reason END
            )
            ELSE '{}'
        END
    )
$$;

-- What a bot reported, as an event.
CREATE OR REPLACE FUNCTION reported_event(p_event bot_events, p_bot bots) RETURNS jsonb
    LANGUAGE sql STABLE AS $$
    SELECT event(p_event.id, 'bot.event', p_event.at, jsonb_build_object(
        'platform', p_bot.platform,
        'botId', p_bot.id,
        'correlationId', p_bot.correlation_id,
        'meetingUrl', p_bot.meeting_url,
        'botDisplayName', p_bot.bot_display_name,
        'metadata', p_bot.metadata,
        'event', jsonb_build_object('type', p_event.type, 'data', p_event.data)
    ))
$$;

-- After a restore into another server, rows have numbers of transactions that this server has yet to reach: the
-- feed would hold them back until then, and tell of them anew. They are settled, before all that is written here.
CREATE OR REPLACE FUNCTION settle_restored() RETURNS void LANGUAGE sql AS $$
    UPDATE transitions SET xid = '1' WHERE xid >= pg_snapshot_xmax(pg_current_snapshot());
    UPDATE bot_events SET xid = '1' WHERE xid >= pg_snapshot_xmax(pg_current_snapshot());
$$;
