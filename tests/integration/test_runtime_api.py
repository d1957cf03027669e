"""What a container calls: on a real pool, and with the token of its slot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest
from pydantic import ValidationError
from structlog.testing import capture_logs

from botpool.access.keys import Keys
from botpool.api import create_app
from botpool.api.wire import Wire
from botpool.errors import DatabaseBusy, DatabaseUnreachable
from botpool.models.keys import token_digest
from botpool.settings import Settings
from botpool.states import (
    BOT_MAY_BLAME,
    BOT_MAY_SAY,
    BotStatus,
    FailureCause,
    SlotStatus,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fastapi import FastAPI

    from botpool.models.bots import Bot
    from botpool.models.slots import Slot
    from tests.support.scene import Scene

TOKEN = "a-token-of-one-slot"  # noqa: S105
ENDED = {"code": "assignment_ended", "action": "exit"}
DOCUMENTED = {"400", "401", "410", "413", "422", "429", "503"}
VERBS: dict[str, dict[str, Any]] = {
    "claim": {},
    "heartbeat": {"lease": 1},
    "status": {"lease": 1, "status": "IN_CALL"},
}


@pytest.fixture
def app(scene: Scene) -> FastAPI:
    settings = Settings(heartbeat_interval_ms=1234, log_level="WARNING")
    return create_app(scene.store, scene.pool, settings, Keys(scene.store, settings))


@pytest.fixture
async def http(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app, raise_app_exceptions=False),
        base_url="http://botpool/api/v1/runtime/",
        headers={"Authorization": f"Bearer {TOKEN}"},
    ) as client:
        yield client


async def deploying(scene: Scene, **changes: Any) -> tuple[Bot, Slot]:
    """A bot whose container has the token, and was not heard yet."""
    bot = (await scene.create(**changes)).bot
    slot = await scene.slot_of(bot.id)
    await give_token(scene, slot)
    return bot, slot


async def give_token(scene: Scene, slot: Slot, token: str = TOKEN) -> None:
    """The reconciler does so before it makes a container."""
    await scene.database.execute(
        "UPDATE bot_pool_slots SET token_hash = $2 WHERE id = $1", slot.id, token_digest(token)
    )


def told(response: httpx.Response) -> dict[str, Any]:
    """A problem, checked for what every one has."""
    assert response.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = response.json()
    assert problem["status"] == response.status_code
    assert problem.keys() >= {"type", "title", "detail", "code"}
    return problem


def ended(response: httpx.Response) -> bool:
    return response.status_code == 410 and told(response).items() >= ENDED.items()


# The life of a bot


async def test_a_claim_gives_the_bot_and_makes_its_slot_busy(
    scene: Scene, http: httpx.AsyncClient
) -> None:
    bot, slot = await deploying(scene, config={"sample": {"stayMs": 1}}, correlation_id="c-1")
    response = await http.post("claim", json={})
    assert (response.status_code, response.json()) == (
        200,
        {
            "botId": bot.id,
            "lease": slot.lease,
            "correlationId": "c-1",
            "meetingUrl": "https://meet.google.com/abc-defg-hij",
            "botDisplayName": "Notes",
            "platform": "google-meet",
            "config": {"sample": {"stayMs": 1}},
            "heartbeatIntervalMs": 1234,
            "maxSilenceMs": 3_600_000,
        },
    )
    assert (await scene.slot_of(bot.id)).status is SlotStatus.BUSY


async def test_a_container_that_came_back_claims_the_same_bot_again(
    scene: Scene, http: httpx.AsyncClient
) -> None:
    bot, slot = await deploying(scene)
    first = await http.post("claim", json={})
    await http.post("status", json={"lease": slot.lease, "status": "IN_CALL"})
    again = await http.post("claim", json={})
    assert again.json() == first.json()
    assert (await scene.store.bots.get(bot.id)).status is BotStatus.IN_CALL


async def test_a_heartbeat_proves_that_the_bot_lives(scene: Scene, http: httpx.AsyncClient) -> None:
    bot, slot = await deploying(scene)
    now = await scene.pass_time(seconds=5)
    response = await http.post("heartbeat", json={"lease": slot.lease})
    assert (response.status_code, response.json()) == (
        200,
        {"action": "continue", "logLevel": "WARNING"},
    )
    after = await scene.store.bots.get(bot.id)
    assert (after.last_heartbeat, after.status) == (now, BotStatus.JOINING_CALL)


async def test_a_bot_that_is_to_stop_is_told_at_its_next_heartbeat(
    scene: Scene, http: httpx.AsyncClient
) -> None:
    bot, slot = await deploying(scene)
    await http.post("status", json={"lease": slot.lease, "status": "IN_CALL"})
    await scene.pool.assignments.stop_bot(bot.id)
    response = await http.post("heartbeat", json={"lease": slot.lease})
    assert response.json()["action"] == "leave"


@pytest.mark.parametrize("status", sorted(BOT_MAY_SAY))
async def test_a_bot_tells_how_far_it_has_come_and_why(
    scene: Scene, http: httpx.AsyncClient, status: BotStatus
) -> None:
    bot, slot = await deploying(scene)
    said = {"lease": slot.lease, "status": status, "reason": "it saw the door"}
    response = await http.post("status", json=said)
    assert (response.status_code, response.content) == (204, b"")
    assert (await scene.store.bots.get(bot.id)).status is status
    last = [t for t in await scene.store.transitions.timeline(bot.id) if t.machine == "bot"][-1]
    assert (last.to_status, last.reason) == (status, "it saw the door")


async def test_what_a_bot_tells_is_as_good_as_a_heartbeat(
    scene: Scene, http: httpx.AsyncClient
) -> None:
    bot, slot = await deploying(scene)
    heard = []
    for status in ("IN_CALL", "IN_CALL", "JOINING_CALL"):
        await scene.pass_time(seconds=1)
        await http.post("status", json={"lease": slot.lease, "status": status})
        heard.append((await scene.store.bots.get(bot.id)).last_heartbeat)
    assert None not in heard
    assert heard == sorted({*filter(None, heard)})


async def test_a_bot_that_fails_says_why(scene: Scene, http: httpx.AsyncClient) -> None:
    bot, slot = await deploying(scene)
    await http.post("status", json={"lease": slot.lease, "status": "FATAL", "reason": "no door"})
    after = await scene.store.bots.get(bot.id)
    assert (after.failure_cause, after.failure_reason) == (FailureCause.BOT_FAILED, "no door")


@pytest.mark.parametrize("cause", sorted(BOT_MAY_BLAME))
async def test_a_bot_that_fails_says_of_what(
    scene: Scene, http: httpx.AsyncClient, cause: FailureCause
) -> None:
    bot, slot = await deploying(scene)
    await http.post("status", json={"lease": slot.lease, "status": "FATAL", "cause": cause})
    after = await scene.store.bots.get(bot.id)
    assert (after.status, after.failure_cause) == (BotStatus.FATAL, cause)


async def test_a_last_word_whose_answer_was_lost_can_be_said_again(
    scene: Scene, http: httpx.AsyncClient
) -> None:
    _, slot = await deploying(scene)
    said = {"lease": slot.lease, "status": "DONE"}
    assert [(await http.post("status", json=said)).status_code for _ in range(2)] == [204, 204]


# The assignment is over


async def test_an_assignment_that_is_over_tells_its_container_to_exit(
    scene: Scene, http: httpx.AsyncClient
) -> None:
    _, slot = await deploying(scene)
    await scene.end(slot)
    for verb, body in VERBS.items():
        assert ended(await http.post(verb, json=body)), verb


async def test_an_old_lease_has_no_say_in_the_next_assignment(
    scene: Scene, http: httpx.AsyncClient
) -> None:
    old = await scene.idle()
    bot, slot = await deploying(scene)
    assert (slot.id, slot.lease) == (old.id, old.lease + 1)
    for verb, body in VERBS.items():
        if verb != "claim":
            assert ended(await http.post(verb, json=body)), verb
    assert (await scene.store.bots.get(bot.id)).status is BotStatus.DEPLOYING


async def test_a_slot_that_is_deleted_meanwhile_has_no_assignment_either(
    scene: Scene, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, slot = await deploying(scene)
    find = scene.store.slots.of_token

    async def find_before_it_is_deleted(token: str) -> Slot | None:
        found = await find(token)
        await scene.delete(slot)
        return found

    monkeypatch.setattr(scene.store.slots, "of_token", find_before_it_is_deleted)
    assert ended(await http.post("heartbeat", json={"lease": slot.lease}))


# Tokens


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    "authorization",
    [
        pytest.param(None, id="none"),
        pytest.param("Bearer ", id="empty"),
        pytest.param("Bearer of-another", id="unknown"),
        pytest.param(f"Basic {TOKEN}", id="another scheme"),
        pytest.param(TOKEN, id="no scheme"),
    ],
)
async def test_nothing_is_open_without_the_token_of_a_slot(
    scene: Scene, http: httpx.AsyncClient, verb: str, authorization: str | None
) -> None:
    bot, _ = await deploying(scene)
    del http.headers["Authorization"]
    headers = {"Authorization": authorization} if authorization else {}
    response = await http.post(verb, json=VERBS[verb], headers=headers)
    assert (response.status_code, told(response)["code"]) == (401, "unauthorized")
    assert response.headers["www-authenticate"] == "Bearer"
    assert "of-another" not in response.text
    assert (await scene.store.bots.get(bot.id)).status is BotStatus.DEPLOYING


async def test_a_token_speaks_for_its_own_slot_alone(scene: Scene, http: httpx.AsyncClient) -> None:
    other, _ = await scene.running()
    bot, slot = await deploying(scene)
    await http.post("status", json={"lease": slot.lease, "status": "DONE"})
    assert (await scene.store.bots.get(bot.id)).status is BotStatus.DONE
    assert (await scene.store.bots.get(other.id)).status is BotStatus.IN_CALL


# What is not accepted


@pytest.mark.parametrize(
    ("verb", "body", "detail"),
    [
        ("claim", {"lease": 1}, "lease: Extra inputs are not permitted."),
        ("heartbeat", {}, "lease: Field required."),
        ("heartbeat", {"lease": "1"}, "lease: Input should be a valid integer."),
        ("heartbeat", {"lease": True}, "lease: Input should be a valid integer."),
        ("heartbeat", {"lease": 0}, "lease: Input should be greater than or equal to 1."),
        ("heartbeat", {"lease": 2**63}, "lease: Input should be less than or equal to"),
        ("heartbeat", {"lease": 1, "Lease": 2}, "Lease: Extra inputs are not permitted."),
        ("status", {"lease": 1, "status": "DANCING"}, "status: Input should be 'PENDING'"),
        ("status", {"lease": 1, "status": "QUEUED"}, "A bot can't report the status QUEUED."),
        (
            "status",
            {"lease": 1, "status": "IN_CALL", "reason": "x" * 1001},
            "reason: String should have at most 1000 characters.",
        ),
        (
            "status",
            {"lease": 1, "status": "IN_CALL", "reason": "\0"},
            "reason: must not contain NUL",
        ),
        (
            "status",
            {"lease": 1, "status": "FATAL", "cause": "crashed"},
            "A bot can't report the cause crashed.",
        ),
        (
            "status",
            {"lease": 1, "status": "DONE", "cause": "left_by_host"},
            "Only the status FATAL may have a cause.",
        ),
        ("status", [], "body: Input should be a valid dictionary"),
        (
            "events",
            {"lease": 1, "events": [{"type": "a", "data": {"x": "x" * 16_400}}]},
            "events.0.data: must have at most 16384 bytes as JSON",
        ),
    ],
)
async def test_a_request_that_cannot_be_met_says_what_is_wrong(
    scene: Scene, http: httpx.AsyncClient, verb: str, body: Any, detail: str
) -> None:
    bot, _ = await deploying(scene)
    response = await http.post(verb, json=body)
    problem = told(response)
    assert (response.status_code, problem["code"]) == (422, "invalid_request")
    assert problem["detail"].startswith(detail)
    assert (await scene.store.bots.get(bot.id)).status is BotStatus.DEPLOYING


class TwoWords(Wire):
    """A body with a field of more than one word; no request here has one yet."""

    two_words: int


@pytest.mark.parametrize("name", ["twoWords", "two_words"])
def test_a_field_has_its_name_in_camel_case_and_may_be_written_in_snake_case(name: str) -> None:
    assert TwoWords.model_validate({name: 1}).model_dump(by_alias=True) == {"twoWords": 1}


def test_a_field_that_is_written_both_ways_is_refused() -> None:
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        TwoWords.model_validate({"twoWords": 1, "two_words": 2})


@pytest.mark.parametrize(
    ("content", "status", "code"),
    [
        (b"", 422, "invalid_request"),
        (b"{lease", 400, "bad_request"),
        (b"\xff", 400, "bad_request"),
    ],
)
async def test_a_body_that_is_no_json_says_so(
    scene: Scene, http: httpx.AsyncClient, content: bytes, status: int, code: str
) -> None:
    await deploying(scene)
    headers = {"Content-Type": "application/json"}
    response = await http.post("heartbeat", content=content, headers=headers)
    assert (response.status_code, told(response)["code"]) == (status, code)


async def test_a_value_is_never_sent_back(scene: Scene, http: httpx.AsyncClient) -> None:
    await deploying(scene)
    response = await http.post("heartbeat", json={"lease": "hunter2"})
    assert "hunter2" not in response.text


async def test_a_body_over_its_bound_is_refused(scene: Scene, http: httpx.AsyncClient) -> None:
    await deploying(scene)
    response = await http.post("claim", json={"reason": "x" * 2**20})
    assert (response.status_code, told(response)["code"]) == (413, "request_too_large")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("POST", "nothing", 404, "not_found"),
        ("GET", "claim", 405, "method_not_allowed"),
    ],
)
async def test_what_is_not_there_is_a_problem_too(
    http: httpx.AsyncClient, method: str, path: str, status: int, code: str
) -> None:
    response = await http.request(method, path)
    assert (response.status_code, told(response)["code"]) == (status, code)


# What goes wrong inside


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (DatabaseUnreachable("10.0.0.1 refuses"), 503, "database_unreachable"),
        (DatabaseBusy("10.0.0.1 refuses"), 503, "database_busy"),
        (ZeroDivisionError("10.0.0.1 refuses"), 500, "internal_error"),
    ],
)
async def test_what_goes_wrong_inside_is_told_by_its_code_alone(
    scene: Scene,
    http: httpx.AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    status: int,
    code: str,
) -> None:
    async def fail(_: str) -> None:
        raise error

    monkeypatch.setattr(scene.store.slots, "of_token", fail)
    with capture_logs() as lines:
        response = await http.post("claim", json={})
    assert (response.status_code, told(response)["code"]) == (status, code)
    assert "10.0.0.1" not in response.text
    if status == 503:
        assert response.headers["retry-after"] == "1"
        assert [(line["code"], line["error"]) for line in lines] == [(code, "10.0.0.1 refuses")]


# What is said of it


async def test_the_openapi_document_tells_of_every_answer(app: FastAPI) -> None:
    document = app.openapi()
    for verb in VERBS:
        call = document["paths"][f"/api/v1/runtime/{verb}"]["post"]
        assert set(call["responses"]) - {"200", "204"} == DOCUMENTED
        for status in ("401", "410", "422"):
            assert list(call["responses"][status]["content"]) == ["application/problem+json"]
        assert call["security"] == [{"slotToken": []}]
    said = document["components"]["schemas"]["StatusRequest"]["properties"]["status"]
    assert set(said["enum"]) == BOT_MAY_SAY
