"""What every duty of the reconciler works with."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import structlog

from botpool.engines.base import Container
from botpool.errors import ClaimLost, EngineRefused
from botpool.models import HostFailure
from botpool.reconciler.points import go_on
from botpool.states import BOT_RELAUNCHABLE, BotStatus, SlotStatus

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from botpool.engines.base import Engine
    from botpool.models import Bot, Slot
    from botpool.pool import Pool
    from botpool.reconciler.points import Reached
    from botpool.settings import Settings
    from botpool.store import Store

_log: structlog.stdlib.BoundLogger = structlog.get_logger("botpool")

NOW = 0.0
"""Look at the slot again at once."""

_FIRST_LOOK_SECONDS = 0.1


async def to_the_end(work: Coroutine[Any, Any, object]) -> None:
    """Wait for work that goes on, to its end, when the one who waits is cancelled.

    What it fails with then is nobody's business.
    """
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    await asyncio.shield(task)


@dataclass(frozen=True)
class Context:
    """The tools of one replica. `replica` is the name that its claims carry."""

    store: Store
    pool: Pool
    engines: Mapping[str, Engine]
    settings: Settings
    replica: str
    installation: str
    reached: Reached = go_on
    random: random.Random = field(default_factory=random.Random)
    told: set[str] = field(default_factory=set)
    """The containers of which was told that nobody knows whose they are."""

    def engine(self, slot: Slot) -> Engine:
        """The engine of a slot. Raises `EngineRefused` if this botpool doesn't have it."""
        if slot.engine not in self.engines:
            raise EngineRefused(f"There is no engine {slot.engine!r} here.")
        return self.engines[slot.engine]

    def hosts(self) -> list[tuple[str, str]]:
        """Every host that this replica can reach: its engine's name, and its own."""
        return [(name, host) for name, engine in self.engines.items() for host in engine.hosts()]

    def jittered(self, seconds: float) -> float:
        """About so long: replicas that failed together don't come back together."""
        return seconds * self.random.uniform(0.8, 1.2)

    def next_look(self, age_seconds: float) -> float:
        """In how many seconds to look again at what has taken so long: often at first."""
        longest = self.settings.deploy_poll_interval_ms / 1000
        return self.jittered(min(max(age_seconds / 2, _FIRST_LOOK_SECONDS), longest))

    async def confirm(self, slot: Slot) -> None:
        """Make sure, right before an engine is told to do something, that the slot is still ours.

        A replica that was paused may find that others have gone on. Raises `ClaimLost`.
        """
        ttl_ms = self.settings.claim_ttl_ms
        if slot.id not in await self.store.renew_claims(self.replica, [slot.id], ttl_ms):
            raise ClaimLost(f"{slot.slot_name} is somebody else's by now.")

    def may_launch_again(self, bot: Bot) -> bool:
        """Whether a bot has launches left, and has not been in its call or may go back there."""
        most = bot.max_launch_attempts or self.settings.max_launch_attempts
        back = bot.relaunch_in_call and bot.status is BotStatus.IN_CALL
        return (back or bot.status in BOT_RELAUNCHABLE) and bot.launch_attempts < most

    def has_host(self, slot: Slot) -> bool:
        """Whether a slot is on no host yet, or on one that this replica can reach."""
        engine = self.engines.get(slot.engine)
        return slot.host is None or engine is None or slot.host in engine.hosts()

    async def host_is_silent(self, engine: str, host: str, reason: str) -> None:
        """Note that a host did not answer, where each host has an API of its own."""
        if not self.engines[engine].traits.one_api:
            what = f"comparison at {await self.store.now():%H:%M:%S}"
            await self._note(HostFailure(engine=engine, host=host, what=what, reason=reason))

    async def host_answers(self, engine: str, host: str) -> None:
        """Note that a host answers, if it did not before."""
        if await self.store.has_failed(engine, host):
            await self.pool.host_is_well(engine, host, answers_only=True)

    async def note_failure(self, slot: Slot, reason: str) -> None:
        """Note that something has failed on a slot's host; several of that make it ill."""
        if slot.host is not None:
            launch = slot.status is SlotStatus.DEPLOYING
            await self._note(
                HostFailure(
                    engine=slot.engine,
                    host=slot.host,
                    what=f"slot {slot.id}, lease {slot.lease}",
                    reason=reason,
                    image=(slot.image or "") if launch else "",
                )
            )

    async def _note(self, failure: HostFailure) -> None:
        settings = self.settings
        if await self.store.note_failure(
            failure,
            most=settings.host_failures,
            within_ms=settings.host_failure_window_ms,
            probe_in_ms=settings.recovery_interval_ms,
        ):
            _log.warning(
                "host is ill: it gets no new work",
                engine=failure.engine,
                host=failure.host,
                failures=settings.host_failures,
                reason=failure.reason,
            )

    async def note_success(self, slot: Slot) -> None:
        """Note that a slot's host does as it is told."""
        if slot.host is not None and await self.store.has_failed(slot.engine, slot.host):
            await self.pool.host_is_well(slot.engine, slot.host)
            _log.info("host does well again", engine=slot.engine, host=slot.host)

    def tell_once(self, container_ref: str, **more: str) -> None:
        """Log that there is a container which looks like ours, and which we never had."""
        if container_ref not in self.told:
            self.told.add(container_ref)
            _log.warning(
                "a container is named like a slot, and no slot has it: import or remove it",
                container_ref=container_ref,
                **more,
            )

    @property
    def safety_net(self) -> float:
        """How long a slot waits for somebody who may be dead, in seconds."""
        return self.jittered(self.settings.claim_ttl_ms / 1000)


def container_of(slot: Slot) -> Container | None:
    """The container that a slot has."""
    if slot.host is None or slot.container_ref is None:
        return None
    return Container(slot.host, slot.container_ref)
