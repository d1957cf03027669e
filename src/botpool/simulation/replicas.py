"""One replica: its process, its connection to the database, and its access to the engine.

Everything that it does goes through one of these, so everything can happen to it here. It is
killed, and nothing that it does has any effect any more. It is paused, and goes on minutes later.
Its connection is cut, before or after a statement took effect.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, TypeVar

from botpool.errors import BotpoolError, DatabaseBusy, DatabaseUnreachable, EngineUnavailable
from botpool.pool import Pool
from botpool.reconciler import Reconciler
from botpool.simulation.virtual_time import Process
from botpool.store import Database, Store
from botpool.store.queries import named_queries

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence

    import asyncpg

    from botpool.engines.base import (
        Container,
        ContainerSpec,
        ListedContainer,
        Observation,
        PullProgress,
        Traits,
    )
    from botpool.reconciler import Checkpoint
    from botpool.simulation.world import World

_Result = TypeVar("_Result")

_ANNOUNCE = named_queries("installation")["announce"]

_ANSWER_SECONDS = 30.0
_LONGEST_CALL_SECONDS = 60.0
_SLOW_STATEMENT = 0.1
_SLOW_SECONDS = 0.2


class Unreachable(Exception):
    """No replica answered. The request may or may not have taken effect."""


class Replica:
    """One process of botpool: its API and its worker."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.name = f"replica {number}"
        self.random = random.Random(f"{world.seed}/{self.name}")  # noqa: S311 - repeatable
        self.alive = True
        self.cut = False
        self.disturbed = 0
        """How often something happened to it that may have cost it its reservations."""
        self.paused_at = ""
        """Where it was paused last."""
        self._process = Process()
        self._awake = asyncio.Event()
        self._awake.set()
        self._stopping = False
        self.database = ReplicaDatabase(self)
        self.store = Store(self.database)
        self.pool = Pool(self.store, world.settings)
        self.reconciler = Reconciler(
            self.store,
            self.pool,
            {world.engine.name: ReplicaEngine(self)},
            world.settings,
            installation="simulation",
            reached=self._reached,
            seed=self.random.getrandbits(32),
        )

    def start(self) -> None:
        """Begin to work."""
        self.world.journal.did("start", self.name)
        self._process.spawn(self._run())

    async def _run(self) -> None:
        try:
            await self.pool.queue.configure()
            self._process.spawn(self.pool.listening.keep_noting(self.replica_name))
            await self.reconciler.run(self.database)
        except BotpoolError as error:
            self.world.journal.note(f"  {self.name} gives up: {error}")
        else:
            if not self._stopping:
                self.world.broken("a reconciler works until it is told to stop", self.name)
        finally:
            if self.alive:
                self.end()

    # What happens to it

    @property
    def well(self) -> bool:
        """Whether it can do its work."""
        return self.alive and self._awake.is_set() and not self.cut

    @property
    def replica_name(self) -> str:
        """Its name in its reservations."""
        return self.reconciler.replica

    def kill(self, where: str) -> None:
        """End it as kill -9 does. Calls that it made to the engine may still take effect."""
        self.world.journal.did("kill", f"{self.name} {where}")
        self.end()

    def stop(self) -> None:
        """End it as SIGTERM does."""
        self.world.journal.did("stop", self.name)
        self._stopping = True
        self.reconciler.stop()

    def pause(self, seconds: float, where: str = "anywhere") -> None:
        """Pause it for a while."""
        self.world.journal.did("pause", f"{self.name} {where} for {seconds:.0f} s")
        self.paused_at = where
        self._awake.clear()
        self._disturb()
        asyncio.get_running_loop().call_later(seconds, self._resume)

    def lose_connection(self, seconds: float) -> None:
        """Cut its connection to the database for a while."""
        self.world.journal.did("cut", f"{self.name} for {seconds:.0f} s")
        self.cut = True
        self._disturb()
        self.database.hang_up()
        asyncio.get_running_loop().call_later(seconds, self._connect)

    def end(self) -> None:
        """End it at once."""
        self.alive = False
        self._disturb()
        self._awake.set()
        self.database.hang_up()
        self._process.kill()
        self.world.replica_ended(self)

    def _disturb(self) -> None:
        self.disturbed += 1
        self.world.health.changed()

    def _resume(self) -> None:
        if self.alive and not self._awake.is_set():
            self.world.journal.note(f"  {self.name} goes on")
            self._awake.set()
            self._disturb()

    def _connect(self) -> None:
        if self.alive and self.cut:
            self.cut = False
            self._disturb()

    def calm(self) -> None:
        """Resume it, and restore its connection."""
        self._resume()
        self._connect()

    def _reached(self, point: Checkpoint) -> None:
        self.world.journal.counts[f"reached {point}"] += 1
        self.world.troubles.at(self, point)
        self.give_up_if_dead()

    def give_up_if_dead(self) -> None:
        """Cancel the current task if its process was killed."""
        if not self.alive:
            raise asyncio.CancelledError

    async def turn(self) -> bool:
        """Wait while it is paused, and return whether it is alive then."""
        while self.alive and not self._awake.is_set():
            await self._awake.wait()
        return self.alive

    # Requests to it

    async def ask(self, request: Callable[[Replica], Coroutine[Any, Any, _Result]]) -> _Result:
        """Its answer to a request. Raises `Unreachable`, and what the pool raises."""
        if not self.alive:
            raise Unreachable
        task = self._process.spawn(request(self))
        await asyncio.wait({task}, timeout=_ANSWER_SECONDS)
        if not task.done():
            task.add_done_callback(forget)
            raise Unreachable
        if task.cancelled() or not self.alive:
            forget(task)
            raise Unreachable
        try:
            return task.result()
        except (DatabaseUnreachable, DatabaseBusy) as error:
            raise Unreachable from error  # a caller gets 503 for either, and asks again


def forget(task: asyncio.Future[Any]) -> None:
    """Ignore the error of a task."""
    if not task.cancelled():
        task.exception()


class ReplicaDatabase(Database):
    """The database as one replica sees it."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._world = replica.world
        self._lost = asyncio.Event()

    async def fetch(self, sql: str, *args: object) -> list[asyncpg.Record]:
        """Run one statement and return its rows."""
        return await self._run(lambda: self._world.database.fetch(sql, *args))

    async def fetch_one(self, sql: str, *args: object) -> asyncpg.Record | None:
        """Run one statement and return its first row, if it has one."""
        return await self._run(lambda: self._world.database.fetch_one(sql, *args))

    async def execute(self, sql: str, *args: object, seconds: float | None = None) -> int:
        """Run one statement and return how many rows it touched."""
        if sql is _ANNOUNCE:
            await self._run(lambda: self._world.announcements.tell(args[0]))
            return 1
        return await self._run(lambda: self._world.database.execute(sql, *args, seconds=seconds))

    async def listen(self, channel: str, heard: Callable[[], None]) -> None:
        """Call `heard` now, and with every announcement, until the connection is lost."""
        await self._reach()
        heard()
        with self._world.announcements.listener(channel, heard):
            await self._lost.wait()

    def hang_up(self) -> None:
        """Tell listeners that the connection is lost."""
        self._lost.set()
        self._lost = asyncio.Event()

    async def _run(self, statement: Callable[[], Awaitable[_Result]]) -> _Result:
        await self._delay()
        await self._reach()
        result = await statement()
        await self._delay()
        await self._reach()
        return result

    async def _delay(self) -> None:
        slow = self._replica.random.random() < _SLOW_STATEMENT
        await asyncio.sleep(self._replica.random.uniform(0, _SLOW_SECONDS) if slow else 0)

    async def _reach(self) -> None:
        if not await self._replica.turn():
            raise DatabaseUnreachable("This process is dead.")
        if self._replica.cut:
            raise DatabaseUnreachable("The connection was cut.")


class ReplicaEngine:
    """The engine as one replica sees it. A call may take effect after the replica's end."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._world = replica.world
        self._engine = replica.world.engine
        self.name = self._engine.name

    @property
    def traits(self) -> Traits:
        """How it differs from others."""
        return self._engine.traits

    def hosts(self) -> Sequence[str]:
        """The hosts that it knows."""
        return self._engine.hosts()

    async def open_hosts(self) -> Sequence[str]:
        """The hosts that new containers may be put on now."""
        return await self._call("open_hosts", self._engine.open_hosts)

    async def pull(self, host: str, image: str, progress: Callable[[PullProgress], None]) -> bool:
        """Bring an image to a host. If cancelled, it stops."""

        async def pull() -> bool:
            async with self._world.checks.pulling(self._replica, (host, image)):
                return await self._engine.pull(host, image, progress)

        return await self._call("pull", pull)

    async def has_image(self, host: str, image: str) -> bool:
        """Whether an image is on a host."""
        return await self._call("has_image", lambda: self._engine.has_image(host, image))

    async def create(self, spec: ContainerSpec) -> str:
        """Create a stopped container."""
        return await self._call("create", lambda: self._engine.create(spec))

    async def start(
        self,
        container: Container,
        environment: Mapping[str, str],
        *,
        stopped: bool = False,
        avoid_node: str | None = None,
    ) -> str:
        """Start a container."""

        async def start() -> str:
            await self._world.checks.starting(self._replica, container)
            return await self._engine.start(container, environment)

        return await self._call("start", start)

    async def observe(self, container: Container, deployment: str | None = None) -> Observation:
        """What a container is doing."""
        return await self._call("observe", lambda: self._engine.observe(container, deployment))

    async def stop(self, container: Container, grace_seconds: float) -> None:
        """Ask a container to end."""
        await self._call("stop", lambda: self._engine.stop(container, grace_seconds))

    async def remove(self, container: Container, *, unproved: bool = False) -> None:
        """Remove a stopped container."""
        await self._call("remove", lambda: self._engine.remove(container))

    async def describe(self, container: Container, text: str) -> None:
        """Show a line about the container."""
        await self._call("describe", lambda: self._engine.describe(container, text))

    async def logs(self, container: Container, lines: int) -> list[str]:
        """The last lines that the container wrote."""
        return await self._call("logs", lambda: self._engine.logs(container, lines))

    async def close(self) -> None:
        """Do nothing: other replicas use it, too."""

    async def _call(self, what: str, call: Callable[[], Coroutine[Any, Any, _Result]]) -> _Result:
        await self._reach(f"before {what}")
        task = self._world.process.spawn(call())
        try:
            result = await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(forget)
            if what == "pull" or self._replica.random.random() < 1 / 2:
                task.cancel()
            else:
                asyncio.get_running_loop().call_later(_LONGEST_CALL_SECONDS, task.cancel)
            raise
        await self._reach(f"after {what}")
        return result

    async def _reach(self, when: str) -> None:
        self._world.troubles.at(self._replica, when)
        self._replica.give_up_if_dead()
        if not await self._replica.turn():
            raise EngineUnavailable("This process is dead.")

    # Last, because from here on `list` is not the built-in any more.
    async def list(self, host: str) -> list[ListedContainer]:
        """Every container of ours on a host."""
        return await self._call("list", lambda: self._engine.list(host))
