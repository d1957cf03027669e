"""What real processes tell: metrics of several replicas, and the story of a bot in the log."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import orjson
from prometheus_client.parser import text_string_to_metric_families

from tests.support.receiver import running_receiver
from tests.support.server import BOTS, ENDED, MEET, served
from tests.support.waiting import a_moment

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.server import Serve

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def scraped(botpool: Serve) -> Samples:
    answer = await botpool.client.get("/metrics")
    assert answer.status_code == 200
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def total(replicas: list[Samples], name: str, **labels: str) -> float:
    """The sum over replicas, and over all series with these labels."""
    return sum(
        value
        for samples in replicas
        for (found, its), value in samples.items()
        if found == name and labels.items() <= dict(its).items()
    )


async def test_two_replicas_count_each_bot_once_and_say_the_same_of_the_pool(folder: Path) -> None:
    async with served(folder) as first, served(folder) as second:
        await first.ask(3, stayMs=300)
        await second.ask(3, stayMs=300)
        await first.until(*ENDED)

        async def look() -> list[Samples]:
            return [await scraped(first), await scraped(second)]

        # What came of a bot is read a moment after it was written.
        while total(found := await look(), "botpool_bots_ended_total") < 6:
            await a_moment()
        while await pending(first):
            await a_moment()
        found = await look()
        assert total(found, "botpool_bots_ended_total", status="DONE", cause="") == 6
        for phase in ("queued", "started", "claimed", "joined", "total"):
            name = "botpool_launch_seconds_count"
            assert total(found, name, phase=phase, engine="process", platform="google-meet") == 6
        assert total(found, "botpool_heartbeats_total") >= 6
        assert total(found, "botpool_engine_call_seconds_count", call="start", outcome="ok") >= 6
        for samples in found:
            # Equal on both, and so not to be summed.
            assert total([samples], "botpool_replicas", role="worker") == 2
            assert total([samples], "botpool_slots", status="idle") == total(
                [samples], "botpool_slots"
            )
            assert total([samples], "botpool_build_info") == 1
            assert ("botpool_event_loop_lag_seconds", frozenset()) in samples


async def pending(botpool: Serve) -> bool:
    slots = (await botpool.client.get("/api/v1/slots")).json()["slots"]
    return any(slot["status"] != "idle" for slot in slots)


async def test_one_search_of_the_log_tells_a_bot_s_whole_story(folder: Path) -> None:
    """From the request over a relaunch to the clean slots, with each webhook."""
    async with (
        running_receiver() as receiver,
        served(folder, allow_private_callbacks="true", relaunch_wait_ms="0") as botpool,
    ):
        body = {
            "meetingUrl": MEET,
            "callbackUrl": f"http://127.0.0.1:{receiver.port}/hook",
            "config": {"sample": {"behaviour": "crash_on_join"}},
        }
        bot = (await botpool.client.post(BOTS, json=body)).json()["bot"]
        await botpool.until(*ENDED)
        told = ["DEPLOYING", "JOINING_CALL", "QUEUED", "DEPLOYING", "JOINING_CALL", "FATAL"]
        await receiver.until(len(told))
        while await pending(botpool):
            await a_moment()
        while len(story(botpool, bot, "webhook")) < len(told):
            await asyncio.sleep(0)
        steps = story(botpool, bot, "transition")
        assert [step["to"] for step in steps if step["machine"] == "bot"] == told
        assert [line["outcome"] for line in story(botpool, bot, "webhook")] == ["delivered"] * 6
        slots = {step["slot_name"]: step["to"] for step in steps if step["machine"] == "slot"}
        assert len(slots) == 2
        assert set(slots.values()) == {"idle"}
        lines = [orjson.loads(line) for line in botpool.log.read_text().splitlines()]
        about = [line for line in lines if line.get("bot_id") == bot["id"]]
        assert {line["correlation_id"] for line in about} == {bot["correlationId"]}


def story(botpool: Serve, bot: dict[str, Any], event: str) -> list[dict[str, Any]]:
    """The lines of a kind that a search for the bot's correlation id finds, in order."""
    found = [line for line in botpool.log.read_text().splitlines() if bot["correlationId"] in line]
    return [line for line in map(orjson.loads, found) if line["event"] == event]
