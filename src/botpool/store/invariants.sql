-- name: broken
-- Whatever does not hold now that must always hold: the promise, and the row that breaks it. The
-- constraints refuse most of it; this looks at all of it from outside.
SELECT 'a slot has a bot while it deploys or is busy, and only then' AS promise, slot_name AS subject
FROM bot_pool_slots WHERE (status IN ('deploying', 'busy')) <> (assigned_bot_id IS NOT NULL)
UNION ALL
SELECT 'a bot has at most one slot', min(slot_name)
FROM bot_pool_slots WHERE assigned_bot_id IS NOT NULL
GROUP BY assigned_bot_id HAVING count(*) > 1
UNION ALL
SELECT 'a slot serves bots of its own platform', s.slot_name
FROM bot_pool_slots s JOIN bots b ON b.id = s.assigned_bot_id WHERE b.platform <> s.platform
UNION ALL
SELECT 'a platform has at most its maximum of slots, and they are counted', platform
FROM pools p, LATERAL (SELECT count(*) FROM bot_pool_slots s WHERE s.platform = p.platform) slots
WHERE count > max_size OR count <> size
UNION ALL
SELECT 'the bots that wait are counted', platform || ', priority ' || priority
FROM (
    SELECT platform, priority, queue_block(bot_id) AS block, 1 AS bots FROM bot_pool_queue
    UNION ALL
    SELECT platform, priority, block, -bots FROM waiting_bots
) count
GROUP BY platform, priority, block HAVING sum(bots) <> 0
UNION ALL
SELECT 'a live bot is in the queue or on a slot', b.id::text
FROM bots b
LEFT JOIN bot_pool_queue q ON q.bot_id = b.id
LEFT JOIN bot_pool_slots s ON s.assigned_bot_id = b.id
WHERE b.ended_at IS NULL
    AND ((b.status = 'QUEUED') <> (q.id IS NOT NULL) OR (b.status = 'QUEUED') = (s.id IS NOT NULL))
UNION ALL
SELECT 'an ended bot has no place', b.id::text
FROM (
    SELECT bot_id FROM bot_pool_queue
    UNION ALL
    SELECT assigned_bot_id FROM bot_pool_slots WHERE assigned_bot_id IS NOT NULL
) place
JOIN bots b ON b.id = place.bot_id
WHERE b.ended_at IS NOT NULL
UNION ALL
SELECT 'no bot waits beside an idle slot', q.bot_id::text
FROM bot_pool_queue q
WHERE timeout_at > (SELECT botpool_now()) AND NOT is_paused(q.platform)
    AND EXISTS (
        SELECT FROM bot_pool_slots s
        WHERE s.platform = q.platform AND s.status = 'idle' AND NOT held
    )
UNION ALL
SELECT 'no bot waits while the pool can grow', q.bot_id::text
FROM bot_pool_queue q JOIN pools p USING (platform)
WHERE timeout_at > (SELECT botpool_now()) AND paused_at IS NULL
    AND max_size > (SELECT count(*) FROM bot_pool_slots s WHERE s.platform = q.platform)
    AND EXISTS (SELECT FROM open_hosts(p.engine) WHERE room IS NULL OR room > 0)
    AND NOT EXISTS (SELECT FROM open_hosts(p.engine) WHERE probe)
UNION ALL
SELECT 'a bot with a longest stay is looked at when that is over', s.slot_name
FROM bot_pool_slots s JOIN bots b ON b.id = s.assigned_bot_id
WHERE s.status = 'busy' AND b.ended_at IS NULL AND b.max_duration_ms IS NOT NULL
    AND (s.due_at IS NULL OR s.due_at > greatest(b.started_at + longest_stay(b), botpool_now()) + interval '1 hour');

-- name: broken_history
-- Whatever does not follow from the transitions: the promise, and the row that breaks it. It reads all of
-- them, for tests and simulations that keep every one. What it finds, it finds again later.
SELECT
    'a lease grows by one with every assignment, and with every start without a bot' AS promise,
    slot_name AS subject
FROM (
    SELECT slot_name, lease, lag(lease, 1, 0::bigint) OVER (PARTITION BY slot_id ORDER BY id) AS before
    FROM transitions
    WHERE machine = 'slot' AND from_status IS DISTINCT FROM to_status
        AND (to_status = 'deploying' OR (from_status = 'idle' AND to_status = 'releasing'))
) assignment
WHERE lease <> before + 1
UNION ALL
SELECT 'a slot is at the lease of its last start', s.slot_name
FROM bot_pool_slots s
JOIN (
    SELECT slot_id, max(lease) AS lease FROM transitions
    WHERE machine = 'slot'
        AND (to_status = 'deploying' OR (from_status = 'idle' AND to_status = 'releasing'))
    GROUP BY slot_id
) last ON last.slot_id = s.id
WHERE s.lease <> last.lease
UNION ALL
SELECT 'every change of status is one transition', machine || ' ' || subject
FROM (
    SELECT
        machine, subject, from_status,
        lag(to_status) OVER (PARTITION BY machine, subject ORDER BY id) AS before
    FROM (
        SELECT *, CASE machine WHEN 'slot' THEN slot_id ELSE bot_id END AS subject FROM transitions
        WHERE machine IN ('slot', 'bot')
    ) t
) step
WHERE from_status IS DISTINCT FROM before
UNION ALL
SELECT 'the last transition tells the status', machine || ' ' || subject
FROM (
    SELECT 'bot' AS machine, id AS subject, status FROM bots
    UNION ALL
    SELECT 'slot', id, status FROM bot_pool_slots
) thing
LEFT JOIN (
    SELECT DISTINCT ON (machine, subject) machine, subject, to_status
    FROM (
        SELECT *, CASE machine WHEN 'slot' THEN slot_id ELSE bot_id END AS subject FROM transitions
        WHERE machine IN ('slot', 'bot')
    ) t
    ORDER BY machine, subject, id DESC
) last USING (machine, subject)
WHERE status IS DISTINCT FROM to_status;
