"""One call is made for all callers that ask while it is under way."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from botpool.errors import EngineUnavailable
from botpool.tasks.sharing import KeptCall, SharedCall
from tests.support.virtual_time import virtual


def now() -> float:
    return asyncio.get_running_loop().time()


class Source:
    """Tells how often it was asked, after some seconds, or raises an error."""

    def __init__(self, takes: float = 5.0) -> None:
        self.takes = takes
        self.error: Exception | None = None
        self.asked = 0
        self.answered = 0

    async def __call__(self) -> int:
        self.asked += 1
        number = self.asked
        await asyncio.sleep(self.takes)
        self.answered += 1
        if self.error is not None:
            raise self.error
        return number


@virtual
async def test_one_call_is_made_for_all_who_ask_while_it_is_under_way() -> None:
    source = Source()
    call = SharedCall(source)
    first = [asyncio.create_task(call()) for _ in range(50)]
    await asyncio.sleep(4)
    assert await asyncio.gather(*first, *(call() for _ in range(50))) == [1] * 100
    assert (source.asked, now()) == (1, 5)


@virtual
async def test_the_next_who_asks_makes_another_call() -> None:
    call = SharedCall(Source())
    assert [await call(), await call()] == [1, 2]
    assert now() == 10


@pytest.mark.parametrize("number", [0, 2], ids=["the first", "another one"])
@virtual
async def test_a_caller_that_is_cancelled_leaves_the_call_to_the_others(number: int) -> None:
    source = Source()
    call = SharedCall(source)
    callers = [asyncio.create_task(call()) for _ in range(3)]
    await asyncio.sleep(1)
    callers[number].cancel()
    found = await asyncio.gather(*callers, return_exceptions=True)
    assert isinstance(found.pop(number), asyncio.CancelledError)
    assert (found, source.asked, now()) == ([1, 1], 1, 5)


@virtual
async def test_what_it_raises_reaches_every_caller_and_not_the_next() -> None:
    source = Source()
    call = SharedCall(source)
    source.error = EngineUnavailable("no answer")
    failed = await asyncio.gather(*(call() for _ in range(3)), return_exceptions=True)
    assert failed == [source.error] * 3
    assert source.asked == 1
    source.error = None
    assert await call() == 2


@virtual
async def test_a_call_that_all_have_left_goes_on_and_fails_without_a_complaint() -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    source = Source()
    source.error = EngineUnavailable("no answer")
    call = SharedCall(source)
    caller = asyncio.create_task(call())
    await asyncio.sleep(1)
    caller.cancel()
    await asyncio.sleep(10)
    assert (caller.cancelled(), source.answered) == (True, 1)
    del call, caller
    gc.collect()
    assert complaints == []


@virtual
async def test_a_call_that_is_given_up_is_over_and_the_next_one_is_not() -> None:
    source = Source()
    call = SharedCall(source)
    slow = call.begin()
    assert call.begin() is slow
    await asyncio.sleep(1)
    call.give_up(slow)
    other = asyncio.create_task(call())
    await asyncio.sleep(1)
    # Given up by each that waited for it.
    call.give_up(slow)
    assert await call() == 2
    assert (await other, slow.cancelled(), source.asked, source.answered) == (2, True, 2, 1)


@virtual
async def test_a_call_that_is_closed_is_over_when_that_returns() -> None:
    source = Source(takes=1000)
    call = SharedCall(source)
    await call.close()
    asking = asyncio.create_task(call())
    await asyncio.sleep(1)
    under_way = call.begin()
    await call.close()
    assert under_way.cancelled()
    assert (source.asked, source.answered, now()) == (1, 0, 1)
    with pytest.raises(asyncio.CancelledError):
        await asking


@virtual
async def test_a_result_is_kept_for_a_while_and_an_error_is_not() -> None:
    source = Source(takes=1)
    call = KeptCall(source, 3, clock=now)
    assert [*await asyncio.gather(call(), call())] == [1, 1]
    await asyncio.sleep(1)
    assert await call() == 1
    await asyncio.sleep(1)
    assert await call() == 2
    source.error = EngineUnavailable("away")
    await asyncio.sleep(3)
    with pytest.raises(EngineUnavailable):
        await call()
    source.error = None
    assert await call() == 4
