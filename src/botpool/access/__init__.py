"""Access: API keys, browser sessions, and rate limits."""
