"""Hosts in the database: their health, and the deployments that run on each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botpool.models.hosts import Host, HostLaunches
from botpool.models.pulls import PullKey
from botpool.store.queries import Queries

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from botpool.models.hosts import HostFailure, HostReport
    from botpool.models.slots import Slot
    from botpool.models.transitions import Transition
    from botpool.store.postgres.database import Database


class Hosts:
    """The queries of hosts.sql."""

    def __init__(self, database: Database) -> None:
        self._queries = Queries(database, "hosts")

    async def all(self) -> list[Host]:
        """Every host that has slots, or on which something failed."""
        return [Host(**row) for row in await self._queries.rows("all")]

    async def report(self, engine: str, hosts: Sequence[HostReport]) -> list[Transition]:
        """Record what a replica reports about the hosts of an engine. Waiting bots get the room."""
        return await self._queries.transitions("report", engine, hosts)

    async def keep(self, hosts: Sequence[tuple[str, str]], every_ms: int) -> list[Transition]:
        """Record that a replica keeps these hosts, and says so every `every_ms`.

        Waiting bots get the room of one that was given up.
        """
        names = [f"{engine}/{host}" for engine, host in hosts]
        return await self._queries.transitions("keep", names, every_ms)

    async def drain(self, engine: str, host: str, *, drain: bool) -> list[Transition]:
        """Drain a host, so that it gets no new work, or undrain it."""
        return await self._queries.transitions("drain", engine, host, drain)

    async def could_serve(self, slot: Slot, *, any_pull: bool) -> bool:
        """Whether the bot of a slot could have a slot on another host than this one.

        Not where the image would have to be pulled and pulls of it fail, unless with `any_pull`.
        """
        return await self._queries.found(
            "could_serve", slot.platform, slot.engine, slot.host, slot.image, any_pull
        )

    # Health

    async def note_failure(
        self, failure: HostFailure, *, most: int, within_ms: int, probe_in_ms: int
    ) -> bool:
        """Note a failure on a host. Returns whether this made the host unhealthy."""
        row = await self._queries.row("note_failure", failure, most, within_ms, probe_in_ms)
        return row is not None and row["unhealthy"]

    async def has_failed(self, engine: str, host: str) -> bool:
        """Whether something failed on a host since its last success."""
        return await self._queries.found("has_failed", engine, host)

    async def note_success(self, engine: str, host: str, *, answers_only: bool) -> list[Transition]:
        """Note that something went well on a host, or only that it answers.

        If it is healthy now, bots that wait get its slots.
        """
        return await self._queries.transitions("note_success", engine, host, answers_only)

    async def note_launch(self, slot_id: int) -> list[Transition]:
        """Note that a launch went well on a slot's host. Bots that wait get its slots."""
        return await self._queries.transitions("note_launch", slot_id)

    async def probe(self) -> list[Transition]:
        """Let one slot of each unhealthy host get a bot, if the host is due for a probe."""
        return await self._queries.transitions("probe")

    async def launches(self, since: datetime) -> list[HostLaunches]:
        """How launches went on each host since then."""
        return [HostLaunches(**row) for row in await self._queries.rows("launches", since)]

    # Deployments

    async def admit_deployment(self, slot: Slot, most: int, pause_ms: int) -> float | None:
        """Let a deployment begin on its host, if fewer than `most` are under way there.

        Returns 0 if it may begin. Returns None if it has to wait for its turn, because earlier
        deployments go first. If its bot has just failed there, the deployment pauses for `pause_ms`
        times the launches so far; then it returns how many seconds of that are left.
        """
        row = await self._queries.row("admit_deployment", slot.id, slot.lease, most, pause_ms)
        return None if row is None else row["wait"]

    async def wake_deployments(self, engine: str, host: str, most: int) -> None:
        """Make deployments due that wait for their turn, as many as may begin."""
        await self._queries.run("wake_deployments", engine, host, most)

    async def pass_turn(self, slot_id: int, most: int, *, heard: bool) -> list[PullKey]:
        """Wake deployments that wait for their turn on a slot's host.

        If the bot itself was not `heard`, only if the slot is not reserved: otherwise the replica
        that works on it does. Returns the pulls that ended because the slot runs.
        """
        rows = await self._queries.rows("pass_turn", slot_id, most, heard)
        return [PullKey(row["engine"], row["host"], row["image"]) for row in rows]
