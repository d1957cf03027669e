"""The simulated world: replicas, an engine, bots, and callers that create bots.

After some hours the troubles stop, and everything has to come to rest.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from math import ceil
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from botpool.engines.simulated import SimulatedEngine
from botpool.errors import (
    BotNotFound,
    BotpoolError,
    ConstraintViolated,
    DuplicateBot,
    InvalidRequest,
    TransitionRefused,
)
from botpool.models.bots import NewBot
from botpool.pool import Pool
from botpool.simulation.bots import Bots, config_of, new_plan
from botpool.simulation.checks import Checks, longest_life
from botpool.simulation.profiles import MOST_LAUNCHES
from botpool.simulation.replicas import Replica, Unreachable
from botpool.simulation.troubles import Troubles
from botpool.simulation.virtual_time import NumberedTask, Process
from botpool.states import Platform
from botpool.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from datetime import timedelta

    from structlog.typing import EventDict

    from botpool.simulation.journal import Journal, RecordedDatabase
    from botpool.simulation.profiles import Profile

_Result = TypeVar("_Result")

_WAVE_SECONDS = 1800.0
_WAVE_LENGTH_SECONDS = 90.0
_IN_WAVES = 0.7
_REST_SECONDS = 2400.0
_LOOK_SECONDS = 30.0
_MOST_ATTEMPTS = 20
_TELL_SECONDS = 20.0
_SELDOM_MINUTES = 10
"""Between two looks at the whole history, which grows, and between two clean-ups."""
_VACUUM = (
    "VACUUM bots, bot_pool_slots, bot_pool_queue, queue_changes, queue_counts, duties, image_pulls,"
    " hosts"
)
"""What autovacuum would do, at a time that would differ from run to run."""


class PromiseBroken(Exception):
    """Something that must always hold did not hold."""


@dataclass
class Health:
    """For how long at least one replica has been able to work."""

    world: World
    _since: float | None = None
    _before: float = 0.0

    def changed(self) -> None:
        """Update it after something happened to a replica."""
        if not any(replica.well for replica in self.world.replicas):
            self._before += self.seconds
            self._since = None
        elif self._since is None:
            self._since = asyncio.get_running_loop().time()

    def again(self) -> None:
        """Start counting again, because the clock jumped."""
        self._before += self.seconds
        self._since = None
        self.changed()

    @property
    def in_all(self) -> float:
        """For how many seconds in all, since the beginning."""
        return self._before + self.seconds

    @property
    def seconds(self) -> float:
        """For how many seconds without a break until now."""
        if self._since is None:
            return 0.0
        return asyncio.get_running_loop().time() - self._since


class Announcements:
    """Delivers what one replica announces to the listeners, a moment later."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(f"{seed}/announcements")  # noqa: S311 - repeatable
        self._listeners: list[tuple[str, Callable[[], None]]] = []

    async def tell(self, channels: Any) -> None:
        """Announce something on these channels."""
        loop = asyncio.get_running_loop()
        for channel, heard in self._listeners:
            if channel in channels:
                loop.call_later(self._random.uniform(0.001, 0.05), heard)

    @contextmanager
    def listener(self, channel: str, heard: Callable[[], None]) -> Iterator[None]:
        """Listen to announcements for the length of the block."""
        entry = (channel, heard)
        self._listeners.append(entry)
        try:
            yield
        finally:
            self._listeners.remove(entry)


@dataclass
class World:
    """Everything in a run. `run` starts it."""

    seed: int
    hours: float
    profile: Profile
    database: RecordedDatabase
    journal: Journal
    replicas: list[Replica] = field(default_factory=list)
    cut_off: set[str] = field(default_factory=set)
    """The hosts whose containers can't reach botpool."""
    jumps: int = 0
    """How often the clock was moved."""

    def __post_init__(self) -> None:
        """Build what the profile describes."""
        self.settings = self.profile.settings
        self.store = Store(self.database)
        self.process = Process()
        self.announcements = Announcements(self.seed)
        self.health = Health(self)
        self.checks = Checks(self)
        self.troubles = Troubles(self)
        self.bots = Bots(self)
        self.engine = SimulatedEngine(
            [f"host-{number}" for number in range(1, self.profile.hosts + 1)],
            seed=self.seed,
            faults=self.profile.calm,
            traits=self.profile.traits,
            started=self.bots.started,
            now=asyncio.get_running_loop().time,
        )
        self.database.journal = self.journal
        self.journal.watchers.append(self.checks.transition)
        self._random = random.Random(f"{self.seed}/world")  # noqa: S311 - repeatable
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._started = 0
        self._resting = False
        self._over = False
        self._requests = 0
        self._told = time.monotonic()

    # What the parts need from it

    def broken(self, promise: str, where: str) -> None:
        """Report a broken promise. The first one counts."""
        self.journal.note(f"! BROKEN: {promise}: {where}")
        if not self._broken.done():
            self._broken.set_exception(PromiseBroken(f"{promise}: {where}"))

    def images(self) -> list[str | None]:
        """The image of each platform."""
        return [self.settings.image(platform) for platform in Platform]

    def troubled(self, host: str) -> bool:
        """Whether a host has trouble now."""
        return not self.engine.reachable(host) or self.engine.faults is self.profile.storm

    def move_clock(self, by: timedelta) -> None:
        """Make the database's clock jump."""
        self.database.ahead += by
        self.jumps += 1
        self.health.again()

    def replica_ended(self, replica: Replica) -> None:
        """Remove a replica that has ended, and start another one soon."""
        self.replicas.remove(replica)
        self.health.changed()
        seconds = (
            1.0
            if self._resting
            else self._random.choice((0.5, 5, 60)) * (self._random.uniform(0.5, 1.5))
        )
        asyncio.get_running_loop().call_later(seconds, self._start_replica)

    def _start_replica(self) -> None:
        if self._over:
            return
        self._started += 1
        replica = Replica(self, self._started)
        self.replicas.append(replica)
        self.health.changed()
        replica.start()

    async def ask(
        self, chance: random.Random, request: Callable[[Replica], Coroutine[Any, Any, _Result]]
    ) -> _Result:
        """The answer of one of the replicas. Raises `Unreachable`."""
        await asyncio.sleep(chance.uniform(0.001, 0.05))
        if not self.replicas:
            raise Unreachable
        return await chance.choice(self.replicas).ask(request)

    # The scenario

    async def run(self) -> None:
        """Run until everything has come to rest. Raises `PromiseBroken`."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._unseen)
        with self._listening_to_logs():
            scenario = self.process.spawn(self._scenario())
            try:
                await asyncio.wait({scenario, self._broken}, return_when=asyncio.FIRST_COMPLETED)
                if self._broken.done():
                    self._broken.result()
                await scenario
            finally:
                self._over = True
                self.process.kill()
                for replica in [*self.replicas]:
                    replica.end()
                await asyncio.sleep(1)

    async def _scenario(self) -> None:
        await Pool(self.store, self.settings).queue.configure()
        for _ in range(self.profile.replicas):
            self._start_replica()
        watching = self.process.spawn(self._watch())
        self.troubles.begin()
        end = self.hours * 3600
        for at in self._arrivals(end):
            await asyncio.sleep(at - asyncio.get_running_loop().time())
            self._requests += 1
            self.process.spawn(self._request(self._requests))
        await asyncio.sleep(end - asyncio.get_running_loop().time())
        self.journal.note("the troubles stop")
        self._resting = True
        self.troubles.cease()
        await self._come_to_rest()
        watching.cancel()

    def _arrivals(self, end: float) -> list[float]:
        """When bots are created: in waves on the hour and the half hour, and in between."""
        chance = random.Random(f"{self.seed}/arrivals")  # noqa: S311 - repeatable
        waves = max(1, ceil(end / _WAVE_SECONDS))
        return sorted(
            chance.randrange(waves) * _WAVE_SECONDS + chance.uniform(0, _WAVE_LENGTH_SECONDS)
            if chance.random() < _IN_WAVES
            else chance.uniform(0, end)
            for _ in range(round(self.profile.bots * self.hours))
        )

    async def _watch(self) -> None:
        for minute in count(1):
            await asyncio.sleep(60)
            seldom = minute % _SELDOM_MINUTES == 0
            await self.checks.make(history=seldom)
            if seldom:
                await self.database.execute(_VACUUM)
            self._tell_progress()

    def _tell_progress(self) -> None:
        """Print the progress, if it takes long."""
        if time.monotonic() - self._told > _TELL_SECONDS:
            self._told = time.monotonic()
            hours, done = asyncio.get_running_loop().time() / 3600, self.journal.ended.total()
            print(
                f"seed {self.seed}: {hours:.1f} of about {self.hours:g} h, {done} bots have ended",
                file=sys.stderr,
                flush=True,
            )

    async def _come_to_rest(self) -> None:
        """Wait until nothing happens any more. That must be so in bounded time."""
        loop = asyncio.get_running_loop()
        longest = longest_life(self.settings, self.profile.longest_stay) + _REST_SECONDS
        deadline = loop.time() + longest
        while unrest := await self.checks.unrest():
            if loop.time() > deadline:
                self.broken(f"all comes to rest within {longest:.0f} s", "; ".join(unrest[:5]))
                return
            await asyncio.sleep(_LOOK_SECONDS)
        await self.checks.make()

    # The callers

    async def _request(self, number: int) -> None:
        """Create a bot, like a caller that repeats its request until it gets an answer."""
        chance = random.Random(f"{self.seed}/request/{number}")  # noqa: S311 - repeatable
        plan = new_plan(chance, self.profile.longest_stay)
        bot = NewBot(
            platform=chance.choice([*Platform]),
            meeting_url=f"https://meet.example/{number}",
            bot_display_name=f"Bot {number}",
            queue_timeout_ms=chance.choice((1_000, 30_000, 300_000, 600_000)),
            priority=chance.choice((50, 100, 100, 100)),
            config=config_of(plan),
            correlation_id=f"request {number}",
            max_launch_attempts=chance.choice((None, None, 1, MOST_LAUNCHES)),
            relaunch_in_call=chance.random() < 1 / 4,
            max_duration_ms=1_200_000 if number % 8 == 0 else None,
            deduplication_key=f"meeting {number // 2}" if chance.random() < 1 / 10 else None,
            idempotency_key=f"request {number}",
            request_digest=str(number).encode(),
        )
        bot_id = await self._until_answered(chance, lambda asked: _create(asked.pool, bot))
        again = await self._until_answered(chance, lambda asked: _create(asked.pool, bot))
        if None not in {bot_id, again} and bot_id != again:
            self.broken("a request makes one bot", f"request {number}: {bot_id} and {again}")
        if bot_id is not None and chance.random() < 1 / 6:
            await asyncio.sleep(chance.choice((1, 30, 300)) * chance.random())
            self.journal.note(f"  a caller stops bot {bot_id}")
            await self._until_answered(chance, lambda asked: _stop(asked.pool, bot_id))

    async def _until_answered(
        self, chance: random.Random, request: Callable[[Replica], Coroutine[Any, Any, _Result]]
    ) -> _Result | None:
        for _ in range(_MOST_ATTEMPTS):
            try:
                return await self.ask(chance, request)
            except Unreachable:
                await asyncio.sleep(chance.uniform(0.2, 5))
        return None

    # What must not be overlooked

    def _unseen(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Report the error of a task that nothing waits for."""
        task = context.get("task") or context.get("future")
        error = context.get("exception")
        if isinstance(task, NumberedTask) and task.process is not None and task.process.dead:
            return
        self.broken("no error is overlooked", f"{context['message']}: {error!r} in {task!r}")

    @contextmanager
    def _listening_to_logs(self) -> Iterator[None]:
        before = structlog.get_config()
        structlog.configure(
            processors=[self._logged],
            wrapper_class=structlog.make_filtering_bound_logger(30),
            logger_factory=structlog.ReturnLoggerFactory(),
            cache_logger_on_first_use=False,
        )
        try:
            yield
        finally:
            structlog.configure(**before)

    def _logged(self, _: object, __: str, line: EventDict) -> str:
        error = sys.exc_info()[1]
        text = ", ".join(f"{name}={value}" for name, value in line.items() if name != "event")
        self.journal.note(f"  {line['event']}: {text}")
        refused = (TransitionRefused, ConstraintViolated, InvalidRequest)
        expected = (BotpoolError, TimeoutError, asyncio.CancelledError)
        if isinstance(error, refused) or (error is not None and not isinstance(error, expected)):
            self.broken("only expected errors happen", f"{line['event']}: {error!r}")
        return ""


async def _create(pool: Pool, bot: NewBot) -> int | None:
    try:
        return (await pool.creation.create_bot(bot)).bot.id
    except DuplicateBot:
        return None


async def _stop(pool: Pool, bot_id: int) -> None:
    try:
        await pool.assignments.stop_bot(bot_id)
    except BotNotFound:
        return
