"""Calls that arrive together become one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from botpool.errors import DatabaseBusy, DatabaseUnreachable, InvalidRequest
from botpool.tasks.batches import Batcher

if TYPE_CHECKING:
    from collections.abc import Sequence


class Recorder:
    """Runs batches when told to, and remembers them."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.started = asyncio.Event()
        self.gate = asyncio.Event()

    async def __call__(self, items: Sequence[int]) -> list[int]:
        self.batches.append(list(items))
        self.started.set()
        await self.gate.wait()
        if -1 in items:
            raise InvalidRequest
        if -2 in items:
            raise DatabaseUnreachable
        return [item * 10 for item in items]


async def under_way(recorder: Recorder, batcher: Batcher[int, int]) -> asyncio.Task[int]:
    """A call whose batch has begun, so that others gather behind it."""
    first = asyncio.create_task(batcher(0))
    await recorder.started.wait()
    return first


async def test_a_lone_caller_waits_for_no_other() -> None:
    recorder = Recorder()
    recorder.gate.set()
    batcher = Batcher(recorder)
    assert [await batcher(1), await batcher(2)] == [10, 20]
    assert recorder.batches == [[1], [2]]


async def test_what_arrives_while_a_batch_is_under_way_is_the_next_batch() -> None:
    recorder = Recorder()
    batcher = Batcher(recorder)
    first = await under_way(recorder, batcher)
    others = asyncio.gather(*(batcher(item) for item in (1, 2, 3)))
    recorder.gate.set()
    assert [await first, *await others] == [0, 10, 20, 30]
    assert recorder.batches == [[0], [1, 2, 3]]
    assert await batcher(4) == 40


async def batch(items: list[int], most: int = 100) -> tuple[list[type], list[list[int]]]:
    """What becomes of items that arrive together, and in which batches they are run."""
    recorder = Recorder()
    batcher = Batcher(recorder, most=most)
    first = await under_way(recorder, batcher)
    others = asyncio.gather(*map(batcher, items), return_exceptions=True)
    recorder.gate.set()
    await first
    results = [type(result) for result in await others]
    assert await batcher(9) == 90
    return results, recorder.batches[1:-1]


async def test_a_batch_has_its_limit() -> None:
    assert await batch([1, 2, 3, 4, 5], most=2) == ([int] * 5, [[1, 2], [3, 4], [5]])


async def test_an_item_that_cannot_be_met_fails_alone() -> None:
    assert await batch([1, -1, 3]) == (
        [int, InvalidRequest, int],
        [[1, -1, 3], [1], [-1], [3]],
    )


async def test_any_other_error_reaches_every_caller_and_is_not_tried_again() -> None:
    """What became of the batch is not known then: to run it again might do it twice."""
    assert await batch([1, -2, 3]) == ([DatabaseUnreachable] * 3, [[1, -2, 3]])


async def test_a_caller_that_gives_up_does_not_stop_the_work_of_its_batch() -> None:
    recorder = Recorder()
    batcher = Batcher(recorder)
    first = await under_way(recorder, batcher)
    calls = [asyncio.create_task(batcher(item)) for item in (1, 2)]
    await asyncio.sleep(0)
    calls[0].cancel()
    recorder.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await calls[0]
    assert [await first, await calls[1]] == [0, 20]
    assert recorder.batches == [[0], [1, 2]]


async def test_a_batch_behind_a_lock_is_not_tried_again_one_by_one() -> None:
    tried: list[list[int]] = []

    async def locked(items: Sequence[int]) -> list[int]:
        tried.append(list(items))
        raise DatabaseBusy("the lock was not free in time")

    # As if the lock had been waited for as long as all of a batch may take.
    batcher = Batcher(locked, seconds=0)
    outcomes = await asyncio.gather(*(batcher(item) for item in range(30)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [DatabaseBusy] * 30
    assert tried == [[*range(30)]]


async def test_within_its_time_each_of_a_refused_batch_is_tried_alone() -> None:
    tried: list[list[int]] = []

    async def one_at_a_time(items: Sequence[int]) -> list[int]:
        tried.append(list(items))
        if len(items) > 1:
            raise DatabaseBusy("a deadlock")
        return [*items]

    batcher = Batcher(one_at_a_time, seconds=3600)
    assert await asyncio.gather(*(batcher(item) for item in range(3))) == [0, 1, 2]
    assert tried == [[0, 1, 2], [0], [1], [2]]
