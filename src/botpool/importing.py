"""Take over a pool that exists already: applications on Coolify that are named like slots.

Nothing is made and nothing is started. A slot that was imported is `releasing` until its container
is proved stopped, as any slot is between two bots; then it is `idle`, and its first start gives it
what a container of ours has.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from botpool.engines.base import STOPPED
from botpool.errors import ConstraintViolated, TransitionRefused
from botpool.meetings import read_platform
from botpool.models import ImportedSlot

if TYPE_CHECKING:
    from collections.abc import Mapping

    from botpool.engines.coolify import CoolifyEngine, SlotLike
    from botpool.pool import Pool


class Outcome(StrEnum):
    """What became of an application, or would."""

    IMPORTED = "imported"
    KNOWN = "known"
    """It has a slot already."""
    LEFT = "left"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedApplication:
    """One application, and what became of it; `why` says more where that is not all."""

    container_ref: str
    name: str
    host: str
    slot_name: str
    outcome: Outcome
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What an import may do beyond taking over what is stopped."""

    stop: bool = False
    """Take over applications that run as well, which stops them."""
    remove_duplicates: bool = False
    """Delete stopped applications whose name another one has."""
    dry_run: bool = False
    """Change nothing."""


async def import_slots(
    pool: Pool, engine: CoolifyEngine, orders: Orders
) -> list[ImportedApplication]:
    """Make slots of the applications that are named like some, and tell what became of each.

    Of several with one name, that which has a slot is kept, then one that runs. Raises
    `EngineError` where the list can't be had, or an application not be looked at.
    """
    slots = {slot.slot_name: slot.container_ref for slot in await pool.slots()}
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
        return Outcome.LEFT, "it runs: import it once it is stopped, or with --stop"
    return (Outcome.IMPORTED, "") if orders.dry_run else await _take_over(pool, slot)


async def _take_over(pool: Pool, slot: ImportedSlot) -> tuple[Outcome, str]:
    try:
        await pool.import_slot(slot)
    except ConstraintViolated:
        return Outcome.LEFT, "a slot took its name or its container meanwhile"
    except TransitionRefused:
        return Outcome.LEFT, "the pool is full: raise BOTPOOL_MAX_POOL_SIZE"
    return Outcome.IMPORTED, ""


async def _duplicate(
    engine: CoolifyEngine, orders: Orders, like: SlotLike, *, stopped: bool
) -> tuple[Outcome, str]:
    twice = "another application has its name"
    if not orders.remove_duplicates:
        return Outcome.LEFT, f"{twice}: --remove-duplicates deletes it"
    if not stopped:
        return Outcome.LEFT, f"{twice}, and it runs: stop it first"
    if not orders.dry_run:
        await engine.remove(like.container)
    return Outcome.REMOVED, twice


def _slot(like: SlotLike) -> ImportedSlot:
    return ImportedSlot(
        platform=read_platform(like.platform),
        number=like.number,
        engine="coolify",
        host=like.container.host,
        image=like.application.image,
        container_ref=like.container.ref,
    )
