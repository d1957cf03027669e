"""Work that is cancelled comes to its end all the same."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from botpool.tasks.finish import finish
from tests.support.virtual_time import virtual


def now() -> float:
    return asyncio.get_running_loop().time()


class Work:
    """Takes its time, and notes when it came to its end."""

    def __init__(self, seconds: float, error: Exception | None = None) -> None:
        self.seconds = seconds
        self.error = error
        self.ended_at: float | None = None

    async def __call__(self) -> str:
        await asyncio.sleep(self.seconds)
        self.ended_at = now()
        if self.error is not None:
            raise self.error
        return "done"


async def cancel_after(task: asyncio.Task[Any], *seconds: float) -> None:
    """Cancel a task at these times."""
    for at in seconds:
        await asyncio.sleep(at - now())
        task.cancel()


@virtual
async def test_what_is_not_cancelled_is_awaited_however_long_it_takes() -> None:
    assert await finish(Work(100)()) == "done"
    assert await finish(Work(100)(), seconds=5) == "done"
    with pytest.raises(ZeroDivisionError):
        await finish(Work(100, ZeroDivisionError())())
    assert now() == 300


@pytest.mark.parametrize("times", [(1,), (1, 2), (1, 2, 9)], ids=len)
@virtual
async def test_a_cancellation_comes_after_the_end_of_the_work(times: tuple[float, ...]) -> None:
    work = Work(10)
    task = asyncio.create_task(finish(work()))
    await cancel_after(task, *times)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (work.ended_at, now()) == (10, 10)
    assert task.cancelled()


@virtual
async def test_a_timeout_around_it_comes_after_the_end_of_the_work() -> None:
    work = Work(10)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await finish(work())
    assert (work.ended_at, now()) == (10, 10)


@pytest.mark.parametrize("times", [(2,), (2, 4), (2, 4, 6.5)], ids=len)
@virtual
async def test_once_cancelled_it_waits_for_its_seconds_and_the_work_goes_on(
    times: tuple[float, ...],
) -> None:
    work = Work(10)
    task = asyncio.create_task(finish(work(), seconds=5))
    await cancel_after(task, *times)
    with pytest.raises(asyncio.CancelledError):
        await task
    # However often it is cancelled, the first time counts.
    assert (work.ended_at, now()) == (None, 7)
    await asyncio.sleep(10)
    assert work.ended_at == 10


@virtual
async def test_work_that_ends_within_the_seconds_is_not_waited_for_any_longer() -> None:
    work = Work(4)
    task = asyncio.create_task(finish(work(), seconds=5))
    await cancel_after(task, 2)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (work.ended_at, now()) == (4, 4)


@pytest.mark.parametrize("seconds", [1, 100], ids=["leaves", "stays"])
@virtual
async def test_an_error_after_the_cancellation_is_lost_without_a_complaint(seconds: float) -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    work = Work(10, ZeroDivisionError())
    task = asyncio.create_task(finish(work(), seconds=seconds))
    await cancel_after(task, 2)
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(10)
    assert work.ended_at == 10
    del task
    gc.collect()
    assert complaints == []
