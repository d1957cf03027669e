"""Virtual time: an event loop whose time jumps to the next timer.

When no task has anything to do before the next timer, the loop's time becomes that timer's. The
database runs each statement at once: no other task runs meanwhile, and time stands still. Before
each statement the database's clock is set to the loop's, so both agree on every millisecond.
Therefore a run can be repeated exactly.
"""

from __future__ import annotations

import asyncio
import selectors
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from botpool.store import Database
from botpool.store.postgres.address import Address
from botpool.store.postgres.database import open_connections
from botpool.store.postgres.servers import Servers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

    import asyncpg

_Result = TypeVar("_Result")

BEGIN = datetime(2026, 1, 1, 8, tzinfo=UTC)
_MOST_REAL_SECONDS = 1.0

# A clock of the one session, because it is set before almost every statement: a table would fill.
_USE_CLOCK = """
CREATE OR REPLACE FUNCTION botpool_now() RETURNS timestamptz
    LANGUAGE sql VOLATILE AS $$ SELECT current_setting('botpool.now')::timestamptz $$
"""
_SET_CLOCK = "SELECT set_config('botpool.now', $1, false)"


class _JumpingSelector(selectors.DefaultSelector):
    """Doesn't wait: time jumps instead. Nothing outside talks to this loop, so it needs no look."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            return cast("list[Any]", super().select(_MOST_REAL_SECONDS))
        self.loop.now += max(timeout, 0)
        return []


class NumberedTask(asyncio.Task[_Result]):
    """A task with a number as its hash, so that sets of tasks have the same order in every run."""

    def __init__(self, coroutine: Any, *, number: int, **options: Any) -> None:
        self.number = number
        self.process: Process | None = None
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        """Its number, in place of its address in memory."""
        return self.number

    def __eq__(self, other: object) -> bool:
        """Only the task itself is equal to it."""
        return self is other


class Process:
    """Tasks that live and die together. A task that one of them creates belongs to it, too."""

    def __init__(self) -> None:
        self._tasks: dict[NumberedTask[Any], None] = {}
        self.dead = False

    def spawn(self, coroutine: Coroutine[Any, Any, _Result]) -> NumberedTask[_Result]:
        """Begin a task of this process."""
        loop = cast("VirtualLoop", asyncio.get_running_loop())
        task: NumberedTask[_Result] = loop.create_task(coroutine)
        self.adopt(task)
        return task

    def adopt(self, task: NumberedTask[Any]) -> None:
        """Add a task to this process."""
        if task.process is not None:
            task.process._tasks.pop(task, None)  # noqa: SLF001 - another one of ours
        task.process = self
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    def kill(self) -> None:
        """Cancel every task."""
        self.dead = True
        for task in [*self._tasks]:
            task.cancel()

    def __len__(self) -> int:
        """How many tasks it has."""
        return len(self._tasks)

    def _ended(self, task: asyncio.Future[Any]) -> None:
        self._tasks.pop(cast("NumberedTask[Any]", task), None)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop with its own time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._numbers = count(1)
        selector = _JumpingSelector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        """Seconds since the beginning."""
        return self.now

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, _Result], **options: Any
    ) -> NumberedTask[_Result]:
        """A numbered task. It belongs to the process of the task that creates it."""
        task = NumberedTask[_Result](coro, loop=self, number=next(self._numbers), **options)
        creator = asyncio.current_task(self)
        if isinstance(creator, NumberedTask) and creator.process is not None:
            creator.process.adopt(task)
        return task


@contextmanager
def _outside(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Let another loop run within a task of this one."""
    task = asyncio.current_task(loop)
    if task is not None:
        asyncio.tasks._leave_task(loop, task)  # noqa: SLF001 - as event loops do
    asyncio._set_running_loop(None)  # noqa: SLF001
    try:
        yield
    finally:
        asyncio._set_running_loop(loop)  # noqa: SLF001
        if task is not None:
            asyncio.tasks._enter_task(loop, task)  # noqa: SLF001


class ClockedDatabase(Database):
    """Sets the database's time to the loop's, and runs each statement at once."""

    def __init__(
        self, connections: asyncpg.Pool[asyncpg.Record], outside: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(connections)
        self._outside = outside
        self._told: datetime | None = None
        self.ahead = timedelta()
        """How far the database's clock is ahead of the loop's."""

    @classmethod
    @asynccontextmanager
    async def opened(cls, url: str) -> AsyncIterator[Self]:
        """A migrated, unused database that uses this loop's time from now on."""
        loop = asyncio.get_running_loop()
        outside = asyncio.new_event_loop()
        with _outside(loop):
            connecting = open_connections(Servers(Address.read(url)), 1)
            database = cls(outside.run_until_complete(connecting), outside)
            outside.run_until_complete(Database.execute(database, _USE_CLOCK))
        try:
            yield database
        finally:
            with _outside(loop):
                outside.run_until_complete(database.close())
                outside.close()

    def now(self) -> datetime:
        """The database's time."""
        return BEGIN + timedelta(seconds=asyncio.get_running_loop().time()) + self.ahead

    async def fetch(self, sql: str, *args: object) -> list[asyncpg.Record]:
        """Run one statement and return its rows."""
        return self._at_once(super().fetch(sql, *args))

    async def fetch_one(self, sql: str, *args: object) -> asyncpg.Record | None:
        """Run one statement and return its first row, if it has one."""
        return self._at_once(super().fetch_one(sql, *args))

    async def execute(self, sql: str, *args: object, seconds: float | None = None) -> int:
        """Run one statement and return how many rows it touched."""
        return self._at_once(super().execute(sql, *args, seconds=seconds))

    async def listen(self, channel: str, heard: Callable[[], None]) -> None:
        """Do nothing: the time at which a notification arrives can't be repeated. Polls suffice."""
        await asyncio.Event().wait()

    def _at_once(self, statement: Coroutine[Any, Any, _Result]) -> _Result:
        now = self.now()
        with _outside(asyncio.get_running_loop()):
            return self._outside.run_until_complete(self._at(now, statement))

    async def _at(self, now: datetime, statement: Coroutine[Any, Any, _Result]) -> _Result:
        if self._told != now:
            await super().execute(_SET_CLOCK, now.isoformat())
            self._told = now
        try:
            return await statement
        except BaseException:
            self._told = None  # an error may have cost the session
            raise


def run_virtually(main: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a coroutine in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
