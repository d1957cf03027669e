-- name: note_failure
-- Note what has failed on a host ($1). $2 failures, each within $3 ms of the one before, make it
-- unhealthy, to be probed in $4 ms. Returns whether it is unhealthy since this moment.
SELECT note_failure($1::jsonb, $2, $3, $4) AS unhealthy;

-- name: note_success
-- Something went well on a host on which something had failed; $3: no more than that it answers.
SELECT * FROM note_success($1, $2, $3);

-- name: note_launch
-- A slot is busy, by any sign: its launch is a success of its host, if something had failed there.
SELECT t.*
FROM bot_pool_slots s
JOIN hosts h ON h.engine = s.engine AND h.host = s.host AND (h.failed <> '{}' OR h.unhealthy_since IS NOT NULL),
    LATERAL note_success(s.engine, s.host, false) t
WHERE s.id = $1;

-- name: has_failed
-- Whether something has failed on a host since something last went well there.
SELECT * FROM hosts
WHERE engine = $1 AND host = $2 AND (failed <> '{}' OR unhealthy_since IS NOT NULL);

-- name: probe
-- Let one slot of each unhealthy host be taken, where it is time for that.
SELECT * FROM probe_hosts();

-- name: could_serve
-- Whether a bot of a platform ($1) that is on a host of an engine ($2, $3) could have a slot on another one: an
-- idle slot with a container; or any, or room for one, where no pull of its image ($4) fails, or whatever pulls
-- do ($5). Nobody gets a slot while the platform is paused.
SELECT FROM (
    SELECT o.host, o.room FROM open_hosts($2) o
    WHERE o.host <> $3 AND NOT o.probe AND NOT is_paused($1)
) other
LEFT JOIN image_pulls p ON p.engine = $2 AND p.host = other.host AND p.image = $4 AND p.error IS NOT NULL
LEFT JOIN LATERAL (
    SELECT container_ref IS NOT NULL AS made FROM bot_pool_slots s
    WHERE s.platform = $1 AND s.status = 'idle' AND NOT s.held AND s.engine = $2 AND s.host = other.host
    ORDER BY made DESC
    LIMIT 1
) idle ON true
WHERE idle.made
    OR ((p.image IS NULL OR $5) AND (idle.made IS NOT NULL OR other.room IS NULL OR other.room > 0))
LIMIT 1;

-- name: all
-- Every host that something was tried on, or that has slots.
SELECT
    coalesce(h.engine, s.engine) AS engine, coalesce(h.host, s.host) AS host,
    coalesce(h.open, false) AS open, h.capacity, h.drained_at,
    coalesce(s.slots, 0) AS slots, coalesce(s.running, 0) AS running,
    coalesce(cardinality(h.failed), 0) AS failures, h.reason, h.unhealthy_since, h.probe_at
FROM hosts h
FULL JOIN (
    SELECT engine, host, count(*) AS slots, count(assigned_bot_id) AS running
    FROM bot_pool_slots WHERE host IS NOT NULL
    GROUP BY engine, host
) s ON s.engine = h.engine AND s.host = h.host
ORDER BY 1, 2;

-- name: report
-- Note what a replica tells of the hosts ($2) of an engine ($1). Bots that wait get the room.
SELECT * FROM report_hosts($1, $2::jsonb);

-- name: keep
-- Note that a replica keeps these hosts ($1), and says so every $2 ms. Bots that wait get their room.
SELECT * FROM keep_hosts($1::text[], $2);

-- name: drain
-- Let a host get no new work ($3), or get it again.
SELECT * FROM drain_host($1, $2, $3);

-- name: admit_deployment
-- Let a deployment begin on its host, if it is its turn and its bot has not just failed there; else record
-- that it waits.
SELECT admit_deployment($1, $2, $3, $4) AS wait;

-- name: wake_deployments
-- Let deployments that wait for their turn on a host be due, as many as may begin.
SELECT wake_deployments($1, $2, $3);

-- name: pass_turn
-- A slot's deployment is over, and by its bot's own word ($3), or no replica works on it: let those that
-- wait for their turn on its host be due. Returns the images that starts have brought there.
SELECT engine, host, unnest(settle_pulls(engine, host)) AS image
FROM bot_pool_slots, wake_deployments(engine, host, $2)
WHERE id = $1 AND (reserved_by IS NULL OR $3) AND host IS NOT NULL;

-- name: launches
-- How many launches went well and how many failed on each host since $1, on the slots that it still has.
SELECT
    s.engine, s.host,
    count(*) FILTER (WHERE t.to_status = 'busy') AS launched,
    count(*) FILTER (WHERE t.to_status = 'error') AS failed
FROM transitions t JOIN bot_pool_slots s ON s.id = t.slot_id
WHERE t.at >= $1 AND t.machine = 'slot' AND t.from_status = 'deploying' AND t.to_status <> 'deploying'
    AND s.host IS NOT NULL
GROUP BY s.engine, s.host;
