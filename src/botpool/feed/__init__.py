"""The feed: every transition, as a stream and as webhooks."""
