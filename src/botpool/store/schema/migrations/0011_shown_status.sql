-- When what a slot does is to be shown in its engine's own interface, whoever noticed it; NULL once it is
-- shown. What passes in seconds is shown only if it lasts.
ALTER TABLE bot_pool_slots ADD COLUMN show_at timestamptz;
CREATE INDEX bot_pool_slots_show_at ON bot_pool_slots (show_at) WHERE show_at IS NOT NULL;
