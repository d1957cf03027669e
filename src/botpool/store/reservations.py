"""Reservations in the database: the slots that replicas hold while they work on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botpool.store.queries import Queries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from botpool.models.slots import Slot
    from botpool.store.postgres.database import Database


class Reservations:
    """The queries of reservations.sql. `replica` is the one that asks."""

    def __init__(self, database: Database) -> None:
        self._queries = Queries(database, "reservations")

    async def reserve_due(
        self,
        replica: str,
        *,
        ttl_ms: int,
        most: int,
        hosts: Sequence[tuple[str, str]],
        deployment_limit_ms: int,
        engine: str,
    ) -> list[Slot]:
        """Reserve at most `most` due slots that have no host yet, or are on one of these hosts.

        A host is an engine's name and the host's name. Any replica may also reserve deployments
        that took too long, slots of engines that it doesn't have, slots that have to move to
        `engine`, and slots of hosts that are given up.
        """
        reachable = [f"{name}/{host}" for name, host in hosts]
        known = [*{name for name, _ in hosts}]
        return await self._queries.slots(
            "reserve_due",
            replica,
            ttl_ms,
            most,
            reachable,
            deployment_limit_ms,
            known,
            engine,
        )

    async def reserve(self, slot_id: int, replica: str, ttl_ms: int) -> Slot | None:
        """Reserve this slot, unless another replica has."""
        return await self._queries.slot("reserve", slot_id, replica, ttl_ms)

    async def renew(self, replica: str, slot_ids: Sequence[int], ttl_ms: int) -> set[int]:
        """Renew the reservations of these slots, and return those that the replica still has."""
        rows = await self._queries.rows("renew", replica, slot_ids, ttl_ms)
        return {row["id"] for row in rows}

    async def give_back(
        self, slot: Slot, replica: str, due_in_ms: float, error: str | None
    ) -> bool:
        """Give up the reservation of a slot, with the error if a step failed.

        Returns whether the slot is due at once.
        """
        row = await self._queries.row(
            "give_back",
            slot.id,
            replica,
            slot.lease,
            slot.status,
            due_in_ms,
            error,
            slot.wakes,
        )
        return row is not None and row["due_now"] is True

    async def drop(self, slot_id: int, replica: str) -> None:
        """Give up the reservation of a slot, and leave open when it is due."""
        await self._queries.run("drop", slot_id, replica)

    async def rest(self, slot_id: int, lease: int, replica: str) -> None:
        """Make a busy slot that the replica has reserved not due."""
        await self._queries.run("rest", slot_id, lease, replica)

    async def expired(self) -> list[Slot]:
        """Slots whose reservation has expired."""
        return await self._queries.slots("expired")

    async def abandon(self, slot_ids: Sequence[int]) -> bool:
        """Remove reservations that have expired. Returns whether there was one."""
        return await self._queries.found("abandon", slot_ids)
