"""What every part of the reconciler works with."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from botpool.engines.base import Container
from botpool.errors import EngineRefused, ReservationLost
from botpool.metrics import Metrics
from botpool.reconciler.checkpoints import go_on
from botpool.tasks.backoff import spread

if TYPE_CHECKING:
    from collections.abc import Mapping

    from botpool.engines.base import Engine
    from botpool.models.slots import Slot
    from botpool.pool import Pool
    from botpool.reconciler.checkpoints import Reached
    from botpool.reconciler.health import HostHealth
    from botpool.settings import Settings
    from botpool.store import Store

_log: structlog.stdlib.BoundLogger = structlog.get_logger("botpool")

NOW = 0.0
"""Look at the slot again at once."""

_FIRST_LOOK_SECONDS = 0.1
_FIRST_METERED_LOOK_SECONDS = 3.0


@dataclass(frozen=True)
class Context:
    """What one replica works with. `replica` is the name in its reservations."""

    store: Store
    pool: Pool
    engines: Mapping[str, Engine]
    health: HostHealth
    settings: Settings
    replica: str
    installation: str
    reached: Reached = go_on
    random: random.Random = field(default_factory=random.Random)
    metrics: Metrics = field(default_factory=Metrics)
    told: set[str] = field(default_factory=set)
    """The containers that were logged once because no slot ever had them."""

    def engine(self, slot: Slot) -> Engine:
        """The engine of a slot. Raises `EngineRefused` if this botpool doesn't have it."""
        if slot.engine not in self.engines:
            raise EngineRefused(f"This botpool has no engine {slot.engine!r}.")
        return self.engines[slot.engine]

    def hosts(self) -> list[tuple[str, str]]:
        """Every host that this replica can reach: the engine's name and the host's name."""
        return [(name, host) for name, engine in self.engines.items() for host in engine.hosts()]

    def spread(self, seconds: float) -> float:
        """About this many seconds, so that replicas that failed together don't retry together."""
        return spread(seconds, self.random)

    def next_look(self, age_seconds: float, first: float = _FIRST_LOOK_SECONDS) -> float:
        """In how many seconds to look again at something of this age: often at first."""
        longest = self.settings.deploy_poll_interval_ms / 1000
        return self.spread(min(max(age_seconds / 2, first), longest))

    def next_look_at_start(self, slot: Slot) -> float:
        """In how many seconds to look at a slot's start again. Mostly its bot is heard before."""
        metered = self.engine(slot).traits.metered
        first = _FIRST_METERED_LOOK_SECONDS if metered else _FIRST_LOOK_SECONDS
        return self.next_look(started_for(slot), first)

    def in_grace(self, slot: Slot) -> bool:
        """Whether an exit that the engine reports may be from before the slot's start."""
        return (
            self.engine(slot).traits.lags
            and started_for(slot) * 1000 < self.settings.deploy_grace_ms
        )

    @property
    def safety_net(self) -> float:
        """How many seconds a slot waits to be woken, in case the replica that should is dead."""
        return self.spread(self.settings.reservation_ttl_ms / 1000)

    async def confirm(self, slot: Slot) -> None:
        """Make sure, right before a call to an engine, that we still have the slot.

        If this replica was paused, another one may have taken over. Raises `ReservationLost`.
        """
        ttl_ms = self.settings.reservation_ttl_ms
        if slot.id not in await self.store.reservations.renew(self.replica, [slot.id], ttl_ms):
            raise ReservationLost(f"Another replica has {slot.slot_name} now.")

    def has_host(self, slot: Slot) -> bool:
        """Whether a slot is on no host yet, or on one that this replica can reach."""
        engine = self.engines.get(slot.engine)
        return slot.host is None or engine is None or slot.host in engine.hosts()

    def misplaced(self, slot: Slot) -> str | None:
        """Why a slot can't stay where it is, if its engine or its host is not in the settings."""
        proved = "" if slot.container_ref is None else ", so it is not proved stopped"
        no_host = f"no replica's settings have its host {slot.host} any more{proved}"
        if slot.engine != self.settings.engine:
            moved = f"new slots are on {self.settings.engine}, but this one is on {slot.engine}"
            if slot.engine not in self.engines:
                return f"{moved}, which the settings don't describe any more{proved}"
            return moved if self.has_host(slot) else f"{moved}, and {no_host}"
        return None if slot.host is not None and self.has_host(slot) else no_host

    def tell_once(self, container_ref: str, **more: str) -> None:
        """Log a container that looks like ours but never belonged to a slot."""
        if container_ref not in self.told:
            self.told.add(container_ref)
            _log.warning(
                "a container is named like a slot, but no slot has it: import or remove it",
                container_ref=container_ref,
                **more,
            )


def started_for(slot: Slot) -> float:
    """For how many seconds a slot's deployment has been under way."""
    return (slot.read_at - (slot.deployment_started_at or slot.read_at)).total_seconds()


def container_of(slot: Slot) -> Container | None:
    """The container that a slot has."""
    if slot.host is None or slot.container_ref is None:
        return None
    return Container(slot.host, slot.container_ref)
