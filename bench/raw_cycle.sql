-- One bot's life as raw SQL: create it on an idle slot, end it, free the slot. The same rows that the
-- pool writes, in as few statements as can be, with no lock, no queue and no look at the lease.
WITH idle AS MATERIALIZED (
    SELECT id AS idle_id FROM bot_pool_slots WHERE platform = 'google-meet' AND status = 'idle' AND NOT held
    ORDER BY last_used_at, id LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED
), slot AS (
    UPDATE bot_pool_slots
    SET status = 'deploying', assigned_bot_id = nextval('bots_id_seq'), lease = lease + 1,
        last_used_at = clock_timestamp(), last_assigned_at = clock_timestamp()
    FROM idle WHERE id = idle_id
    RETURNING *
), bot AS (
    INSERT INTO bots (
        id, platform, meeting_url, bot_display_name, status, priority, queue_timeout_ms,
        correlation_id, metadata, config, launch_attempts, slot_name, container_ref, created_at
    )
    SELECT
        assigned_bot_id, platform, 'https://meet.google.com/abc-defg-hij', 'Bench', 'DEPLOYING', 100,
        300000, '00000000-0000-0000-0000-000000000000', '{}', '{}', 1, slot_name, container_ref,
        last_assigned_at
    FROM slot
), written AS (
    INSERT INTO transitions (
        at, machine, platform, from_status, to_status,
        slot_id, slot_name, container_ref, lease, bot_id, correlation_id, reason
    )
    SELECT
        last_assigned_at, machine, platform, from_status, to_status, id, slot_name, container_ref,
        lease, assigned_bot_id, '00000000-0000-0000-0000-000000000000', 'assigned to an idle slot'
    FROM slot, (
        VALUES ('slot', 'idle', 'deploying'), ('bot', NULL, 'DEPLOYING')
    ) step (machine, from_status, to_status)
)
SELECT id AS slot_id, assigned_bot_id AS bot_id FROM slot \gset

WITH slot AS (
    UPDATE bot_pool_slots
    SET status = 'releasing', assigned_bot_id = NULL, last_released_at = clock_timestamp()
    WHERE id = :slot_id
    RETURNING *
), bot AS (
    UPDATE bots SET status = 'DONE', ended_at = clock_timestamp() WHERE id = :bot_id
    RETURNING *
)
INSERT INTO transitions (
    at, machine, platform, from_status, to_status,
    slot_id, slot_name, container_ref, lease, bot_id, correlation_id, reason, details
)
SELECT
    last_released_at, machine, slot.platform, from_status, to_status, slot.id, slot.slot_name,
    slot.container_ref, slot.lease, bot.id, correlation_id, 'the bot is done', '{"botStatus": "DONE"}'
FROM slot, bot, (
    VALUES ('slot', 'deploying', 'releasing'), ('bot', 'DEPLOYING', 'DONE')
) step (machine, from_status, to_status);

WITH slot AS (
    UPDATE bot_pool_slots SET status = 'idle' WHERE id = :slot_id
    RETURNING *
)
INSERT INTO transitions (
    at, machine, platform, from_status, to_status,
    slot_id, slot_name, container_ref, lease, reason, details
)
SELECT
    clock_timestamp(), 'slot', platform, 'releasing', 'idle', id, slot_name, container_ref, lease,
    'container stopped', '{"occupiedMs": 1000}'
FROM slot;
