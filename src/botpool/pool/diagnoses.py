"""The diagnosis: asked for here, made by a worker, which calls the engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botpool.store.installation import ASKED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from botpool.models.diagnoses import Finding
    from botpool.models.transitions import Transition
    from botpool.pool.publisher import Publisher
    from botpool.store import Store


class Diagnoses:
    """Has doctor examine the installation, and tells that it has."""

    def __init__(self, store: Store, publisher: Publisher) -> None:
        self._store = store
        self._publisher = publisher

    async def ask(self, *, by: str) -> None:
        """Have the installation examined at once, by a worker."""
        await self._store.diagnoses.ask(by)
        self._publisher.wake(ASKED)

    async def record(self, replica: str, findings: Sequence[Finding]) -> list[Transition]:
        """Keep what a worker's doctor found."""
        return await self._publisher.publish(self._store.diagnoses.record(replica, findings))
