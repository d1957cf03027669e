"""LeaseCheck: the check whether a write came too late."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botpool.errors import StaleLease

if TYPE_CHECKING:
    from botpool.store import Store


class LeaseCheck:
    """Checks, after a write that changed nothing, whether its lease was over."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def check(self, slot_id: int, lease: int, *, assigned: bool = False) -> None:
        """Raise `StaleLease` if the lease is not the current one.

        If `assigned`, also if the slot has no bot any more.
        """
        slot = await self._store.slots.get(slot_id)
        if slot.lease != lease:
            raise StaleLease(
                f"Lease {lease} of {slot.slot_name} is over: the current one is {slot.lease}."
            )
        if assigned and slot.assigned_bot_id is None:
            raise StaleLease(
                f"Lease {lease} of {slot.slot_name} is over: the slot is {slot.status}."
            )
