"""Many bots at once: created, stopped and found; and the data of one deleted."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from botpool.states import BotStatus, Platform
from tests.integration.test_bots_api import BOTS, MEET, Api, opened, problem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from botpool.store import Database

ZOOM = "https://zoom.us/j/92345678901"


@pytest.fixture
async def api(database: Database) -> AsyncIterator[Api]:
    async with opened(database) as api:
        yield api


async def bulk(api: Api, *bots: Any) -> list[dict[str, Any]]:
    answer = await api.alice.post(f"{BOTS}/bulk", json={"bots": list(bots)})
    assert answer.status_code == 200, answer.text
    results: list[dict[str, Any]] = answer.json()["results"]
    return results


# Created


async def test_bots_are_created_together_and_each_has_its_own_answer(api: Api) -> None:
    results = await bulk(
        api,
        {"meetingUrl": MEET, "metadata": {"n": 1}},
        {"meetingUrl": "https://example.com"},
        {"meetingUrl": MEET, "surprise": True},
        *({"meeting_url": MEET} for _ in range(3)),
        {"meetingUrl": MEET, "metadata": {"a": "\x00"}},
        "nonsense",
    )
    created = [result["bot"]["status"] for result in results if "bot" in result]
    assert created == ["DEPLOYING", "DEPLOYING", "DEPLOYING", "QUEUED"]
    assert results[0]["bot"]["metadata"] == {"n": 1}
    assert results[5]["queuePosition"] == 1
    errors = [results[place]["error"] for place in (1, 2, 6, 7)]
    assert [(error["status"], error["code"]) for error in errors] == [
        (422, "meeting_url_unknown"),
        *[(422, "invalid_request")] * 3,
    ]
    assert [[field["pointer"] for field in error["errors"]] for error in errors] == [
        ["#/meetingUrl"],
        ["#/surprise"],
        ["#/metadata"],
        ["#"],
    ]
    assert await api.count() == 4


async def test_a_bulk_is_one_write_for_each_platform(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = api.store.bots.create
    batches = []

    async def counted(platform: Platform, bots: Any, *, grow: bool) -> Any:
        batches.append((platform, len(bots), grow))
        return await create(platform, bots, grow=grow)

    monkeypatch.setattr(api.store.bots, "create", counted)
    asked = [{"meetingUrl": url} for url in (MEET, ZOOM) for _ in range(50)]
    assert all("bot" in result for result in await bulk(api, *asked))
    assert sorted(batches) == [
        (platform, 50, grow)
        for platform in (Platform.GOOGLE_MEET, Platform.ZOOM)
        for grow in (False, True)
    ]


async def test_a_request_in_a_bulk_is_repeated_by_its_own_key(api: Api) -> None:
    asked = [{"meetingUrl": MEET, "idempotencyKey": key} for key in ("a", "b")]
    first = await bulk(api, *asked)
    again = await bulk(api, *asked, {"meetingUrl": ZOOM, "idempotencyKey": "a"})
    assert [result["bot"]["id"] for result in again[:2]] == [r["bot"]["id"] for r in first]
    assert again[2]["error"]["code"] == "idempotency_mismatch"
    alone = await api.alice.post(BOTS, json={"meetingUrl": MEET}, headers={"Idempotency-Key": "b"})
    assert alone.json()["bot"]["id"] == first[1]["bot"]["id"]
    (twice,) = await bulk(api, {"meetingUrl": MEET, "deduplicationKey": "d"})
    (refused,) = await bulk(api, {"meetingUrl": MEET, "deduplicationKey": "d"})
    error = refused["error"]
    assert (error["code"], error["botId"]) == ("duplicate_bot", twice["bot"]["id"])


@pytest.mark.parametrize("count", [0, 101])
async def test_a_bulk_is_bounded(api: Api, count: int) -> None:
    body = {"bots": [{"meetingUrl": MEET}] * count}
    problem(await api.alice.post(f"{BOTS}/bulk", json=body), 422, "invalid_request")
    problem(await api.alice.post(f"{BOTS}/stop", json={"ids": [1] * count}), 422, "invalid_request")
    assert await api.count() == 0


# Stopped


async def test_bots_are_stopped_together_and_only_ones_own(api: Api) -> None:
    mine = [result["bot"]["id"] for result in await bulk(api, *[{"meetingUrl": MEET}] * 2)]
    theirs = (await api.ask(api.bob)).json()["bot"]["id"]
    slot = await api.slot_of(mine[1])
    await api.pool.assignments.advance(slot.id, slot.lease, BotStatus.IN_CALL, "admitted")
    asked = [*mine, theirs, 2**63, -1, mine[0]]
    answer = await api.alice.post(f"{BOTS}/stop", json={"ids": asked, "reason": "over"})
    results = answer.json()["results"]
    assert [result["bot"]["status"] for result in (*results[:2], results[5])] == [
        "CANCELLED",
        "LEAVING",
        "CANCELLED",
    ]
    assert [result["error"]["code"] for result in results[2:5]] == ["bot_not_found"] * 3
    assert (await api.store.bots.get(theirs)).status is BotStatus.DEPLOYING
    assert (await api.store.transitions.timeline(mine[0]))[-1].reason == "over"


# Found


async def test_bots_are_found_by_metadata_meeting_and_time(api: Api) -> None:
    began = await api.store.installation.now()
    bots = []
    for body in (
        {"metadata": {"team": "sales", "order": 7}},
        {"metadata": {"team": "sales", "order": "7", "a.b": True}},
        {"metadata": {"team": "support"}, "meetingUrl": ZOOM},
    ):
        bots.append((await api.ask(**body)).json()["bot"]["id"])
        await api.pass_time(hours=1)

    async def found(**parameters: Any) -> list[int]:
        answer = await api.alice.get(BOTS, params=parameters)
        assert answer.status_code == 200, answer.text
        return [bots.index(bot["id"]) for bot in answer.json()["bots"]]

    assert await found(**{"metadata.team": "sales"}) == [1, 0]
    assert await found(**{"metadata[team]": "support"}) == [2]
    assert await found(**{"metadata.team": "sales", "metadata.order": "7"}) == [1, 0]
    assert await found(**{"metadata.a.b": "true"}) == [1]
    assert await found(**{"metadata.team": "nobody"}) == []
    assert await found(**{"metadata.team": "sales", "platform": "zoom"}) == []
    assert await found(meetingUrl=ZOOM) == [2]
    at = [(began + timedelta(hours=n)).isoformat() for n in range(4)]
    assert await found(createdAfter=at[1]) == [2, 1]
    assert await found(createdBefore=at[1]) == [0]
    assert await found(createdAfter=at[1], createdBefore=at[2]) == [1]
    assert await found(createdBefore=at[0]) == []
    assert await found(createdAfter=at[3]) == []
    answer = await api.bob.get(BOTS, params={"metadata.team": "sales"})
    assert answer.json()["bots"] == []


@pytest.mark.parametrize(
    "parameters",
    [
        {f"metadata.{n}": "x" for n in range(11)},
        {"metadata.a": "\x00"},
        {"createdAfter": "yesterday"},
        {"createdAfter": "0.5"},
        {"createdBefore": "1767225600"},
        {"createdBefore": "2026-01-01T00:00:00"},
    ],
)
async def test_a_condition_that_cannot_be_is_refused(api: Api, parameters: dict[str, str]) -> None:
    problem(await api.alice.get(BOTS, params=parameters), 422, "invalid_request")


# Looked at


async def test_a_bot_tells_what_was_asked_and_when_it_was_in_its_call(api: Api) -> None:
    asked: dict[str, Any] = {"maxLaunchAttempts": 3, "relaunchInCall": True, "queueTimeoutMs": 5000}
    bot_id = (await api.ask(**asked, maxDurationMs=60_000)).json()["bot"]["id"]
    slot = await api.slot_of(bot_id)
    joined = await api.pass_time(seconds=5)
    await api.pool.assignments.advance(slot.id, slot.lease, BotStatus.IN_CALL, "admitted")
    shown = (await api.alice.get(f"{BOTS}/{bot_id}")).json()
    assert asked.items() <= shown.items()
    assert (shown["maxDurationMs"], shown["leftAt"], shown["waitingFor"]) == (60_000, None, None)
    left = await api.pass_time(seconds=5)
    await api.pool.assignments.advance(slot.id, slot.lease, BotStatus.LEAVING, "over")
    await api.pass_time(seconds=5)
    await api.end(slot)
    shown = (await api.alice.get(f"{BOTS}/{bot_id}")).json()
    times = [at.isoformat().replace("+00:00", "Z") for at in (joined, left)]
    assert [shown["joinedAt"], shown["leftAt"]] == times
    assert shown["endedAt"] > shown["leftAt"]


# Deleted


async def test_the_data_of_an_ended_bot_is_deleted_and_the_slots_story_stays(api: Api) -> None:
    made = (await api.ask(metadata={"name": "secret"}, callbackUrl="https://example.com")).json()
    bot_id = made["bot"]["id"]
    slot = await api.slot_of(bot_id)
    say = api.pool.assignments
    await say.advance(slot.id, slot.lease, BotStatus.IN_CALL, "admitted by secret")
    await say.add_events(slot.id, slot.lease, [("chat", {"text": "secret"})])
    await say.add_log_lines(slot.id, slot.lease, [("info", "secret")])
    problem(await api.alice.delete(f"{BOTS}/{bot_id}"), 409, "bot_live")
    await say.advance(slot.id, slot.lease, BotStatus.FATAL, "secret")
    problem(await api.bob.delete(f"{BOTS}/{bot_id}"), 404, "bot_not_found")
    assert (await api.alice.delete(f"{BOTS}/{bot_id}")).status_code == 204
    problem(await api.alice.delete(f"{BOTS}/{bot_id}"), 404, "bot_not_found")
    problem(await api.alice.get(f"{BOTS}/{bot_id}/timeline"), 404, "bot_not_found")
    await api.pool.slots.make_idle(slot.id, slot.lease)
    for table in (
        *("bots", "bot_events", "bot_logs", "container_logs"),
        *("webhook_deliveries", "webhook_attempts", "transitions"),
    ):
        rows = await api.database.fetch(f"SELECT t::text FROM {table} t")
        assert not [row for row in rows if "secret" in row[0]], table
    story = (await api.admin.get(f"/api/v1/slots/{slot.id}/timeline")).json()["events"]
    assert [(e["data"]["status"], e["data"]["botId"]) for e in reversed(story)] == [
        ("deploying", None),
        ("busy", None),
        ("releasing", None),
        ("idle", bot_id),
    ]


async def test_what_a_slot_still_has_is_not_deleted(api: Api) -> None:
    """Its bot has ended, and its slot was not told yet, as a crash between the two leaves it."""
    bot, slot = await api.running()
    await api.database.execute(
        "UPDATE bots SET status = 'DONE', ended_at = botpool_now() WHERE id = $1", bot.id
    )
    problem(await api.admin.delete(f"{BOTS}/{bot.id}"), 409, "bot_live")
    await api.end(slot)
    assert (await api.admin.delete(f"{BOTS}/{bot.id}")).status_code == 204
