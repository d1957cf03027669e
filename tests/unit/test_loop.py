"""A loop looks when it is woken, every so often in any case, and whatever goes wrong."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from botpool.tasks.loop import Loop
from tests.support.virtual_time import virtual

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

POLL = 10.0


def now() -> float:
    return asyncio.get_running_loop().time()


class Lookout:
    """Notes when it looks, takes so long for it, and says or raises what it is told to."""

    def __init__(self, *says: float | Exception, takes: float = 0.0) -> None:
        self.times: list[float] = []
        self.takes = takes
        self._says = [*says]
        self.loop = Loop(self._look, poll_seconds=POLL, failed="no look")

    async def _look(self) -> float:
        self.times.append(now())
        await asyncio.sleep(self.takes)
        said = self._says.pop(0) if self._says else self.loop.poll_seconds
        if isinstance(said, Exception):
            raise said
        return said

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[asyncio.Task[None]]:
        """Its loop runs until the end of the block."""
        task = asyncio.create_task(self.loop.run())
        yield task
        self.loop.stop()
        await task


@virtual
async def test_it_looks_at_once_and_then_every_so_often() -> None:
    lookout = Lookout()
    async with lookout.at_work():
        await asyncio.sleep(35)
    assert lookout.times == [0, 10, 20, 30]


@virtual
async def test_a_look_says_when_the_next_one_is() -> None:
    lookout = Lookout(3, 0, 0, 4)
    async with lookout.at_work():
        await asyncio.sleep(10)
    assert lookout.times == [0, 3, 3, 3, 7]


@virtual
async def test_it_looks_at_once_when_it_is_woken() -> None:
    lookout = Lookout()
    async with lookout.at_work():
        for seconds in (1, 2):
            await asyncio.sleep(seconds)
            lookout.loop.wake()
        await asyncio.sleep(12)
    assert lookout.times == [0, 1, 3, 13]


@virtual
async def test_woken_during_a_look_it_looks_again_at_once() -> None:
    """What it was woken for may have come after what it looked at."""
    lookout = Lookout(takes=4)
    async with lookout.at_work():
        await asyncio.sleep(1)
        lookout.loop.wake()
        lookout.loop.wake()
        await asyncio.sleep(5)
    assert lookout.times == [0, 4]


@virtual
async def test_a_look_that_fails_is_logged_and_done_again_after_a_while() -> None:
    lookout = Lookout(ValueError("no answer"), KeyError(), TimeoutError())
    with capture_logs() as lines:
        async with lookout.at_work():
            await asyncio.sleep(35)
    assert lookout.times == [0, 10, 20, 30]
    assert [(line["event"], line["log_level"]) for line in lines] == [("no look", "warning")] * 3
    assert [line["error"] for line in lines] == ["no answer", "KeyError", "TimeoutError"]


@virtual
async def test_a_loop_that_waits_after_a_failure_can_be_woken() -> None:
    lookout = Lookout(ValueError("no answer"))
    async with lookout.at_work():
        await asyncio.sleep(1)
        lookout.loop.wake()
        await asyncio.sleep(1)
    assert lookout.times == [0, 1]


@pytest.mark.parametrize(("takes", "ended_at"), [(0, 3), (5, 5)], ids=["while it waits", "within"])
@virtual
async def test_told_to_stop_it_ends_after_the_look_that_is_under_way(
    takes: float, ended_at: float
) -> None:
    lookout = Lookout(takes=takes)
    async with lookout.at_work() as task:
        await asyncio.sleep(3)
        before = lookout.loop.stopping
        lookout.loop.stop()
        assert (before, lookout.loop.stopping) == (False, True)
        await task
    assert (lookout.times, now()) == ([0], ended_at)


@virtual
async def test_stopped_before_it_runs_it_never_looks() -> None:
    lookout = Lookout()
    lookout.loop.stop()
    await lookout.loop.run()
    assert lookout.times == []


@virtual
async def test_a_loop_that_is_cancelled_ends() -> None:
    lookout = Lookout(takes=5)
    task = asyncio.create_task(lookout.loop.run())
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (lookout.times, now()) == ([0], 1)
