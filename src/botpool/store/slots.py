"""Slots in the database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botpool.errors import SlotNotFound
from botpool.models.keys import token_digest
from botpool.store.queries import Queries

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from botpool.models.assignments import Ending, FailedLaunch, Lease
    from botpool.models.pulls import PullKey
    from botpool.models.slots import ImportedSlot, Slot, SlotPage, WaitsFor
    from botpool.models.transitions import Transition
    from botpool.states import BotStatus, SlotStatus
    from botpool.store.postgres.database import Database


class Slots:
    """The queries of slots.sql."""

    def __init__(self, database: Database) -> None:
        self._queries = Queries(database, "slots")

    # Looked up

    async def get(self, slot_id: int) -> Slot:
        """One slot. Raises `SlotNotFound`."""
        found = await self.find(slot_id)
        if found is None:
            raise SlotNotFound(f"There is no slot {slot_id}.")
        return found

    async def find(self, slot_id: int) -> Slot | None:
        """One slot, if there is one."""
        return await self._queries.slot("get", slot_id)

    async def of_bot(self, bot_id: int) -> Slot | None:
        """The slot that a bot is on now."""
        return next(iter(await self.of_bots([bot_id])), None)

    async def of_bots(self, bot_ids: Sequence[int]) -> list[Slot]:
        """The slots that these bots are on now."""
        return await self._queries.slots("of_bots", bot_ids)

    async def of_token(self, token: str) -> Slot | None:
        """The slot whose current container has this token."""
        return await self._queries.slot("of_token", token_digest(token))

    async def of_host(self, engine: str, host: str) -> list[Slot]:
        """The slots that have a container on a host."""
        return await self._queries.slots("of_host", engine, host)

    async def without_container(
        self, engine: str, host: str, *, pulls_at_start: bool
    ) -> list[Slot]:
        """Idle slots of a host that have no container yet, and whose image is there."""
        return await self._queries.slots("without_container", engine, host, pulls_at_start)

    async def all(self) -> list[Slot]:
        """Every slot, by name."""
        return await self._queries.slots("all")

    async def page(self, page: SlotPage) -> list[Slot]:
        """One page of slots, by name."""
        return await self._queries.slots("page", page)

    # Assignments end

    async def end_assignments(self, endings: Sequence[Ending]) -> list[Transition]:
        """End each assignment whose lease is the current one."""
        return await self._queries.transitions("end_assignments", endings)

    async def relaunch(
        self, failed: FailedLaunch, relaunchable: Iterable[BotStatus], max_attempts: int
    ) -> list[Transition]:
        """Take a bot in one of `relaunchable` off its slot, and back to its place in the queue."""
        return await self._queries.transitions("relaunch", failed, list(relaunchable), max_attempts)

    async def fail(self, slot_id: int, lease: int, message: str) -> list[Transition]:
        """Put a slot that is releasing into error."""
        return await self._queries.transitions("fail", slot_id, lease, message)

    async def make_idle(
        self, leases: Sequence[Lease], source: SlotStatus, reason: str
    ) -> list[Transition]:
        """Make each slot idle that is in `source` under its lease. Waiting bots get it at once."""
        slot_ids = [slot_id for slot_id, _ in leases]
        return await self._queries.transitions(
            "make_idle", slot_ids, [lease for _, lease in leases], source, reason
        )

    # Slots come and go

    async def import_(self, slot: ImportedSlot) -> list[Transition]:
        """Add a slot for an existing container, which has to be proved stopped."""
        return await self._queries.transitions("import", slot)

    async def delete(self, slot_id: int, lease: int, reason: str) -> list[Transition]:
        """Delete a slot that is in error or drained."""
        return await self._queries.transitions("delete", slot_id, lease, reason)

    async def drain(self, slot_id: int, reason: str, *, tell: bool) -> list[Transition]:
        """Give a slot no further bot, and `tell` if it is not deleted at once."""
        return await self._queries.transitions("drain", slot_id, reason, tell)

    async def remove(self, slot_id: int, reason: str) -> list[Transition]:
        """Delete a slot that has no bot, now or as soon as its container is proved stopped."""
        return await self._queries.transitions("remove", slot_id, reason)

    async def ask_comparison(self, slot_id: int) -> None:
        """Want to know what the engine says of a slot."""
        await self._queries.run("ask_comparison", slot_id)

    async def asked_comparisons(self, hosts: Sequence[tuple[str, str]]) -> list[Slot]:
        """The slots on these hosts of which somebody wants to know what the engine says."""
        names = [f"{engine}/{host}" for engine, host in hosts]
        return await self._queries.slots("asked_comparisons", names)

    async def record_comparison(self, slot_id: int, state: str, said: str) -> list[Transition]:
        """Record what the engine says of a slot, if somebody still wants to know."""
        return await self._queries.transitions("record_comparison", slot_id, state, said)

    async def retry(self, slot_id: int) -> bool:
        """Have a slot in error repaired at once. Returns whether it was in error."""
        return await self._queries.found("retry", slot_id)

    async def count_failed_repair(self, slot: Slot, message: str, most: int) -> list[Transition]:
        """Count and tell a failed repair of a slot, of at most so many."""
        return await self._queries.transitions(
            "count_failed_repair", slot.id, slot.lease, message, most
        )

    # Containers and deployments

    async def set_token(self, slot: Slot, replica: str, token: str) -> bool | None:
        """Record the hash of the token of a slot's next container, if the replica has the slot.

        Returns whether it is the slot's first token; `None` if the replica doesn't have the slot.
        """
        row = await self._queries.row(
            "set_token", slot.id, slot.lease, replica, token_digest(token)
        )
        return None if row is None else row["first"]

    async def record_container(
        self,
        slot_id: int,
        lease: int,
        container_ref: str,
        *,
        host: str | None,
        attempt: int,
        spec_digest: bytes | None,
        remade: bool,
    ) -> list[Transition]:
        """Record which container a slot has, if that is new, and count it if it was `remade`."""
        return await self._queries.transitions(
            "record_container", slot_id, lease, container_ref, host, attempt, spec_digest, remade
        )

    async def launches_elsewhere(self, slot: Slot) -> bool:
        """Whether launches went well on a slot's host since they fail on its container.

        Also true if the host has no other slot.
        """
        row = await self._queries.row("launches_elsewhere", slot.id)
        return row is not None and row["found"]

    async def record_deployment(
        self,
        slot: Slot,
        deployment_ref: str | None,
        *,
        status: str | None,
        waits_for: WaitsFor | None,
        reason: str,
    ) -> list[Transition]:
        """Record a deployment's status, or what it waits for, if that is new."""
        return await self._queries.transitions(
            "record_deployment", slot.id, slot.lease, deployment_ref, status, waits_for, reason
        )

    async def tell_error(
        self, slot: Slot, error: str, reason: str, attempt: int
    ) -> list[Transition]:
        """Tell what goes wrong with a slot, in its timeline and in its bot's, if that is news."""
        return await self._queries.transitions(
            "tell_error", slot.id, slot.lease, error, reason, attempt
        )

    async def tell_pull_error(
        self, key: PullKey, error: str, reason: str, attempt: int, slot: Slot | None
    ) -> list[Transition]:
        """Tell the slots that wait for an image why its pull failed, or only one of them.

        Each slot, and its bot, is told once until the error is another.
        """
        only = None if slot is None else slot.id
        return await self._queries.transitions(
            "tell_pull_error", *key, error, reason, attempt, only
        )

    async def extend_deployment(self, slot_id: int, lease: int, reason: str) -> list[Transition]:
        """Restart the time of a deployment, and count that."""
        return await self._queries.transitions("extend_deployment", slot_id, lease, reason)

    async def record_start(self, slot: Slot, deployment_ref: str) -> None:
        """Record that a slot without a bot was started."""
        await self._queries.run("record_start", slot.id, slot.lease, deployment_ref)

    async def record_node(self, slot: Slot, node: str) -> None:
        """Record on which node of its host a slot's container is."""
        await self._queries.run("record_node", slot.id, slot.lease, node)

    async def record_stopped(self, slot: Slot) -> None:
        """Record that a slot's container is proved stopped."""
        await self._queries.run("record_stopped", slot.id, slot.lease)

    async def give_up_container(
        self, slot: Slot, image: str | None, reason: str
    ) -> list[Transition]:
        """Remove a slot's container from its row, and tell why. The next one is of this image."""
        return await self._queries.transitions(
            "give_up_container", slot.id, slot.lease, image, reason
        )

    async def adapt_container(
        self, slot: Slot, image: str | None, spec_digest: bytes, reason: str
    ) -> list[Transition]:
        """Record and tell that a slot's container was changed: its image, what it is made with."""
        return await self._queries.transitions(
            "adapt_container", slot.id, slot.lease, image, spec_digest, reason
        )

    async def note(
        self, slot: Slot, reason: str, details: Mapping[str, object]
    ) -> list[Transition]:
        """Tell what happened to a slot, in its timeline and in its bot's."""
        return await self._queries.transitions("note", slot.id, slot.lease, reason, details)

    # What engines show

    async def take_shown(
        self, hosts: Sequence[tuple[str, str]], *, within_ms: int, most: int
    ) -> list[Slot]:
        """Take slots of these hosts whose status is to be shown, and was not yet.

        If one is not shown within `within_ms`, it can be taken again. A host is an engine's name
        and the host's name.
        """
        places = [f"{engine}/{host}" for engine, host in hosts]
        return await self._queries.slots("take_shown", places, within_ms, most)

    async def shown(self, slot: Slot) -> None:
        """Record that what a slot does is shown."""
        await self._queries.run("shown", slot.id, slot.lease, slot.status)

    async def show_again(self, slot: Slot) -> None:
        """Have what a slot does shown again: the engine shows something else."""
        await self._queries.run("show_again", slot.id, slot.lease, slot.status)

    # What is stuck

    async def stuck(self, for_ms: int) -> list[Slot]:
        """Slots that have been deploying for `for_ms` in which their bots could be heard."""
        return await self._queries.slots("stuck", for_ms)

    async def silent(self, since: datetime, for_ms: int) -> list[Slot]:
        """Busy slots whose bot was not heard since `since`, and could be heard for `for_ms`."""
        return await self._queries.slots("silent", since, for_ms)

    async def with_ended_bot(self) -> list[Slot]:
        """Slots whose bot has ended."""
        return await self._queries.slots("with_ended_bot")
