"""Slots without a bot: made idle, repaired, drained, imported, deleted."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from botpool.errors import SlotHasBot
from botpool.states import SlotStatus
from botpool.store.installation import ASKED, WORK
from botpool.tasks.batches import Batcher

if TYPE_CHECKING:
    from collections.abc import Sequence

    from botpool.models.assignments import Lease
    from botpool.models.slots import ImportedSlot, Slot
    from botpool.models.transitions import Transition
    from botpool.pool.lease_check import LeaseCheck
    from botpool.pool.publisher import Publisher
    from botpool.store import Store

_REASONS = {SlotStatus.RELEASING: "container stopped", SlotStatus.ERROR: "recovered"}
"""The reason for making a slot idle, by its status before."""


class Slots:
    """Changes slots that have no bot. Slots that are made idle together are written together."""

    def __init__(self, store: Store, publisher: Publisher, leases: LeaseCheck) -> None:
        self._store = store
        self._publisher = publisher
        self._leases = leases
        self._idle = {source: Batcher(partial(self._make_idle, source)) for source in _REASONS}

    async def make_idle(
        self, slot_id: int, lease: int, was: SlotStatus = SlotStatus.RELEASING
    ) -> list[Transition]:
        """Make a slot idle that `was` releasing or in error: its container is proved stopped.

        The first bot that waits gets it at once.
        """
        written = await self._idle[was]((slot_id, lease))
        if not written:
            await self._leases.check(slot_id, lease)
        return written

    async def fail(self, slot_id: int, lease: int, reason: str) -> list[Transition]:
        """Put a slot that is releasing into `error`."""
        written = await self._publisher.publish(self._store.slots.fail(slot_id, lease, reason))
        if not written:
            await self._leases.check(slot_id, lease)
        return written

    async def delete(self, slot_id: int, lease: int, reason: str) -> list[Transition]:
        """Delete a slot that is in `error` or drained. Its name and its room are free at once."""
        written = await self._publisher.publish(self._store.slots.delete(slot_id, lease, reason))
        if not written:
            await self._leases.check(slot_id, lease)
        return written

    async def import_slot(self, slot: ImportedSlot) -> list[Transition]:
        """Take over an existing container. Its slot is idle once it is proved stopped.

        Raises `ConstraintViolated` if a slot has this name or container, and `TransitionRefused` if
        the pool is full.
        """
        return await self._publisher.publish(self._store.slots.import_(slot))

    async def drain(
        self, slot_id: int, reason: str = "drained", *, tell: bool = True
    ) -> list[Transition]:
        """Give a slot no further bot, and delete it once it has none. Until then, that is told."""
        await self._store.slots.get(slot_id)
        return await self._publisher.publish(self._store.slots.drain(slot_id, reason, tell=tell))

    async def remove(self, slot_id: int, reason: str = "deleted on request") -> list[Transition]:
        """Delete a slot that has no bot: at once, or once its container is proved stopped.

        Raises `SlotNotFound`, and `SlotHasBot`: then the slot goes on.
        """
        await self._store.slots.get(slot_id)
        written = await self._publisher.publish(self._store.slots.remove(slot_id, reason))
        left = await self._store.slots.find(slot_id)
        if left is not None and left.assigned_bot_id is not None:
            raise SlotHasBot(left.slot_name, left.assigned_bot_id)
        self._publisher.wake(WORK)
        return written

    async def ask_comparison(self, slot_id: int) -> None:
        """Have a slot compared with its engine at once. Its row and its timeline tell the outcome.

        Raises `SlotNotFound`.
        """
        await self._store.slots.get(slot_id)
        await self._store.slots.ask_comparison(slot_id)
        self._publisher.wake(ASKED)

    async def record_comparison(self, slot_id: int, state: str, said: str) -> list[Transition]:
        """Record what the engine says of a slot that somebody asked for."""
        return await self._publisher.publish(
            self._store.slots.record_comparison(slot_id, state, said)
        )

    async def retry(self, slot_id: int) -> None:
        """Have a slot in `error` repaired at once. A slot in any other status is left as it is."""
        await self._store.slots.get(slot_id)
        if await self._store.slots.retry(slot_id):
            self._publisher.wake(WORK)

    async def count_failed_repair(self, slot: Slot, problem: str, most: int) -> int:
        """Count and tell a failed repair of a slot, and return how many of `most` there were."""
        written = await self._publisher.publish(
            self._store.slots.count_failed_repair(slot, problem, most)
        )
        return int(written[0].details["attempt"]) if written else 0

    async def give_up_container(self, slot: Slot, image: str | None, reason: str) -> Slot:
        """Let a slot have no container, and return it so. The next one is of this image."""
        await self._publisher.publish(self._store.slots.give_up_container(slot, image, reason))
        return await self._under_lease(slot)

    async def adapt_container(
        self, slot: Slot, image: str | None, spec_digest: bytes, reason: str
    ) -> Slot:
        """Record that a slot's container was changed, and return the slot with that."""
        await self._publisher.publish(
            self._store.slots.adapt_container(slot, image, spec_digest, reason)
        )
        return await self._under_lease(slot)

    async def _under_lease(self, slot: Slot) -> Slot:
        """The slot as it is now, or, if it has another lease, as it was."""
        now = await self._store.slots.find(slot.id)
        return now if now is not None and now.lease == slot.lease else slot

    async def record_container(
        self,
        slot_id: int,
        lease: int,
        container_ref: str,
        *,
        host: str | None,
        attempt: int,
        spec_digest: bytes | None = None,
        remade: bool = False,
    ) -> list[Transition]:
        """Record which container a slot has now, with the old reference and the attempt.

        `spec_digest` is of what it was made with, if that is known. `remade`: it was created
        because launches failed on the old one.
        """
        written = await self._publisher.publish(
            self._store.slots.record_container(
                slot_id,
                lease,
                container_ref,
                host=host,
                attempt=attempt,
                spec_digest=spec_digest,
                remade=remade,
            )
        )
        if not written:
            await self._leases.check(slot_id, lease)
        return written

    async def note(self, slot: Slot, reason: str, **details: object) -> list[Transition]:
        """Tell what happened to a slot, in its timeline and in its bot's."""
        return await self._publisher.publish(self._store.slots.note(slot, reason, details))

    async def tell_error(self, slot: Slot, error: str, attempt: int) -> list[Transition]:
        """Tell why a step of a slot failed, in its timeline and in its bot's, if that is news."""
        reason = f"attempt {attempt} failed: {error}"
        return await self._publisher.publish(
            self._store.slots.tell_error(slot, error, reason, attempt)
        )

    async def _make_idle(
        self, source: SlotStatus, leases: Sequence[Lease]
    ) -> list[list[Transition]]:
        written = await self._publisher.publish(
            self._store.slots.make_idle(leases, source, _REASONS[source])
        )
        idle = {(t.slot_id, t.lease): t.slot_id for t in written if t.from_status == source}
        of_slot: dict[int | None, list[Transition]] = {}
        for step in written:
            of_slot.setdefault(step.slot_id, []).append(step)
        return [of_slot.get(idle.pop(lease, None), []) for lease in leases]
