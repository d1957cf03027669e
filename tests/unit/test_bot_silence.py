"""A bot that can't reach botpool leaves its call in the end, in virtual time."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from botpool.bot import Assignment, AssignmentEnded, Status
from botpool.bot.client import Client, Unreachable
from tests.support.virtual_time import virtual

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

HOUR = 3600.0
CLAIMED = {
    "botId": 42,
    "lease": 7,
    "correlationId": "c-1",
    "meetingUrl": "https://meet.google.com/abc-defg-hij",
    "botDisplayName": "Notes",
    "platform": "google-meet",
    "config": {},
    "heartbeatIntervalMs": 10_000,
    "maxSilenceMs": 3_600_000,
}
AWAY = None
CONTINUE = (200, {"action": "continue", "logLevel": "INFO"})
BUSY = (503, {"code": "database_busy"})
PROXY = (502, None)
PROXY_WITH_JSON = (404, {"message": "no such service"})
STRANGER = (401, {"code": "unauthorized"})


class Botpool(Client):
    """Answers every call in the same way, until a test lets it answer otherwise."""

    def __init__(self) -> None:
        super().__init__("http://botpool:8000", "token", 10)
        self.answer: tuple[int, Any] | None = CONTINUE
        self.told: list[str] = []

    async def exchange(self, verb: str, body: dict[str, Any], seconds: float) -> tuple[int, Any]:
        await asyncio.sleep(0.01)
        if self.answer is None:
            raise Unreachable(f"no route to host in {seconds} s")
        if verb == "status":
            self.told.append(body["status"])
        if verb == "wait" and self.answer is CONTINUE:
            await asyncio.sleep(25)
        return self.answer


def now() -> float:
    return asyncio.get_running_loop().time()


@asynccontextmanager
async def being(botpool: Botpool, **claimed: Any) -> AsyncIterator[Assignment]:
    await botpool.ask("claim", {})
    async with Assignment(botpool, {**CLAIMED, **claimed}) as bot:
        yield bot


@virtual
async def test_a_bot_leaves_when_botpool_was_out_of_reach_for_an_hour() -> None:
    botpool = Botpool()
    async with being(botpool) as bot:
        await asyncio.sleep(8 * HOUR)
        botpool.answer, began = AWAY, now()
        await bot.leave_requested()
        # At most a heartbeat's interval before it was away.
        assert HOUR - 25.1 <= now() - began <= HOUR
        # It is out of its call at once: what can't be told doesn't hold it up.
        await bot.status(Status.LEAVING)
        await bot.event("participant.left")
        await bot.log("left")
    assert now() - began <= HOUR + 1
    assert botpool.told == []


@virtual
async def test_a_shorter_outage_lets_no_bot_leave_and_loses_nothing_that_it_says() -> None:
    botpool = Botpool()
    async with being(botpool) as bot:
        for _ in range(3):
            botpool.answer = AWAY
            said = asyncio.create_task(bot.status(Status.IN_CALL))
            await asyncio.sleep(HOUR - 60)
            botpool.answer = CONTINUE
            await said
            await asyncio.sleep(60)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(bot.leave_requested(), 1)
    assert botpool.told == ["IN_CALL"] * 3 + ["DONE"]


@virtual
@pytest.mark.parametrize("answer", [AWAY, PROXY, PROXY_WITH_JSON, STRANGER])
async def test_what_is_not_botpools_own_word_is_silence(answer: tuple[int, Any] | None) -> None:
    botpool = Botpool()
    async with being(botpool) as bot:
        botpool.answer, began = answer, now()
        await bot.leave_requested()
        assert now() - began <= HOUR
        botpool.answer = AWAY


@virtual
async def test_a_botpool_that_is_busy_is_there() -> None:
    botpool = Botpool()
    async with being(botpool) as bot:
        botpool.answer = BUSY
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(bot.leave_requested(), 3 * HOUR)
        botpool.answer = CONTINUE


@virtual
async def test_a_bot_that_does_not_heed_is_cancelled_a_minute_later() -> None:
    botpool = Botpool()
    began = now()
    with pytest.raises(AssignmentEnded):
        await _stay(botpool)
    assert HOUR + 59 <= now() - began <= HOUR + 61


async def _stay(botpool: Botpool) -> None:
    async with being(botpool):
        botpool.answer = AWAY
        await asyncio.Event().wait()


@virtual
async def test_a_bot_that_is_heard_again_while_it_leaves_says_so() -> None:
    botpool = Botpool()
    async with being(botpool) as bot:
        botpool.answer = AWAY
        await bot.leave_requested()
        botpool.answer = CONTINUE
        await bot.status(Status.LEAVING)
        await asyncio.sleep(HOUR)
    assert botpool.told == ["LEAVING", "DONE"]


@virtual
@pytest.mark.parametrize("claimed", [{"maxSilenceMs": 0}, {"maxSilenceMs": 60_000}])
async def test_the_claim_says_how_long_and_0_means_for_ever(claimed: dict[str, int]) -> None:
    botpool = Botpool()
    async with being(botpool, **claimed) as bot:
        botpool.answer = AWAY
        if claimed["maxSilenceMs"]:
            await asyncio.wait_for(bot.leave_requested(), 61)
        else:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(bot.leave_requested(), 3 * HOUR)
        botpool.answer = CONTINUE


@virtual
async def test_an_older_botpool_that_names_no_bound_has_none() -> None:
    botpool = Botpool()
    await botpool.ask("claim", {})
    older = {name: value for name, value in CLAIMED.items() if name != "maxSilenceMs"}
    async with Assignment(botpool, older) as bot:
        botpool.answer = AWAY
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(bot.leave_requested(), 3 * HOUR)
        botpool.answer = CONTINUE
