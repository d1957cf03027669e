"""What bots and slots wait for, as far as it takes more than their own rows to tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botpool.models.waiting import Surroundings

if TYPE_CHECKING:
    from botpool.states import Platform
    from botpool.store import Store


async def surroundings(store: Store, platform: Platform | None = None) -> Surroundings:
    """What has to be known of the rest. `platform` is that of a bot in the queue."""
    counts = await store.replicas.counts()
    numbers = await store.pools.numbers() if platform else []
    return Surroundings(
        workers=counts.worker,
        full=any(row.platform is platform and row.total >= row.max_size for row in numbers),
        pulls={pull.key: pull for pull in await store.pulls.all()},
    )
