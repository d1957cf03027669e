"""Bots over HTTP: asked for, looked at, stopped."""

from __future__ import annotations

import asyncio
import base64
import re
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from botpool.access.keys import Keys
from botpool.access.projects import Projects
from botpool.api import create_app
from botpool.feed.stream import Feed
from botpool.models.hosts import HostFailure
from botpool.models.replicas import ReplicaRole
from botpool.pool import Pool
from botpool.settings import Settings
from botpool.states import (
    BotStatus,
    Platform,
    Role,
    SlotStatus,
)
from botpool.store import Store
from botpool.store.invariants import broken_invariants
from tests.support.scene import Scene, add_host

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from botpool.store import Database

MEET = "https://meet.google.com/abc-defg-hij"
BOTS = "/api/v1/bots"


@dataclass(frozen=True)
class Api(Scene):
    """A pool behind HTTP, as an admin and two clients see it."""

    admin: httpx.AsyncClient
    alice: httpx.AsyncClient
    bob: httpx.AsyncClient

    async def ask(self, client: httpx.AsyncClient | None = None, **body: Any) -> httpx.Response:
        return await (client or self.alice).post(BOTS, json={"meetingUrl": MEET, **body})

    async def count(self) -> int:
        (row,) = await self.database.fetch("SELECT count(*) AS n FROM bots")
        found: int = row["n"]
        return found


@asynccontextmanager
async def opened(database: Database, **settings: Any) -> AsyncIterator[Api]:
    chosen = Settings(**{"max_pool_size": 3, "rate_limit_per_second": 100_000, **settings})
    store = Store(database)
    await store.installation.use_virtual_clock()
    pool = Pool(store, chosen)
    await pool.queue.configure()
    await add_host(pool)
    keys = Keys(store, chosen)
    app = create_app(store, pool, chosen, keys, Feed(store))

    def client(key: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(app),
            base_url="http://botpool",
            headers={"Authorization": f"Bearer {key}"},
        )

    projects = [(await Projects(store).create(name))[0].id for name in ("a", "b")]
    texts = [
        (await keys.create("admin", Role.ADMIN))[1],
        *[(await keys.create("key", Role.CLIENT, project))[1] for project in projects],
    ]
    async with client(texts[0]) as admin, client(texts[1]) as alice, client(texts[2]) as bob:
        yield Api(database, store, pool, admin, alice, bob)
    assert await broken_invariants(database) == []


@pytest.fixture
async def api(database: Database) -> AsyncIterator[Api]:
    async with opened(database) as api:
        yield api


def problem(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["Content-Type"] == "application/problem+json"
    body: dict[str, Any] = response.json()
    assert (body["status"], body["code"]) == (status, code)
    return body


# What slots are made of


async def test_only_operators_see_what_a_bots_slot_is_made_of(api: Api) -> None:
    made = (await api.ask()).json()["bot"]["id"]
    slot = await api.slot_of(made)
    await api.database.execute(
        "UPDATE bot_pool_slots SET container_ref = 'c1', image = 'registry.example/bot',"
        " error_message = 'no answer of 10.0.0.9', step_error = 'no answer of 10.0.0.9'"
    )
    await api.store.replicas.seen("there/1/a", ReplicaRole.WORKER, "1", "there")
    await api.pool.assignments.record_deployment(slot, "process-4711", "starting")
    path = f"{BOTS}/{made}"
    (seen, seen_all), (shown, shown_all) = [
        (
            (await client.get(path)).json(),
            "".join([(await client.get(each)).text for each in (path, BOTS, f"{path}/timeline")]),
        )
        for client in (api.alice, api.admin)
    ]
    internals = ('"here"', '"process', "registry.example", "10.0.0.9", "4711")
    assert [each for each in internals if each in seen_all] == []
    assert [each for each in internals if each not in shown_all] == []
    hidden = {"engine", "host", "image", "errorMessage", "deploymentStatus"}
    different = {name for name, value in seen["slot"].items() if value != shown["slot"][name]}
    assert different == {*hidden, "waitingFor"}
    assert {seen["slot"][name] for name in hidden} == {None}
    assert seen["waitingFor"]["what"] == shown["waitingFor"]["what"] == "engine"
    assert (seen["waitingFor"]["error"], shown["waitingFor"]["error"]) == (
        None,
        "no answer of 10.0.0.9",
    )


# Creation


async def test_a_bot_is_created_on_a_slot(api: Api) -> None:
    response = await api.ask(botDisplayName="Notes", metadata={"a": 1}, config={"b": 2})
    assert response.status_code == 201
    bot = response.json()["bot"]
    assert response.headers["Location"] == f"{BOTS}/{bot['id']}"
    assert bot["status"] == "DEPLOYING"
    assert bot["slotName"] == "pool-google-meet-001"
    assert (bot["platform"], bot["meetingUrl"]) == ("google-meet", MEET)
    assert (bot["metadata"], bot["priority"]) == ({"a": 1}, 100)
    assert {"correlationId", "createdAt", "startedAt", "endedAt", "lastHeartbeat"} <= bot.keys()
    assert {"failureReason", "failureCause", "containerRef", "botDisplayName"} <= bot.keys()
    assert "config" not in bot  # it may hold the bot's secrets


async def test_a_bot_that_finds_no_room_is_told_its_place(api: Api) -> None:
    for _ in range(3):
        await api.ask()
    body = (await api.ask()).json()
    assert (body["bot"]["status"], body["queuePosition"]) == ("QUEUED", 1)
    shown = (await api.alice.get(f"{BOTS}/{body['bot']['id']}")).json()
    assert (shown["queuePosition"], shown["slot"]) == (1, None)


async def test_snake_case_is_accepted(api: Api) -> None:
    response = await api.alice.post(
        BOTS, json={"meeting_url": MEET, "bot_display_name": "N", "queue_timeout_ms": 5}
    )
    assert response.status_code == 201
    assert response.json()["bot"]["botDisplayName"] == "N"


@pytest.mark.parametrize(
    ("body", "part", "code", "errors"),
    [
        (
            {"meetingUrl": "https://example.com/x"},
            "is not a meeting link. Expected https://meet.google.com",
            "meeting_url_unknown",
            [("#/meetingUrl", "meeting_url_unknown")],
        ),
        (
            {"meetingUrl": MEET, "platform": "zoom"},
            "is a google-meet link, but platform is zoom",
            "platform_mismatch",
            [("#/platform", "platform_mismatch")],
        ),
        (
            {"meetingUrl": MEET, "queueTimeoutMs": 600_001},
            "between 0 and 600000 ms",
            "queue_timeout_out_of_bounds",
            [("#/queueTimeoutMs", "queue_timeout_out_of_bounds")],
        ),
        (
            {"meetingUrl": MEET, "callbackUrl": "ftp://example.com"},
            "callback",
            "callback_address_invalid",
            [("#/callbackUrl", "callback_address_invalid")],
        ),
        (
            {"meetingUrl": MEET, "callbackUrl": "http://user:secret@example.com"},
            "callback",
            "callback_address_invalid",
            [("#/callbackUrl", "callback_address_invalid")],
        ),
        (
            {"meetingUrl": MEET, "callbackUrl": "http://127.1/"},
            "callback",
            "callback_address_private",
            [("#/callbackUrl", "callback_address_private")],
        ),
        *(
            ({"meetingUrl": MEET, **body}, part, "invalid_request", [(pointer, code)])
            for body, part, pointer, code in (
                (
                    {"platform": "webex"},
                    "'google-meet', 'microsoft-teams' or 'zoom'",
                    "#/platform",
                    "not_allowed",
                ),
                ({"queueTimeoutMs": -1}, "queueTimeoutMs", "#/queueTimeoutMs", "out_of_bounds"),
                ({"queueTimeoutMs": "soon"}, "queueTimeoutMs", "#/queueTimeoutMs", "wrong_type"),
                ({"priority": 1.5}, "priority", "#/priority", "wrong_type"),
                ({"surprise/~": 1}, "surprise", "#/surprise~1~0", "unknown_field"),
                ({"metadata": "x"}, "metadata", "#/metadata", "wrong_type"),
                ({"metadata": {"a": "\x00"}}, "", "#/metadata", "invalid"),
                ({"botDisplayName": ""}, "botDisplayName", "#/botDisplayName", "too_short"),
                ({"botDisplayName": "x" * 201}, "", "#/botDisplayName", "too_long"),
            )
        ),
        (
            {"priority": -1},
            "meetingUrl",
            "invalid_request",
            [("#/meetingUrl", "required"), ("#/priority", "out_of_bounds")],
        ),
        ([], "", "invalid_request", [("#", "wrong_type")]),
        (None, "", "invalid_request", [("#", "required")]),
    ],
)
async def test_what_cannot_be_is_refused_and_nothing_is_written(
    api: Api, body: Any, part: str, code: str, errors: list[tuple[str, str]]
) -> None:
    found = problem(await api.alice.post(BOTS, json=body), 422, code)
    assert part.lower() in found["detail"].lower()
    assert "secret" not in found["detail"]
    assert [(error["pointer"], error["code"]) for error in found["errors"]] == errors
    assert all(error["detail"] in found["detail"] for error in found["errors"])
    assert await api.count() == 0


async def test_a_body_that_is_too_large_is_refused(api: Api) -> None:
    response = await api.ask(metadata={"a": "x" * 2_000_000})
    problem(response, 413, "request_too_large")
    assert await api.count() == 0


async def test_teams_is_short_for_microsoft_teams(api: Api) -> None:
    url = "https://teams.live.com/meet/9312345678901?p=abc"
    bot = (await api.ask(meetingUrl=url, platform="teams")).json()["bot"]
    assert bot["platform"] == "microsoft-teams"


# The same again


async def test_the_same_request_again_is_the_same_bot_and_the_same_answer(api: Api) -> None:
    async def ask(client: httpx.AsyncClient, name: str = "Notes") -> httpx.Response:
        return await client.post(
            BOTS,
            json={"meetingUrl": MEET, "botDisplayName": name},
            headers={"Idempotency-Key": "once"},
        )

    answers = await asyncio.gather(*(ask(api.alice) for _ in range(8)))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.text for answer in answers}) == 1
    assert await api.count() == 1
    # Much later, when the bot has gone on, by another process.
    slot = await api.slot_of(answers[0].json()["bot"]["id"])
    await api.pool.assignments.advance(slot.id, slot.lease, BotStatus.IN_CALL, "admitted")
    async with opened_again(api) as again:
        assert (await ask(again)).text == answers[0].text
    problem(await ask(api.alice, "Other"), 422, "idempotency_mismatch")
    # Another caller's key is another key.
    assert (await ask(api.bob)).json()["bot"]["id"] != answers[0].json()["bot"]["id"]
    assert await api.count() == 2


@asynccontextmanager
async def opened_again(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    """Another process on the same database, as the same caller sees it."""
    store = Store(api.database)
    settings = Settings(max_pool_size=3)
    app = create_app(store, Pool(store, settings), settings, Keys(store, settings), Feed(store))
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://botpool", headers=api.alice.headers
    ) as client:
        yield client


async def test_the_same_request_is_known_whatever_the_order_of_its_fields(api: Api) -> None:
    headers = {"Idempotency-Key": "once", "Content-Type": "application/json"}
    bodies = [
        f'{{"meetingUrl": "{MEET}", "botDisplayName": "N"}}',
        f'{{"bot_display_name": "N", "meeting_url": "{MEET}"}}',
    ]
    first, second = [await api.alice.post(BOTS, content=b, headers=headers) for b in bodies]
    assert first.text == second.text


async def test_a_bot_that_ends_meanwhile_is_in_nobodys_way(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = (await api.ask(deduplicationKey="standup")).json()["bot"]["id"]
    look = api.store.bots.of_deduplication_key

    async def ends_before_it_is_looked_for(project_id: int, key: str) -> Any:
        await api.pool.assignments.stop_bot(first, "over")
        return await look(project_id, key)

    monkeypatch.setattr(api.store.bots, "of_deduplication_key", ends_before_it_is_looked_for)
    second = await api.ask(deduplicationKey="standup")
    assert second.status_code == 201
    assert second.json()["bot"]["id"] != first


async def test_a_bot_that_is_always_in_the_way_and_never_found_is_not_waited_for(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.ask(deduplicationKey="standup")

    async def never(*_: object) -> None:
        return None

    monkeypatch.setattr(api.store.bots, "of_deduplication_key", never)
    problem(await api.ask(deduplicationKey="standup"), 503, "database_busy")


async def test_one_live_bot_has_a_deduplication_key(api: Api) -> None:
    answers = await asyncio.gather(*(api.ask(deduplicationKey="standup") for _ in range(5)))
    (made,) = [answer for answer in answers if answer.status_code == 201]
    bot_id = made.json()["bot"]["id"]
    for answer in answers:
        if answer is not made:
            assert problem(answer, 409, "duplicate_bot")["botId"] == bot_id
    assert (await api.ask(api.bob, deduplicationKey="standup")).status_code == 201
    await api.alice.post(f"{BOTS}/{bot_id}/stop")
    assert (await api.ask(deduplicationKey="standup")).status_code == 201


# Looking


async def test_bots_are_listed_newest_first_page_by_page(api: Api) -> None:
    made = [(await api.ask()).json()["bot"]["id"] for _ in range(5)]
    seen, cursor = [], None
    while True:
        parameters = {"limit": 2} | ({"cursor": cursor} if cursor else {})
        page = (await api.alice.get(BOTS, params=parameters)).json()
        seen += [bot["id"] for bot in page["bots"]]
        cursor = page["nextCursor"]
        if cursor is None:
            break
    assert seen == made[::-1]


async def test_bots_are_filtered(api: Api) -> None:
    first = (await api.ask(deduplicationKey="one")).json()["bot"]
    second = (await api.ask(meetingUrl="https://zoom.us/j/1234567890")).json()["bot"]
    await api.alice.post(f"{BOTS}/{second['id']}/stop")

    async def listed(**parameters: Any) -> list[int]:
        found = (await api.alice.get(BOTS, params=parameters)).json()
        return [bot["id"] for bot in found["bots"]]

    assert await listed(status="CANCELLED") == [second["id"]]
    assert await listed(status=["CANCELLED", "DEPLOYING"]) == [second["id"], first["id"]]
    assert await listed(platform="zoom") == [second["id"]]
    assert await listed(platform="teams") == []
    assert await listed(correlationId=first["correlationId"]) == [first["id"]]
    assert await listed(deduplicationKey="one") == [first["id"]]
    assert await listed(containerRef="none") == []


@pytest.mark.parametrize(
    ("parameters", "code", "pointer"),
    [
        ({"cursor": "nonsense"}, "invalid_cursor", "query:cursor"),
        ({"cursor": "LTE"}, "invalid_cursor", "query:cursor"),
        ({"limit": 0}, "invalid_request", "query:limit"),
        ({"limit": 201}, "invalid_request", "query:limit"),
        ({"status": "SLEEPING"}, "invalid_request", "query:status:0"),
        ({"platform": "webex"}, "invalid_request", "query:platform"),
    ],
)
async def test_a_list_that_cannot_be_is_refused(
    api: Api, parameters: dict[str, Any], code: str, pointer: str
) -> None:
    found = problem(await api.alice.get(BOTS, params=parameters), 422, code)
    assert next(iter(parameters)) in found["detail"]
    assert [error["pointer"] for error in found["errors"]] == [pointer]


@pytest.mark.parametrize("bot_id", ["999", str(2**63 - 1), str(2**70)])
async def test_a_bot_that_is_not_there_is_not_found(api: Api, bot_id: str) -> None:
    answers = [
        *[await api.alice.get(f"{BOTS}/{bot_id}{path}") for path in ("", "/timeline", "/logs")],
        await api.alice.post(f"{BOTS}/{bot_id}/stop"),
    ]
    told = {problem(answer, 404, "bot_not_found")["detail"] for answer in answers}
    assert told == {f"There is no bot {bot_id}."}


async def test_a_client_sees_and_stops_its_own_bots_alone(api: Api) -> None:
    bot = (await api.ask()).json()["bot"]
    for path in ("", "/timeline", "/logs"):
        problem(await api.bob.get(f"{BOTS}/{bot['id']}{path}"), 404, "bot_not_found")
        assert (await api.admin.get(f"{BOTS}/{bot['id']}{path}")).status_code == 200
    problem(await api.bob.post(f"{BOTS}/{bot['id']}/stop"), 404, "bot_not_found")
    assert (await api.bob.get(BOTS)).json()["bots"] == []
    parameters = {"correlationId": bot["correlationId"]}
    assert (await api.bob.get(BOTS, params=parameters)).json()["bots"] == []
    assert len((await api.admin.get(BOTS)).json()["bots"]) == 1


async def test_a_timeline_has_what_happened_and_what_the_bot_told(api: Api) -> None:
    bot = (await api.ask()).json()["bot"]
    slot = await api.slot_of(bot["id"])
    await api.pool.assignments.advance(slot.id, slot.lease, BotStatus.IN_CALL, "admitted")
    await api.pass_time(seconds=1)
    await api.pool.assignments.add_events(
        slot.id, slot.lease, [("participant.joined", {"name": "A"})]
    )
    await api.pool.assignments.add_log_lines(slot.id, slot.lease, [("info", "recording")])
    *steps, told = (await api.alice.get(f"{BOTS}/{bot['id']}/timeline")).json()["events"]
    assert [(step["type"], step["data"]["status"]) for step in steps] == [
        ("slot.status_changed", "deploying"),
        ("bot.status_changed", "DEPLOYING"),
        ("slot.status_changed", "busy"),
        ("bot.status_changed", "IN_CALL"),
    ]
    assert told["type"] == "bot.event"
    assert told["data"]["event"] == {"type": "participant.joined", "data": {"name": "A"}}
    assert (told["data"]["botId"], told["data"]["meetingUrl"]) == (bot["id"], bot["meetingUrl"])
    logs = (await api.alice.get(f"{BOTS}/{bot['id']}/logs")).json()
    assert [line["line"] for line in logs["lines"]] == ["recording"]


async def test_logs_come_in_pages_that_are_bounded_by_bytes(api: Api) -> None:
    bot = (await api.ask()).json()["bot"]
    slot = await api.slot_of(bot["id"])
    say = api.pool.assignments.add_log_lines
    await say(slot.id, slot.lease, [("info", str(n)) for n in range(5)])
    await say(slot.id, slot.lease, [("info", "x" * 4000)] * 400)

    async def pages(limit: int) -> list[int]:
        sizes, parameters = [], {"limit": str(limit)}
        while True:
            answer = await api.alice.get(f"{BOTS}/{bot['id']}/logs", params=parameters)
            page = answer.json()
            sizes.append(len(page["lines"]))
            if page["nextCursor"] is None:
                return sizes
            parameters["cursor"] = page["nextCursor"]

    assert await pages(200) == [200, 200, 5]
    # 263 lines of 4,000 bytes are more than a mebibyte.
    assert await pages(5000) == [5 + 263, 137]


async def test_lines_that_come_later_are_read_after_the_end_of_a_page(api: Api) -> None:
    bot = (await api.ask()).json()["bot"]
    slot = await api.slot_of(bot["id"])
    say = api.pool.assignments.add_log_lines

    async def read(cursor: str | None = None) -> tuple[list[str], str | None]:
        parameters = {} if cursor is None else {"cursor": cursor}
        page = (await api.alice.get(f"{BOTS}/{bot['id']}/logs", params=parameters)).json()
        return [line["line"] for line in page["lines"]], page["endCursor"]

    assert await read() == ([], None)
    await say(slot.id, slot.lease, [("info", "a"), ("info", "b")])
    lines, end = await read()
    assert lines == ["a", "b"]
    assert await read(end) == ([], end)
    await say(slot.id, slot.lease, [("info", "c")])
    assert (await read(end))[0] == ["c"]


# Stopping


async def test_a_bot_is_stopped_from_every_status_and_twice_is_once(api: Api) -> None:
    async def stop(bot_id: int) -> str:
        answers = [await api.alice.post(f"{BOTS}/{bot_id}/stop") for _ in range(2)]
        assert {answer.status_code for answer in answers} == {200}
        first, second = (answer.json()["status"] for answer in answers)
        assert first == second
        return str(first)

    bots = [(await api.ask()).json()["bot"]["id"] for _ in range(4)]
    in_call = await api.slot_of(bots[1])
    await api.pool.assignments.advance(in_call.id, in_call.lease, BotStatus.IN_CALL, "admitted")
    done = await api.slot_of(bots[2])
    await api.pool.assignments.advance(done.id, done.lease, BotStatus.DONE, "over")
    assert [await stop(bot_id) for bot_id in bots] == [
        "CANCELLED",
        "LEAVING",
        "DONE",
        "CANCELLED",
    ]


async def test_a_reason_to_stop_is_recorded(api: Api) -> None:
    bot = (await api.ask()).json()["bot"]
    await api.alice.post(f"{BOTS}/{bot['id']}/stop", json={"reason": "wrong meeting"})
    assert "wrong meeting" in [
        step.reason for step in await api.store.transitions.timeline(bot["id"])
    ]


# What an operator sees


async def test_an_operator_sees_pools_slots_and_the_queue(api: Api) -> None:
    bots = [(await api.ask()).json()["bot"] for _ in range(4)]
    (meet,) = [
        row
        for row in (await api.admin.get("/api/v1/pool")).json()["platforms"]
        if row["platform"] == "google-meet"
    ]
    assert meet == {
        "platform": "google-meet",
        "maxSize": 3,
        "warm": 0,
        "total": 3,
        "idle": 0,
        "deploying": 3,
        "busy": 0,
        "releasing": 0,
        "error": 0,
        "queued": 1,
        "pausedAt": None,
        "pausedBy": None,
        "pauseReason": None,
    }
    slots = (await api.admin.get("/api/v1/slots")).json()["slots"]
    assert [slot["assignedBotId"] for slot in slots] == [bot["id"] for bot in bots[:3]]
    one = (await api.admin.get(f"/api/v1/slots/{slots[0]['id']}")).json()
    assert one["slotName"] == "pool-google-meet-001"
    (entry,) = (await api.admin.get("/api/v1/queue", params={"platform": "google-meet"})).json()[
        "entries"
    ]
    assert (entry["botId"], entry["position"]) == (bots[3]["id"], 1)
    problem(await api.admin.get("/api/v1/slots/999"), 404, "slot_not_found")
    for name, found in ((slots[1]["slotName"], [slots[1]["id"]]), ("pool-zoom-999", [])):
        named = (await api.admin.get("/api/v1/slots", params={"slotName": name})).json()["slots"]
        assert [slot["id"] for slot in named] == found


async def test_the_queue_is_listed_page_by_page_with_the_right_positions(api: Api) -> None:
    zoom = "https://zoom.us/j/1234567890"
    for _ in range(3):
        await api.ask()
        await api.ask(meetingUrl=zoom)
    late, *meet = [
        (await api.ask(priority=priority)).json()["bot"]["id"] for priority in (200, 100, 100, 100)
    ]
    zooms = [(await api.ask(meetingUrl=zoom)).json()["bot"]["id"] for _ in range(2)]

    async def listed(limit: int, **parameters: Any) -> list[tuple[str, int, int]]:
        seen: list[tuple[str, int, int]] = []
        cursor = None
        while True:
            asked = {"limit": limit, **parameters} | ({"cursor": cursor} if cursor else {})
            page = (await api.admin.get("/api/v1/queue", params=asked)).json()
            seen += [(e["platform"], e["position"], e["botId"]) for e in page["entries"]]
            cursor = page["nextCursor"]
            if cursor is None:
                return seen
            assert len(page["entries"]) == limit

    of_meet = [("google-meet", n, bot_id) for n, bot_id in enumerate([*meet, late], 1)]
    of_zoom = [("zoom", n, bot_id) for n, bot_id in enumerate(zooms, 1)]
    for limit in range(1, 7):
        assert await listed(limit) == of_meet + of_zoom
        assert await listed(limit, platform="google-meet") == of_meet
        assert await listed(limit, platform="zoom") == of_zoom


async def test_a_page_of_the_queue_goes_on_after_a_bot_that_has_left(api: Api) -> None:
    bots = [(await api.ask()).json()["bot"]["id"] for _ in range(7)][3:]
    page = (await api.admin.get("/api/v1/queue", params={"limit": 2})).json()
    for bot_id in bots[:2]:
        await api.alice.post(f"{BOTS}/{bot_id}/stop")
    rest = await api.admin.get("/api/v1/queue", params={"cursor": page["nextCursor"]})
    assert [(e["botId"], e["position"]) for e in rest.json()["entries"]] == [
        (bots[2], 1),
        (bots[3], 2),
    ]


@pytest.mark.parametrize(
    "place", ["", "7", "google-meet,100", "skype,100,7", "zoom,-1,7", f"zoom,1,{2**63}", "zoom,1,x"]
)
async def test_a_cursor_of_the_queue_that_is_none_is_refused(api: Api, place: str) -> None:
    cursor = base64.urlsafe_b64encode(place.encode()).decode()
    answer = await api.admin.get("/api/v1/queue", params={"cursor": cursor})
    assert "cursor" in problem(answer, 422, "invalid_cursor")["detail"]


@pytest.mark.parametrize("path", ["pool", "slots", "slots/1", "queue"])
async def test_a_client_sees_nothing_of_that(api: Api, path: str) -> None:
    found = problem(await api.alice.get(f"/api/v1/{path}"), 403, "forbidden")
    assert "admin" in found["detail"]


async def test_a_drained_slot_serves_its_bot_to_the_end_and_no_other(api: Api) -> None:
    bot = (await api.ask()).json()["bot"]
    slot = await api.slot_of(bot["id"])
    drained = await api.admin.post(f"/api/v1/slots/{slot.id}/drain")
    assert (drained.status_code, drained.json()["draining"]) == (202, True)
    await api.admin.post(f"/api/v1/slots/{slot.id}/drain")
    told = [t.reason for t in await api.store.transitions.timeline(bot["id"]) if t.details == {}]
    assert told[-1] == "drained: it gets no further bot, and is deleted once it is free"
    assert told.count(told[-1]) == 1
    assert (await api.store.bots.get(bot["id"])).status is BotStatus.DEPLOYING
    await api.end(slot)
    assert await api.pool.slots.make_idle(slot.id, slot.lease) == []
    await api.pool.slots.delete(slot.id, slot.lease, "drained")
    assert await api.store.slots.all() == []
    idle = await api.idle(Platform.ZOOM)
    await api.admin.post(f"/api/v1/slots/{idle.id}/drain")
    assert await api.store.slots.all() == []


async def test_a_slot_in_error_is_due_at_once_when_it_is_to_recover(api: Api) -> None:
    bot = (await api.ask()).json()["bot"]
    slot = await api.slot_of(bot["id"])
    await api.end(slot)
    await api.pool.slots.fail(slot.id, slot.lease, "stuck")
    await api.database.execute(
        "UPDATE bot_pool_slots SET due_at = 'infinity', recovery_attempts = 2"
    )
    answer = await api.admin.post(f"/api/v1/slots/{slot.id}/recover")
    shown = answer.json()
    assert (answer.status_code, shown["status"], shown["recoveryAttempts"]) == (
        202,
        SlotStatus.ERROR,
        0,
    )
    assert shown["waitingFor"]["what"] == "worker"
    found = await api.store.slots.get(slot.id)
    assert found.due_at == found.read_at
    await api.store.replicas.seen("one", ReplicaRole.WORKER, "1", "here")
    shown = (await api.admin.post(f"/api/v1/slots/{slot.id}/recover")).json()
    assert shown["waitingFor"] is None


async def test_a_slot_and_its_container_say_that_a_claim_is_waited_for(api: Api) -> None:
    bot = (await api.ask()).json()["bot"]
    slot = await api.slot_of(bot["id"])
    await api.store.replicas.seen("one", ReplicaRole.WORKER, "1", "here")
    await api.pool.slots.record_container(slot.id, slot.lease, "c-1", host="here", attempt=1)
    await api.pool.assignments.advance(
        slot.id, slot.lease, BotStatus.JOINING_CALL, "container runs", heard=False
    )

    async def waits() -> list[dict[str, Any] | None]:
        paths = (f"/slots/{slot.id}", "/containers/c-1/bot", f"/bots/{bot['id']}")
        found = [(await api.admin.get(f"/api/v1{path}")).json() for path in paths]
        found += (await api.admin.get("/api/v1/slots")).json()["slots"]
        return [each["waitingFor"] for each in found]

    first, *others = await waits()
    assert first is not None
    assert first["what"] == "claim"
    assert others == [first] * 3
    await api.pool.assignments.heartbeat(slot.id, slot.lease)
    assert await waits() == [None] * 4


async def test_a_bot_that_finds_no_room_is_told_what_ails_the_hosts(api: Api) -> None:
    await api.store.replicas.seen("one", ReplicaRole.WORKER, "1", "here")

    async def waits() -> tuple[str, str | None]:
        waiting = (await api.admin.get(f"{BOTS}/{bot['id']}")).json()["waitingFor"]
        return waiting["what"], waiting["error"]

    for host in ("here", "there"):
        await api.add_host(host, 1)
        await api.ask()
    bot = (await api.ask()).json()["bot"]
    assert await waits() == ("room", None)  # both are full
    for number in range(5):
        await api.store.hosts.note_failure(
            HostFailure(engine="process", host="here", what=f"{number}", reason="no space left"),
            most=5,
            within_ms=60_000,
            probe_in_ms=60_000,
        )
    assert await waits() == ("room", None)  # one of them has room soon
    await api.pool.hosts.drain("process", "there")
    assert await waits() == ("room", "here is unhealthy: no space left; there is drained")


async def test_a_bot_waits_for_a_worker_since_the_last_one_was_there(api: Api) -> None:
    bot = (await api.ask()).json()["bot"]
    await api.store.replicas.seen("one", ReplicaRole.WORKER, "1", "here")
    seen = await api.pass_time(seconds=5)
    await api.store.replicas.seen("one", ReplicaRole.WORKER, "1", "here")
    await api.pass_time(minutes=1)

    async def since() -> datetime:
        waiting = (await api.admin.get(f"{BOTS}/{bot['id']}")).json()["waitingFor"]
        assert waiting["what"] == "worker"
        return datetime.fromisoformat(waiting["since"])

    assert await since() == seen
    # One that ends is not remembered, but what it did is.
    await api.store.installation.take_duty("queue", 1000)
    worked = await api.pass_time(seconds=1)
    await api.store.replicas.gone("one")
    await api.pass_time(minutes=1)
    assert await since() == worked


# In general


async def test_every_call_wants_a_key(api: Api) -> None:
    api.alice.headers.pop("Authorization")
    paths = (await api.alice.get("/openapi.json")).json()["paths"]
    without_a_key = set()
    for path, calls in paths.items():
        for method in calls:
            url = re.sub(r"\{\w+\}", "1", path)
            response = await api.alice.request(method, url, json={})
            if response.status_code == 401:
                problem(response, 401, "unauthorized")
            else:
                without_a_key.add(path)
    assert without_a_key == {"/healthz", "/readyz"}


async def test_why_a_slot_was_deleted_can_be_read_as_long_as_that_is_kept(api: Api) -> None:
    idle = await api.idle()
    await api.admin.delete(f"/api/v1/slots/{idle.id}")
    problem(await api.admin.get(f"/api/v1/slots/{idle.id}"), 404, "slot_not_found")
    path = f"/api/v1/slots/{idle.id}/timeline"
    found = (await api.admin.get(path, params={"limit": 1})).json()
    (last,) = found["events"]
    assert (last["data"]["status"], last["data"]["reason"]) == (None, "deleted on request")
    more = (await api.admin.get(path, params={"cursor": found["nextCursor"]})).json()
    assert more["events"]
    problem(await api.admin.get(f"/api/v1/slots/{idle.id + 1}/timeline"), 404, "slot_not_found")
    await api.database.execute("DELETE FROM transitions WHERE machine = 'slot'")  # in time
    problem(await api.admin.get(path), 404, "slot_not_found")


async def test_a_slot_that_is_to_be_deleted_once_it_stopped_says_so(api: Api) -> None:
    bot, slot = await api.running()
    await api.end(slot)
    await api.admin.delete(f"/api/v1/slots/{slot.id}")
    last = (await api.admin.get(f"/api/v1/slots/{slot.id}/timeline")).json()["events"][0]
    assert (last["type"], last["data"]["botId"]) == ("slot.noted", bot.id)
    assert last["data"]["reason"] == (
        "deleted on request: as soon as its container is proved stopped"
    )


async def test_hosts_are_listed_drained_and_undrained(database: Database) -> None:
    async with opened(database) as api:
        (host,) = (await api.admin.get("/api/v1/hosts")).json()["hosts"]
        assert (host["status"], host["open"], host["room"]) == ("healthy", True, None)
        drained = await api.admin.post("/api/v1/hosts/process/here/drain")
        assert (drained.status_code, drained.json()["room"]) == (200, 0)
        assert (await api.ask()).json()["bot"]["status"] == "QUEUED"
        back = (await api.admin.post("/api/v1/hosts/process/here/undrain")).json()
        assert (back["drainedAt"], back["running"]) == (None, 1)
        gone = await api.admin.post("/api/v1/hosts/process/nowhere/drain")
        problem(gone, 404, "host_not_found")
        problem(await api.alice.get("/api/v1/hosts"), 403, "forbidden")


async def test_slots_are_listed_in_pages(database: Database) -> None:
    async with opened(database, max_pool_size=12) as api:
        for _ in range(12):
            await api.ask()
        await api.ask(meetingUrl="https://zoom.us/j/92345678901")
        names: list[str] = []
        parameters: dict[str, Any] = {"limit": 5}
        for count in (5, 5, 3):
            page = (await api.admin.get("/api/v1/slots", params=parameters)).json()
            assert len(page["slots"]) == count
            names += [slot["slotName"] for slot in page["slots"]]
            parameters["cursor"] = page["nextCursor"]
        assert parameters["cursor"] is None
        assert names == [
            *(f"pool-google-meet-{n:03}" for n in range(1, 13)),
            "pool-zoom-001",
        ]
        zoom = (await api.admin.get("/api/v1/slots", params={"platform": "zoom"})).json()["slots"]
        assert [slot["slotName"] for slot in zoom] == ["pool-zoom-001"]
        for status, count in (("deploying", 13), ("idle", 0)):
            found = (await api.admin.get("/api/v1/slots", params={"status": status})).json()
            assert len(found["slots"]) == count
        wrong = await api.admin.get("/api/v1/slots", params={"cursor": "nonsense"})
        problem(wrong, 422, "invalid_cursor")


async def test_a_slot_and_a_container_lead_to_their_bot_and_their_story(database: Database) -> None:
    async with opened(database) as api:
        bot = (await api.ask()).json()["bot"]
        slot = await api.store.slots.of_bot(bot["id"])
        assert slot is not None
        await api.pool.slots.record_container(slot.id, slot.lease, "c-1", host="here", attempt=1)
        for wanted in ({"containerRef": "c-1"}, {"assignedBotId": bot["id"]}):
            found = (await api.admin.get("/api/v1/slots", params=wanted)).json()["slots"]
            assert [one["id"] for one in found] == [slot.id]
        none = (await api.admin.get("/api/v1/slots", params={"containerRef": "c-2"})).json()
        assert none == {"slots": [], "nextCursor": None}
        served = (await api.admin.get("/api/v1/containers/c-1/bot")).json()
        assert (served["id"], served["containerRef"]) == (bot["id"], "c-1")
        problem(await api.admin.get("/api/v1/containers/c-2/bot"), 404, "bot_not_found")
        await api.admin.post(f"{BOTS}/{bot['id']}/stop")
        await api.pool.slots.make_idle(slot.id, slot.lease)
        events = (await api.admin.get(f"/api/v1/slots/{slot.id}/timeline")).json()["events"]
        assert {one["type"] for one in events} == {"slot.status_changed", "slot.noted"}
        assert [events[place]["data"]["status"] for place in (0, -1)] == ["idle", "deploying"]
        own = (await api.admin.get(f"{BOTS}/{bot['id']}/timeline")).json()["events"]
        assert own[-1] == events[0]
