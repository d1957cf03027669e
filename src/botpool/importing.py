"""Take over an existing pool: applications on Coolify that are named like slots.

An import creates no application and starts none. An imported slot is `releasing` until its
container is proved stopped, like any slot between two bots. Then it is `idle`, and its first start
gives the container our environment.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from botpool.engines.base import STOPPED, EngineName
from botpool.errors import ConstraintViolated, TransitionRefused
from botpool.models.slots import ImportedSlot

if TYPE_CHECKING:
    from collections.abc import Mapping

    from botpool.engines.coolify.engine import CoolifyEngine, SlotLike
    from botpool.pool import Pool
    from botpool.store import Store


class Outcome(StrEnum):
    """What an import did with an application, or would do."""

    IMPORTED = "imported"
    KNOWN = "known"
    """The application already has a slot."""
    LEFT = "left"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedApplication:
    """One application, and what the import did with it. `why` is the reason, if there is one."""

    container_ref: str
    name: str
    host: str
    slot_name: str
    outcome: Outcome
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What an import may do besides taking over stopped applications."""

    stop: bool = False
    """Also take over running applications, which stops them."""
    remove_duplicates: bool = False
    """Delete stopped applications that have the same name as another one."""
    dry_run: bool = False
    """Change nothing."""


async def import_slots(
    store: Store, pool: Pool, engine: CoolifyEngine, orders: Orders
) -> list[ImportedApplication]:
    """Make slots of the applications that are named like slots, and return what was done with each.

    Of several with the same name, the one that already has a slot is kept, or else one that runs.
    Raises `EngineError` if the list or an application can't be read.
    """
    slots = {slot.slot_name: slot.container_ref for slot in await store.slots.all()}
    known = {*slots.values()}

    def order(like: SlotLike) -> tuple[str, bool, bool]:
        runs = like.application.state == "running"
        return _slot(like).slot_name, like.container.ref not in known, not runs

    told = []
    for like in sorted(await engine.slot_like(), key=order):
        slot = _slot(like)
        outcome, why = await _import(pool, engine, orders, like, slots)
        if outcome is Outcome.IMPORTED:
            slots[slot.slot_name] = slot.container_ref
        told.append(
            ImportedApplication(
                container_ref=slot.container_ref,
                name=like.application.name,
                host=slot.host,
                slot_name=slot.slot_name,
                outcome=outcome,
                why=why,
            )
        )
    return told


async def _import(
    pool: Pool,
    engine: CoolifyEngine,
    orders: Orders,
    like: SlotLike,
    slots: Mapping[str, str | None],
) -> tuple[Outcome, str]:
    slot = _slot(like)
    if slot.container_ref in slots.values():
        return Outcome.KNOWN, ""
    stopped = (await engine.observe(like.container)).state in STOPPED
    if slot.slot_name in slots:
        return await _duplicate(engine, orders, like, stopped=stopped)
    if not stopped and not orders.stop:
        return Outcome.LEFT, "it is running: stop it first, or import it with --stop"
    return (Outcome.IMPORTED, "") if orders.dry_run else await _take_over(pool, slot)


async def _take_over(pool: Pool, slot: ImportedSlot) -> tuple[Outcome, str]:
    try:
        await pool.slots.import_slot(slot)
    except ConstraintViolated:
        return Outcome.LEFT, "another slot took its name or its container meanwhile"
    except TransitionRefused:
        return Outcome.LEFT, "the pool is full: raise BOTPOOL_MAX_POOL_SIZE"
    return Outcome.IMPORTED, ""


async def _duplicate(
    engine: CoolifyEngine, orders: Orders, like: SlotLike, *, stopped: bool
) -> tuple[Outcome, str]:
    twice = "another application has the same name"
    if not orders.remove_duplicates:
        return Outcome.LEFT, f"{twice}: --remove-duplicates deletes this one"
    if not stopped:
        return Outcome.LEFT, f"{twice}, and this one is running: stop it first"
    if not orders.dry_run:
        await engine.remove(like.container)
    return Outcome.REMOVED, twice


def _slot(like: SlotLike) -> ImportedSlot:
    return ImportedSlot(
        platform=like.named.platform,
        number=like.named.number,
        engine=EngineName.COOLIFY,
        host=like.container.host,
        image=like.application.image,
        container_ref=like.container.ref,
    )
