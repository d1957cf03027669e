"""What the Pool page shows. It is read once for all who look at the same time."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from botpool.api.waiting import what_bots_wait_for
from botpool.dashboard.page import rendered
from botpool.dashboard.words import Sentence, of_bot
from botpool.models.queue import QueuePage
from botpool.states import BOT_RELAUNCHABLE, BotStatus
from botpool.tasks.sharing import KeptCall

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from botpool.models.attention import Need
    from botpool.models.bots import Bot, RecentLaunches
    from botpool.models.hosts import Host
    from botpool.models.keys import ApiKey
    from botpool.models.pools import PoolNumbers
    from botpool.models.pulls import ImagePull
    from botpool.models.queue import QueueEntry
    from botpool.models.replicas import Replica
    from botpool.models.slots import Slot
    from botpool.models.transitions import Transition
    from botpool.models.waiting import WaitingFor
    from botpool.states import FailureCause, Role
    from botpool.store import Store

_KEPT_SECONDS = 0.25
_FIGURES_SECONDS = 5.0
_NEEDS_SECONDS = 1.0
_MOST_WAITING = 12
_MOST_LAUNCHING = 12
_LATELY = 8


class HostSlots(NamedTuple):
    """The slots of a platform on one host; `None` if they have no host yet."""

    name: str
    host: Host | None
    slots: Sequence[Slot]

    @property
    def taken(self) -> int:
        """How many of them have a bot."""
        return sum(slot.assigned_bot_id is not None for slot in self.slots)


@dataclass(frozen=True, kw_only=True)
class PlatformPool:
    """The pool of a platform: its numbers, and its slots by host."""

    numbers: PoolNumbers
    hosts: Sequence[HostSlots]

    @property
    def used(self) -> int:
        """How many slots have a bot, or are being released or repaired."""
        return self.numbers.total - self.numbers.idle


class Waiting(NamedTuple):
    """A bot in the queue, and how long it is expected to wait."""

    entry: QueueEntry
    estimate: timedelta | None


class Launching(NamedTuple):
    """A bot on its way into its call, and what it does there."""

    bot: Bot
    slot: Slot | None
    waiting: WaitingFor | None
    sentence: Sentence
    step: int


STEPS = ("slot", "image", "start", "claim", "join")
"""The steps of a launch, as far as a row on the Pool page tells them apart."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The numbers that an operator asks for first."""

    in_call: int
    launching: int
    waiting: int
    times: RecentLaunches
    created_today: int
    failed_today: dict[FailureCause, int]


@dataclass(frozen=True, kw_only=True)
class PoolView:
    """All of it, at one time."""

    now: datetime
    platforms: Sequence[PlatformPool]
    figures: Figures
    hosts: Sequence[Host]
    replicas: Sequence[Replica]
    pulls: Sequence[ImagePull]
    queue: Sequence[Waiting]
    launching: Sequence[Launching]
    lately: Sequence[Transition]
    needs: Sequence[Need]

    @property
    def slots(self) -> int:
        """How many slots there are."""
        return sum(pool.numbers.total for pool in self.platforms)

    @property
    def is_new(self) -> bool:
        """Whether no bot has ever been here, so that a newcomer looks."""
        return not (self.slots or self.lately or self.figures.created_today)

    @property
    def oldest_wait(self) -> datetime | None:
        """Since when the bot waits that waits longest."""
        return min((each.entry.queued_at for each in self.queue), default=None)

    @property
    def next_slot(self) -> timedelta | None:
        """When the next slot is expected for a bot that waits."""
        return min((each.estimate for each in self.queue if each.estimate), default=None)


class Overview:
    """Reads the Pool page. Its part is read a few times a second, however many people look."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._view = KeptCall(self.read, _KEPT_SECONDS)
        self._figures = KeptCall(self._read_figures, _FIGURES_SECONDS)
        self._needs = KeptCall(store.attention.needs, _NEEDS_SECONDS)
        self._parts: dict[Role, KeptCall[str]] = {}

    async def part(self, caller: ApiKey) -> str:
        """The part of the page that can change, which is the same for all with the same role."""

        async def render() -> str:
            view = await self._view()
            return rendered("pool.html", caller, view.now, part=True, view=view)

        return await self._parts.setdefault(caller.role, KeptCall(render, _KEPT_SECONDS))()

    async def read(self) -> PoolView:
        """The pool as it is now: after a form, what it did must be there."""
        store = self._store
        slots, hosts = await store.slots.all(), await store.hosts.all()
        times, created, failed = await self._figures()
        by_status: Counter[BotStatus] = Counter()
        for (_, status), count in (await store.bots.live()).items():
            by_status[status] += count
        return PoolView(
            now=await store.installation.now(),
            platforms=[_platform(each, slots, hosts) for each in await store.pools.numbers()],
            figures=Figures(
                in_call=by_status[BotStatus.IN_CALL],
                launching=sum(by_status[status] for status in BOT_RELAUNCHABLE),
                waiting=by_status[BotStatus.QUEUED],
                times=times,
                created_today=created,
                failed_today=failed,
            ),
            hosts=hosts,
            replicas=await store.replicas.live(),
            pulls=[pull for pull in await store.pulls.all() if pull.status != "present"],
            queue=await self._queue(await store.queue.page(QueuePage(limit=_MOST_WAITING))),
            launching=await self._launching(await store.bots.launching(_MOST_LAUNCHING)),
            lately=await store.transitions.latest(_LATELY),
            needs=await self._needs(),
        )

    async def _read_figures(self) -> tuple[RecentLaunches, int, dict[FailureCause, int]]:
        now = await self._store.installation.now()
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
        times, (created, failed) = await asyncio.gather(
            self._store.bots.recent_launches(now - timedelta(hours=1)),
            self._store.bots.created_since(midnight),
        )
        return times, created, failed

    async def _queue(self, entries: Sequence[QueueEntry]) -> list[Waiting]:
        """With estimates: a place of a platform's queue is worth as much time as any other."""
        firsts = {entry.platform: entry for entry in reversed(entries)}
        places = await asyncio.gather(
            *(self._store.queue.place(entry.bot_id) for entry in firsts.values())
        )
        each = {
            platform: timedelta(milliseconds=place.estimated_wait_ms / place.position)
            for platform, place in zip(firsts, places, strict=True)
            if place is not None and place.estimated_wait_ms is not None
        }
        return [
            Waiting(
                entry, each[entry.platform] * entry.position if entry.platform in each else None
            )
            for entry in entries
        ]

    async def _launching(self, bots: Sequence[Bot]) -> list[Launching]:
        slots, waiting = await what_bots_wait_for(self._store, bots)
        found = []
        for bot in bots:
            waits = waiting.get(bot.id)
            step = STEPS.index(waits.what) if waits and waits.what in STEPS else len(STEPS) - 1
            if waits is not None and waits.what not in STEPS:
                step = STEPS.index("start")
            found.append(Launching(bot, slots.get(bot.id), waits, of_bot(bot, waits), step))
        return found


def _platform(numbers: PoolNumbers, slots: Sequence[Slot], hosts: Sequence[Host]) -> PlatformPool:
    known = {host.host: host for host in hosts}
    by_host: dict[str, list[Slot]] = {}
    for slot in slots:
        if slot.platform is numbers.platform:
            by_host.setdefault(slot.host or "", []).append(slot)
    return PlatformPool(
        numbers=numbers,
        hosts=[HostSlots(name, known.get(name), by_host[name]) for name in sorted(by_host)],
    )
