"""The queries that the reconciler works with: claims, places, pulls, duties."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botpool.models import ImagePull
from botpool.store.base import Queries
from botpool.store.queries import QUERIES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from botpool.models import Slot

PullKey = tuple[str, str, str]
"""An engine, a host and an image."""


class WorkQueries(Queries):
    """The queries of sql/work.sql and sql/pulls.sql. `replica` is who asks."""

    # Claims

    async def claim_slots(
        self,
        replica: str,
        ttl_ms: int,
        most: int,
        hosts: Sequence[tuple[str, str]],
        deploy_timeout_ms: int,
        engine: str,
        nobodys_after_ms: int,
    ) -> list[Slot]:
        """Take at most so many slots that are due, on no host yet or on one of these.

        A host is an engine's name and its own. Anybody's are deployments that took too long, slots
        of engines that are not among these, those that are to move to `engine`, and those of hosts
        that nobody has had for so long.
        """
        reachable = [f"{name}/{host}" for name, host in hosts]
        known = [*{name for name, _ in hosts}]
        return await self._slots(
            *("claim_slots", replica, ttl_ms, most, reachable, deploy_timeout_ms, known, engine),
            nobodys_after_ms,
        )

    async def claim_slot(self, slot_id: int, replica: str, ttl_ms: int) -> Slot | None:
        """Take this slot, unless somebody else has it."""
        return await self._slot("claim_slot", slot_id, replica, ttl_ms)

    async def renew_claims(self, replica: str, slot_ids: Sequence[int], ttl_ms: int) -> set[int]:
        """Go on having these slots, and return those that we still have."""
        rows = await self._database.fetch(QUERIES["renew_claims"], replica, slot_ids, ttl_ms)
        return {row["id"] for row in rows}

    async def return_slot(
        self, taken: Slot, replica: str, due_in_ms: float, error: str | None
    ) -> bool:
        """Let go of a slot, on which the work may have failed. Whether it is due at once."""
        row = await self._database.fetch_one(
            QUERIES["return_slot"],
            *(taken.id, replica, taken.lease, taken.status, due_in_ms, error, taken.wakes),
        )
        return row is not None and row["due_now"] is True

    async def drop_claim(self, slot_id: int, replica: str) -> None:
        """Let go of a slot, whenever it is due."""
        await self._database.execute(QUERIES["drop_claim"], slot_id, replica)

    async def rest_slot(self, slot_id: int, lease: int, replica: str) -> None:
        """Let a busy slot that is ours not be due."""
        await self._database.execute(QUERIES["rest_slot"], slot_id, lease, replica)

    # Deployments

    async def place_slot(self, taken: Slot, hosts: Sequence[str], most: int | None) -> Slot | None:
        """Put a slot that has no host on the one that has the fewest slots, and fewer than `most`.

        Without such a host it stays without.
        """
        return await self._slot("place_slot", taken.id, taken.lease, taken.engine, hosts, most)

    async def admit_deployment(
        self, slot: Slot, most: int, rest_ms: int, *, waiting: str, resting: str
    ) -> float | None:
        """Let a deployment onto its host, if fewer than `most` are under way there.

        Returns 0 if it was. Those who came before and wait go first: without room, its deployment
        status is `waiting`, and None returned. If its bot has just failed there, it is `resting`,
        and the seconds that it still has to are returned: `rest_ms` for each launch.
        """
        row = await self._database.fetch_one(
            *(QUERIES["admit_deployment"], slot.id, slot.lease, most, rest_ms, waiting, resting)
        )
        return None if row is None else row["wait"]

    async def wake_deployments(self, engine: str, host: str, most: int, waiting: str) -> None:
        """Let those whose deployment status is `waiting` be due, while there is room."""
        await self._database.execute(QUERIES["wake_deployments"], engine, host, most, waiting)

    async def make_room(self, slot_id: int, most: int, waiting: str) -> list[PullKey]:
        """Wake those who wait for room on a slot's host, unless somebody works on the slot.

        Returns the pulls that are over by it.
        """
        rows = await self._database.fetch(QUERIES["make_room"], slot_id, most, waiting)
        return [(row["engine"], row["host"], row["image"]) for row in rows]

    async def set_slot_token(self, taken: Slot, replica: str, digest: bytes, url: str) -> bool:
        """Note what the token of the slot's next container hashes to, if the slot is ours.

        `url` is what that container calls us by.
        """
        return await self._found("set_slot_token", taken.id, taken.lease, replica, digest, url)

    async def get_slot_of_token(self, digest: bytes) -> Slot | None:
        """The slot whose present container has the token with this hash."""
        return await self._slot("get_slot_of_token", digest)

    async def give_up_container(
        self, slot: Slot, engine: str, image: str | None, *, move: bool = False
    ) -> Slot | None:
        """Let a slot have no container, and the next one on this engine and of this image.

        If it is to `move`, or the engine is another one, that is on another host.
        """
        return await self._slot("give_up_container", slot.id, slot.lease, engine, image, move)

    async def put_off_recovery(self, slot_id: int, lease: int, message: str) -> int:
        """Count a failed recovery, and return how many there were."""
        row = await self._database.fetch_one(QUERIES["put_off_recovery"], slot_id, lease, message)
        return 0 if row is None else int(row["recovery_attempts"])

    async def keep_container_logs(
        self, bot_id: int, slot_id: int, lease: int, lines: Sequence[str]
    ) -> None:
        """Keep what a container wrote. What is kept already stays."""
        await self._database.execute(QUERIES["keep_container_logs"], bot_id, slot_id, lease, lines)

    async def has_container_logs(self, bot_id: int, slot_id: int, lease: int) -> bool:
        """Whether what a container wrote under a lease is kept."""
        return await self._found("has_container_logs", bot_id, slot_id, lease)

    async def had_container(self, container_ref: str) -> bool:
        """Whether a bot that we know ran in this container."""
        return await self._found("had_container", container_ref)

    async def get_container_logs(self, bot_id: int) -> list[str]:
        """What the containers of a bot wrote."""
        rows = await self._database.fetch(QUERIES["get_container_logs"], bot_id)
        return [line for row in rows for line in row["lines"]]

    async def list_slots_of_host(self, engine: str, host: str) -> list[Slot]:
        """The slots that have a container on a host."""
        return await self._slots("list_slots_of_host", engine, host)

    # Pulls

    async def take_pull(
        self, key: PullKey, owner: str, ttl_ms: int, start_of: Slot | None = None
    ) -> ImagePull | None:
        """Take a pull if it is needed and nobody has it; whoever has it, return how it stands.

        `start_of` is the slot whose start brings the image, where one does.
        """
        slot_id, lease = (start_of.id, start_of.lease) if start_of else (None, None)
        row = await self._database.fetch_one(
            QUERIES["take_pull"], *key, owner, ttl_ms, slot_id, lease
        )
        return None if row is None else ImagePull(**row)

    async def settle_pulls(self, engine: str, host: str) -> list[PullKey]:
        """End the pulls on a host whose starts have come to something, or to nothing."""
        rows = await self._database.fetch(QUERIES["settle_pulls"], engine, host)
        return [(engine, host, row["image"]) for row in rows]

    async def renew_pull(
        self, key: PullKey, replica: str, ttl_ms: int, current: int, total: int
    ) -> bool:
        """Go on pulling, and return whether the pull is still ours."""
        return await self._found("renew_pull", *key, replica, ttl_ms, current, total)

    async def finish_pull(
        self, key: PullKey, replica: str, error: str | None, retry_in_ms: float
    ) -> None:
        """End a pull that is ours: the image is there, or there was an error."""
        await self._database.execute(QUERIES["finish_pull"], *key, replica, error, retry_in_ms)

    async def wake_pull(self, key: PullKey, waiting: str, due_in_ms: float) -> None:
        """Let those be due that want this image, and whose deployment status is `waiting`."""
        await self._database.execute(QUERIES["wake_pull"], *key, waiting, due_in_ms)

    async def forget_pull(self, key: PullKey) -> None:
        """Forget that an image is on a host."""
        await self._database.execute(QUERIES["forget_pull"], *key)

    async def list_pulls(self) -> list[ImagePull]:
        """Every image on every host."""
        return [ImagePull(**row) for row in await self._database.fetch(QUERIES["list_pulls"])]

    async def prune_pulls(self, before: datetime) -> int:
        """Forget images that no slot has, pulled before `before`."""
        return await self._database.execute(QUERIES["prune_pulls"], before)

    # The rest

    async def take_duty(self, name: str, every_ms: int) -> bool:
        """Take on what is done every so often, if it is due."""
        return await self._found("take_duty", name, every_ms)

    async def announce(self, channels: Sequence[str]) -> None:
        """Wake those who listen on these channels."""
        await self._database.execute(QUERIES["announce"], channels)

    async def get_installation(self) -> str:
        """What this botpool calls itself on engines."""
        (row,) = await self._database.fetch(QUERIES["get_installation"])
        name: str = row["id"]
        return name
