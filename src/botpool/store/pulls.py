"""Pulls in the database: which image is on which host, and which replica brings it there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botpool.models.pulls import ImagePull, PullKey
from botpool.store.queries import Queries

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from botpool.models.slots import Slot
    from botpool.models.transitions import Transition
    from botpool.store.postgres.database import Database


class Pulls:
    """The queries of pulls.sql."""

    def __init__(self, database: Database) -> None:
        self._queries = Queries(database, "pulls")

    async def take(
        self, key: PullKey, owner: str, ttl_ms: int, start_of: Slot | None = None
    ) -> ImagePull | None:
        """Reserve a pull if it is needed and free. In any case, return the pull as it is now.

        On engines whose starts bring the image, `start_of` is the slot that would do so.
        """
        slot_id, lease = (start_of.id, start_of.lease) if start_of else (None, None)
        row = await self._queries.row("take", *key, owner, ttl_ms, slot_id, lease)
        return None if row is None else ImagePull(**row)

    async def take_ahead(
        self, engine: str, host: str, owner: str, *, ttl_ms: int, again_ms: int
    ) -> ImagePull | None:
        """Reserve the pull of the next image that no bot has asked for yet on a host.

        None while another image is on its way there. After a failure it waits for `again_ms`, and
        longer after each further one.
        """
        row = await self._queries.row("take_ahead", engine, host, owner, ttl_ms, again_ms)
        return None if row is None else ImagePull(**row)

    async def start_ahead(
        self, engine: str, host: str, *, limit_ms: int, again_ms: int
    ) -> list[Transition]:
        """Let a slot be started without a bot, if its start brings an image that is not there.

        Not while a bot is launched on the host or waits.
        """
        return await self._queries.transitions("start_ahead", engine, host, limit_ms, again_ms)

    async def of_start(self, slot: Slot) -> ImagePull | None:
        """The pull that a slot's start is to bring, if it is not over."""
        row = await self._queries.row("of_start", slot.id, slot.lease)
        return None if row is None else ImagePull(**row)

    async def of_slot(self, slot: Slot) -> ImagePull | None:
        """The pull of a slot's image to its host, if there was one."""
        row = await self._queries.row("of_slot", slot.engine, slot.host, slot.image)
        return None if row is None else ImagePull(**row)

    async def urgent(self, key: PullKey) -> bool:
        """Whether bots on the host wait for another image, and none for this one."""
        return await self._queries.found("urgent", *key)

    async def give_up(self, key: PullKey, owner: str) -> None:
        """Let go of a pull, as if it had never been reserved."""
        await self._queries.run("give_up", *key, owner)

    async def ask(self, engine: str, host: str, images: Sequence[str], by: str) -> None:
        """Want images on a host."""
        await self._queries.run("ask", engine, host, images, by)

    async def asked(self, hosts: Sequence[tuple[str, str]]) -> list[ImagePull]:
        """The images that somebody wants on these hosts, and that no replica is bringing."""
        names = [f"{engine}/{host}" for engine, host in hosts]
        return [ImagePull(**row) for row in await self._queries.rows("asked", names)]

    async def lost(self, key: PullKey) -> None:
        """Note that an image that somebody asked for is not on its host any more."""
        await self._queries.run("lost", *key)

    async def refuse(self, key: PullKey, error: str) -> None:
        """Note that an image that somebody asked for can't be brought to its host."""
        await self._queries.run("refuse", *key, error)

    async def answer(self, key: PullKey) -> list[Transition]:
        """Tell whoever asked for an image that it is there, or why not."""
        return await self._queries.transitions("answer", *key)

    async def renew(
        self, key: PullKey, replica: str, ttl_ms: int, current: int, total: int
    ) -> bool:
        """Renew the reservation of a pull. Returns whether the replica still has it."""
        return await self._queries.found("renew", *key, replica, ttl_ms, current, total)

    async def finish(
        self, key: PullKey, replica: str, error: str | None, retry_in_ms: float
    ) -> None:
        """End a pull that the replica has: the image is there, or there was an error."""
        await self._queries.run("finish", *key, replica, error, retry_in_ms)

    async def settle(self, engine: str, host: str) -> list[PullKey]:
        """End the pulls on a host whose starts have succeeded or failed."""
        rows = await self._queries.rows("settle", engine, host)
        return [PullKey(engine, host, row["image"]) for row in rows]

    async def wake(self, key: PullKey, due_in_ms: float) -> None:
        """Make slots due that wait for this image."""
        await self._queries.run("wake", *key, due_in_ms)

    async def forget(self, key: PullKey) -> None:
        """Forget that an image is on a host."""
        await self._queries.run("forget", *key)

    async def all(self) -> list[ImagePull]:
        """Every image on every host."""
        return [ImagePull(**row) for row in await self._queries.rows("all")]

    async def expired(self) -> list[ImagePull]:
        """Pulls whose reservation has expired."""
        return [ImagePull(**row) for row in await self._queries.rows("expired")]

    async def abandon(self, key: PullKey) -> bool:
        """Free a pull whose reservation has expired. Returns whether it had."""
        return await self._queries.found("abandon", *key)

    async def prune(self, before: datetime) -> int:
        """Delete pulls from before `before` whose image no slot has."""
        return await self._queries.run("prune", before)
