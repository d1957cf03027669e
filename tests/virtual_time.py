"""Time that jumps: an event loop in which nothing is waited for but the database.

When nobody has anything to do before the next timer, the loop's time becomes that timer's. While a
query is under way, time stands still. The database's clock is set to the loop's before each query,
so both sides agree on every millisecond.
"""

from __future__ import annotations

import asyncio
import selectors
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

from botpool.store import Database, Store, connect
from botpool.store.database import _open
from botpool.store.queries import QUERIES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

_Result = TypeVar("_Result")

BEGIN = datetime(2026, 1, 1, 8, tzinfo=UTC)
_MOST_REAL_SECONDS = 1.0


class _JumpingSelector(selectors.DefaultSelector):
    """Waits for what is really outside, and lets time jump otherwise."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return cast("list[Any]", ready)
        if timeout is None or self.loop.outside:
            return cast("list[Any]", super().select(_MOST_REAL_SECONDS))
        self.loop.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is its own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.outside = 0
        """How many wait for something that is not in this process."""
        selector = _JumpingSelector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now

    @contextmanager
    def waiting_outside(self) -> Iterator[None]:
        """Let time stand still for the length of the block."""
        self.outside += 1
        try:
            yield
        finally:
            self.outside -= 1


class _ClockedDatabase(Database):
    """Sets the database's time to the loop's, and lets that stand still, while it is asked."""

    _told = -1.0

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        loop = cast("VirtualLoop", asyncio.get_running_loop())
        with loop.waiting_outside():
            async with super()._connection() as connection:
                if self._told != loop.time():
                    self._told = loop.time()
                    now = BEGIN + timedelta(seconds=self._told)
                    await connection.execute(QUERIES["set_virtual_time"], now)
                yield connection

    async def listen(self, channel: str, heard: Callable[[], None]) -> None:
        """Hear nothing: when an announcement arrives, nobody can repeat. What polls, finds."""
        await asyncio.Event().wait()


@asynccontextmanager
async def clocked_database(url: str) -> AsyncIterator[Database]:
    """A migrated database, not used yet, that lives in this loop's time from now on."""
    loop = cast("VirtualLoop", asyncio.get_running_loop())
    with loop.waiting_outside():
        async with connect(url) as plain:
            await Store(plain).use_virtual_clock()
        database = _ClockedDatabase(await _open(url, 10))
    try:
        yield database
    finally:
        with loop.waiting_outside():
            await database.close()


def run_virtually(main: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a coroutine in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in virtual time."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        run_virtually(test(*args, **kwargs))

    return run
