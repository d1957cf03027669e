-- Pulls: images on their way to hosts.

-- End the pulls on a host that starts were to bring, and that are over: the image is there once its
-- slot is busy, and another slot may try once the slot is proved stopped, or serves another. Returns
-- the images.
CREATE OR REPLACE FUNCTION settle_pulls(p_engine text, p_host text) RETURNS text[]
    LANGUAGE plpgsql AS $$
DECLARE
    v_settled text[];
BEGIN
    WITH settled AS (
        UPDATE image_pulls p
        SET status = CASE WHEN s.status = 'busy' THEN 'present' ELSE 'failed' END,
            error = CASE WHEN s.status = 'busy' THEN NULL ELSE 'its deployment came to nothing' END,
            retry_at = CASE WHEN s.status = 'busy' THEN NULL ELSE botpool_now() END,
            reserved_by = NULL, reserved_until = NULL, slot_id = NULL, lease = NULL,
            finished_at = botpool_now()
        FROM image_pulls held
        LEFT JOIN bot_pool_slots s ON s.id = held.slot_id AND s.lease = held.lease
        WHERE held.engine = p_engine AND held.host = p_host AND held.slot_id IS NOT NULL
            AND held.status = 'pulling'
            AND (s.status IS NULL OR s.status IN ('busy', 'idle'))
            AND p.engine = held.engine AND p.host = held.host AND p.image = held.image
            AND p.slot_id = held.slot_id AND p.lease = held.lease
        RETURNING p.image
    )
    SELECT array_agg(image) INTO v_settled FROM settled;
    RETURN coalesce(v_settled, '{}');
END $$;
