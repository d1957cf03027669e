"""Retention: what is old is deleted."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from botpool.settings import Settings
    from botpool.store import Store

_BATCH = 1000


class Retention:
    """Deletes what is older than the settings allow."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._settings = settings

    async def prune(self) -> int:
        """Delete what is older than the retention, and return how many rows that were."""
        store = self._store
        before = await store.installation.now() - timedelta(days=self._settings.retention_days)
        pruned = await store.transitions.prune(before)
        pruned += await store.pulls.prune(before) + await store.listening.prune(before)
        pruned += await store.replicas.prune(before) + await store.sessions.prune()
        while count := await store.bots.prune(before, _BATCH):
            pruned += count
        return pruned
