"""Whether an engine's hosts have room for the pool, and whether all slots are on these hosts."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from botpool.engines.base import EngineName
from botpool.states import Platform

if TYPE_CHECKING:
    from collections.abc import Collection

    from botpool.doctor.database import Known
    from botpool.doctor.findings import Report
    from botpool.settings import Settings


async def examine_room(report: Report, settings: Settings, hosts: int) -> None:
    """Warn if this many hosts don't have room for the slots that the pool may grow to.

    Also if the slots that are kept warm leave no room for the bots of a platform.
    """
    async with report.check("room") as check:
        if settings.max_slots_per_host is None:
            return
        most = settings.max_slots_per_host * hosts
        found = f"{most} slots fit on {hosts} host{'s' if hosts > 1 else ''}"
        left_out = _left_out(settings, most)
        if left_out:
            check.warning(
                f"{found}, and those that are kept warm for other platforms take them all: bots for"
                f" {', '.join(left_out)} may wait in vain",
                "Lower BOTPOOL_WARM_SLOTS, raise BOTPOOL_MAX_SLOTS_PER_HOST, or add hosts.",
            )
        if most < settings.max_pool_size:
            check.warning(
                f"{found}, of all platforms together, but each platform may have"
                f" {settings.max_pool_size}: bots that find no room wait in the queue",
                "Raise BOTPOOL_MAX_SLOTS_PER_HOST, add hosts, or lower BOTPOOL_MAX_POOL_SIZE.",
            )
        elif not left_out:
            check.ok(found)


def _left_out(settings: Settings, most: int) -> list[Platform]:
    """The platforms whose bots get no slot while the warm slots of others are idle."""
    warm = {each: min(settings.warm(each), settings.max_pool_size) for each in Platform}
    needs_image = settings.engine != EngineName.PROCESS
    return [
        platform
        for platform in Platform
        if sum(warm.values()) - warm[platform] >= most
        and (settings.image(platform) is not None or not needs_image)
    ]


async def examine_lost_slots(
    report: Report, engine: str, hosts: Collection[str], known: Known | None, setting: str
) -> None:
    """Warn of slots on hosts that the settings don't name: botpool can't reach them."""
    async with report.check("slots") as check:
        if known is None:
            return
        slots = [slot for slot in known.slots if slot.engine == engine and slot.host]
        lost = Counter(slot.host for slot in slots if slot.host not in hosts)
        for host, count in lost.items():
            check.warning(
                f"{count} of {len(slots)} slots are on {host}, which {setting} doesn't name",
                f"Add it back to {setting}, or drain these slots.",
            )
        if slots and not lost:
            check.ok(f"{len(slots)} slots, each on a host that {setting} names")
