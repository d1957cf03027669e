"""What is asked again and what never, and what an answer becomes, wherever it comes from."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from botpool.engines.coolify.api import CoolifyApi
from botpool.engines.coolify.budget import Budget, Urgency
from botpool.engines.coolify.wire import Deployment
from botpool.errors import EngineRefused, EngineUnavailable
from tests.support.virtual_time import virtual

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    Answer = httpx.Response | Exception | None
    """None is no answer, ever."""

SECRET = "kR7ePq2sVw9xYz"  # noqa: S105 - opens nothing
TOKEN = f"42|{SECRET}"

ONE = {"uuid": "u"}
RUN = {"deployment_uuid": "d", "status": "queued"}
DONE = {"message": "queued."}
CALLS: dict[str, tuple[Callable[[CoolifyApi], Awaitable[Any]], object]] = {
    "applications": (lambda api: api.applications(), [ONE]),
    "application": (lambda api: api.application("u"), ONE),
    "create": (lambda api: api.create_application({"name": "n"}), ONE),
    "describe": (lambda api: api.describe("u", lambda: "text"), ONE),
    "change": (lambda api: api.change_application("u", {"limits_cpus": "1"}), ONE),
    "delete": (lambda api: api.delete_application("u"), DONE),
    "environment": (lambda api: api.set_environment("u", {"A": "1"}), [{"uuid": "v"}]),
    "start": (lambda api: api.start("u"), {**DONE, "deployment_uuid": "d"}),
    "stop": (lambda api: api.stop("u"), DONE),
    "logs": (lambda api: api.logs("u", 7), {"logs": "one\ntwo"}),
    "active": (lambda api: api.active_deployments(), [RUN]),
    "deployment": (lambda api: api.deployment("d"), RUN),
    "deployments_of": (lambda api: api.deployments_of("u", 3), {"count": 1, "deployments": [RUN]}),
    "cancel": (lambda api: api.cancel("d"), RUN),
    "servers": (lambda api: api.servers(), [ONE]),
    "server": (lambda api: api.server("u"), ONE),
    "environments": (lambda api: api.environments("p"), [{"name": "production"}]),
    "version": (lambda api: api.version(), "4.3.11"),
}
ONCE = {"start", "create"}
"""To do these twice is to have two."""
MISSING: dict[str, object] = {
    **dict.fromkeys(("application", "deployment", "server", "environments", "active", "logs")),
    **dict.fromkeys(("describe", "delete", "cancel")),
    **dict.fromkeys(("environment", "stop", "change"), False),
    "start": (False, None),
    "deployments_of": None,
}
"""What each gives for something that isn't there."""
NO_ERRORS = {*((call, 404) for call in MISSING), ("logs", 400), ("cancel", 400)}
each_call = pytest.mark.parametrize("call", CALLS)

REFUSED, LOST = httpx.ConnectError("refused"), httpx.ReadError("broken")
PROBLEMS: list[Answer] = [
    httpx.Response(500, json={"message": "Server Error"}),
    *(httpx.Response(status, html="<h1>Bad gateway</h1>") for status in (502, 503, 504)),
    *(LOST, httpx.ReadTimeout("late"), httpx.RemoteProtocolError("cut off")),
    *(httpx.DecodingError("no gzip"), ConnectionResetError("reset"), None),
]
each_problem = pytest.mark.parametrize("problem", PROBLEMS, ids=repr)


def answer(said: object = None, status: int = 200, **headers: str) -> httpx.Response:
    return httpx.Response(status, json=said, headers=headers)


class Coolify:
    """Gives its answers in order, the last one over and over."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self._answers = [*answers]
        self.requests: list[httpx.Request] = []
        self.times: list[float] = []

    @property
    def path(self) -> str:
        return self.requests[0].url.path.removeprefix("/api/v1")

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        self.times.append(asyncio.get_running_loop().time())
        said = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if said is None:
            await asyncio.sleep(10**6)
        if isinstance(said, Exception):
            raise said
        assert said is not None
        return httpx.Response(said.status_code, content=said.content, headers=said.headers)


@asynccontextmanager
async def talking(
    *answers: Answer, url: str = "https://c.test", budget: Budget | None = None
) -> AsyncIterator[tuple[CoolifyApi, Coolify]]:
    coolify = Coolify(answers)
    transport = httpx.MockTransport(coolify)
    api = CoolifyApi(url, TOKEN, budget or Budget(1000), transport=transport)
    yield api, coolify
    await api.close()


def good(call: str) -> httpx.Response:
    said = CALLS[call][1]
    return httpx.Response(200, text=said) if isinstance(said, str) else answer(said)


async def make(api: CoolifyApi, call: str) -> Any:
    return await CALLS[call][0](api)


async def failing(call: str, *answers: Answer) -> tuple[str, Coolify]:
    """Make a call that must be `EngineUnavailable`, and return its words."""
    async with talking(*answers) as (api, coolify):
        with pytest.raises(EngineUnavailable) as raised:
            await make(api, call)
    return str(raised.value), coolify


# What is sent


@each_call
@virtual
async def test_each_call_says_who_asks_and_that_it_takes_json(call: str) -> None:
    async with talking(good(call)) as (api, coolify):
        await make(api, call)
    (request,) = coolify.requests
    assert request.headers["Accept"] == "application/json"
    assert request.headers["Authorization"] == f"Bearer {TOKEN}"
    assert request.url.path.startswith("/api/v1/")
    timeout = request.extensions["timeout"]
    assert timeout["connect"] < timeout["read"], "what was never sent must be told apart"


@pytest.mark.parametrize("rest", ["", "/", "/api/v1", "/api/v1/", "//"])
@virtual
async def test_the_address_may_have_the_path_of_the_api_or_not(rest: str) -> None:
    async with talking(answer([]), url=f"http://c.test:8000{rest}") as (api, coolify):
        await api.applications()
    assert str(coolify.requests[0].url) == "http://c.test:8000/api/v1/applications"


@virtual
async def test_what_stops_never_lets_coolify_throw_images_away() -> None:
    async with talking(answer(DONE)) as (api, coolify):
        await api.stop("u")
        await api.delete_application("u")
    assert [call.url.params["docker_cleanup"] for call in coolify.requests] == ["0", "0"]


@virtual
async def test_variables_are_set_with_every_flag_and_taken_literally() -> None:
    async with talking(answer([], 201)) as (api, coolify):
        assert await api.set_environment("u", {"A": "$1", "B": ""})
    flags = {
        **dict.fromkeys(("is_preview", "is_multiline", "is_buildtime"), False),
        "is_shown_once": True,
        **dict.fromkeys(("is_literal", "is_runtime"), True),
    }
    data = [{"key": "A", "value": "$1", **flags}, {"key": "B", "value": "", **flags}]
    assert json.loads(coolify.requests[0].content) == {"data": data}
    assert (coolify.requests[0].method, coolify.path) == ("PATCH", "/applications/u/envs/bulk")


@each_call
@virtual
async def test_what_bots_wait_for_comes_before_reads_and_those_before_descriptions(
    call: str,
) -> None:
    spent = []

    class Noting(Budget):
        def spend(self, urgency: Urgency) -> Any:
            spent.append(urgency)
            return super().spend(urgency)

    async with talking(good(call), budget=Noting(1000)) as (api, coolify):
        await make(api, call)
    others = Urgency.READ if coolify.requests[0].method == "GET" else Urgency.CHANGE
    # The lists are read for all slots at once, so a stop may wait for one.
    lists = dict.fromkeys(("applications", "active"), Urgency.CHANGE)
    urgencies = {"describe": Urgency.DESCRIBE, "create": Urgency.CREATE, **lists}
    assert spent == [urgencies.get(call, others)]


@virtual
async def test_a_text_that_waits_for_the_budget_is_asked_for_when_it_is_sent() -> None:
    budget = Budget(1)
    async with talking(answer(ONE), budget=budget) as (api, coolify):
        await api.stop("u")
        texts = ["old"]
        waiting = asyncio.create_task(api.describe("u", lambda: texts[-1]))
        await asyncio.sleep(1)
        texts.append("new")
        await waiting
    assert json.loads(coolify.requests[-1].content) == {"description": "new"}


@pytest.mark.parametrize(
    ("status", "headers", "told"),
    [
        (200, {"X-RateLimit-Limit": "300", "X-RateLimit-Remaining": "12"}, (300, 12)),
        (404, {"x-ratelimit-limit": "300", "x-ratelimit-remaining": "0"}, (300, 0)),
        (200, {"X-RateLimit-Limit": "many", "X-RateLimit-Remaining": "12"}, None),
        (200, {"X-RateLimit-Limit": "300"}, None),
        (200, {}, None),
        (429, {"X-RateLimit-Limit": "300", "X-RateLimit-Remaining": "0"}, None),
    ],
)
@virtual
async def test_what_coolify_says_of_its_count_is_noted_unless_it_turns_a_call_away(
    status: int, headers: dict[str, str], told: tuple[int, int] | None
) -> None:
    noted = []

    class Noting(Budget):
        def told(self, sent_at: float, limit: int, remaining: int) -> None:
            noted.append((limit, remaining))

    said = httpx.Response(status, json=ONE, headers=headers)
    async with talking(said, budget=Noting(1000)) as (api, _):
        with suppress(EngineUnavailable):
            await api.application("u")
    assert {*noted} == ({told} if told else set())


# What is asked again


@each_call
@pytest.mark.parametrize("error", [REFUSED, httpx.ConnectTimeout("slow")])
@virtual
async def test_what_was_never_sent_is_sent_again(call: str, error: Exception) -> None:
    async with talking(error, error, error, good(call)) as (api, coolify):
        await make(api, call)
    assert len(coolify.requests) == 4
    waits = [after - before for before, after in pairwise(coolify.times)]
    assert all(least <= wait <= 2 * least for wait, least in zip(waits, (0.5, 1, 2), strict=True))


@each_call
@virtual
async def test_what_the_rate_limit_turns_away_is_sent_again_when_it_says(call: str) -> None:
    async with talking(answer(DONE, 429, **{"Retry-After": "37"}), good(call)) as (api, coolify):
        await make(api, call)
    assert coolify.times == [0, 37]


@virtual
async def test_a_rate_limit_holds_every_call_of_the_replica() -> None:
    async with talking(answer(DONE, 429, **{"Retry-After": "37"}), answer([])) as (api, coolify):
        first = asyncio.create_task(api.servers())
        await asyncio.sleep(5)
        await asyncio.gather(first, api.applications(), api.stop("u"))
    assert coolify.times == [0, 37, 37, 37]


@pytest.mark.parametrize("said", ["soon", "Wed, 21 Oct 2026 07:28:00 GMT", "-5", "nan", ""])
@virtual
async def test_a_rate_limit_that_names_no_seconds_is_waited_for_a_little(said: str) -> None:
    async with talking(answer(DONE, 429, **{"Retry-After": said}), answer([])) as (api, coolify):
        await api.servers()
    assert 0.5 <= coolify.times[1] <= 2


@pytest.mark.parametrize("call", sorted(CALLS.keys() - ONCE))
@each_problem
@virtual
async def test_what_may_be_done_twice_is_asked_again(call: str, problem: Answer) -> None:
    async with talking(problem, good(call)) as (api, coolify):
        await make(api, call)
    assert len(coolify.requests) == 2


@pytest.mark.parametrize("call", sorted(ONCE))
@each_problem
@virtual
async def test_what_would_be_there_twice_is_asked_once(call: str, problem: Answer) -> None:
    _, coolify = await failing(call, problem, good(call))
    assert len(coolify.requests) == 1


@pytest.mark.parametrize(
    ("call", "status"),
    [
        (call, status)
        for call in CALLS
        for status in (302, 400, 401, 403, 404, 405, 409, 413, 422, 501)
        if (call, status) not in NO_ERRORS
    ],
)
@virtual
async def test_an_answer_that_would_be_the_same_again_is_final(call: str, status: int) -> None:
    refused = status in {400, 404, 405, 409, 422}
    async with talking(answer(DONE, status), good(call)) as (api, coolify):
        with pytest.raises(EngineRefused if refused else EngineUnavailable) as raised:
            await make(api, call)
    (request,) = coolify.requests
    words = f"Coolify answers {status} to {request.method} {coolify.path}: queued."
    assert str(raised.value) == words


@pytest.mark.parametrize(
    ("call", "problem", "seconds"),
    [
        *(("applications", None, 4 * 15 + 7), ("start", None, 15), ("start", REFUSED, 7)),
        ("start", answer(DONE, 429, **{"Retry-After": "1000000"}), 3 * 120 + 7),
    ],
)
@virtual
async def test_no_call_takes_forever(call: str, problem: Answer, seconds: float) -> None:
    words, _ = await failing(call, problem)
    assert asyncio.get_running_loop().time() <= seconds
    assert f"/{call}" in words


# What an answer becomes


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"message": ["One.", "Two."]}, "One. Two."),
        ({"message": "Invalid request.", "error": "Empty JSON."}, "Invalid request.; Empty JSON."),
        (
            {"message": "Validation failed.", "errors": {"a": "is\nwrong.", "b": ["x.", "y."]}},
            "Validation failed.; a: is wrong.; b: x. y.",
        ),
        ({"message": "x" * 1000}, "x" * 500),
        ([], "nothing more"),
    ],
)
@virtual
async def test_an_error_says_where_and_what_in_coolifys_words(said: object, words: str) -> None:
    async with talking(answer(said, 422)) as (api, _):
        with pytest.raises(EngineRefused) as raised:
            await api.create_application({})
    assert str(raised.value) == f"Coolify answers 422 to POST /applications/dockerimage: {words}"


@pytest.mark.parametrize("shown", [TOKEN, SECRET, f"Bearer {TOKEN}"])
@virtual
async def test_no_error_shows_the_token(shown: str) -> None:
    for problem in (
        answer({"message": shown, "error": shown, "errors": {shown: [shown]}}, 401),
        answer({"message": "x" * 480 + shown}, 500),
        httpx.Response(302, headers={"Location": f"/login?{shown}"}),
        httpx.Response(502, headers={"Content-Type": shown}),
        answer({"deployments": [{shown: shown}]}),
        httpx.ReadError(f"broken: {shown}"),
    ):
        words, _ = await failing("deployments_of", problem)
        assert "/deployments/applications/u" in words
        assert SECRET[:8] not in words


@each_call
@pytest.mark.parametrize("page", ["<h1>Not here</h1>", ""])
@pytest.mark.parametrize("status", [200, 204, 400, 404, 422, 500])
@virtual
async def test_a_page_is_no_answer_of_coolifys_nor_is_nothing(
    call: str, page: str, status: int
) -> None:
    words, coolify = await failing(call, httpx.Response(status, html=page))
    assert coolify.path in words


@each_call
@virtual
async def test_a_way_to_elsewhere_is_named_and_not_gone(call: str) -> None:
    words, coolify = await failing(call, httpx.Response(301, headers={"Location": "https://x/y"}))
    assert len(coolify.requests) == 1
    assert words.endswith("not JSON, but a redirect to https://x/y")


@pytest.mark.parametrize(
    ("calls", "shapes"),
    [
        ("applications servers environments", [{}, {"0": ONE}, [7], [{}]]),
        ("active", [{"0": 7}, {"0": {}}, {"message": "x"}, [7], [{}]]),
        ("application create deployment server", [{}, [], [ONE], {"uuid": 7}]),
        ("deployments_of", [{}, [], {"count": 0}, {"deployments": {}}, {"deployments": [7]}]),
        ("start", [[], {"deployment_uuid": 7}]),
        ("logs", [[], {"logs": ["one"]}]),
        (" ".join(sorted(CALLS.keys() - {"version"})), [None, 7, "text"]),
        ("version", ["<html>", {"version": "4.3.11"}]),
    ],
)
@virtual
async def test_an_answer_of_another_shape_is_never_taken_for_nothing(
    calls: str, shapes: list[object]
) -> None:
    for call in calls.split():
        for said in shapes:
            words, coolify = await failing(call, answer(said))
            assert coolify.path in words, said


@virtual
async def test_active_deployments_come_as_a_list_or_by_index() -> None:
    async with talking(answer([RUN, RUN]), answer({"0": RUN, "2": RUN})) as (api, _):
        assert await api.active_deployments() == [Deployment(**RUN)] * 2
        assert await api.active_deployments() == [Deployment(**RUN)] * 2


@pytest.mark.parametrize(("call", "status"), sorted(NO_ERRORS))
@virtual
async def test_what_coolify_says_is_not_there_is_no_error(call: str, status: int) -> None:
    async with talking(answer({"message": "Not found."}, status)) as (api, _):
        assert await make(api, call) == MISSING[call]


@virtual
async def test_logs_are_lines_and_none_of_what_does_not_run() -> None:
    answers = answer({"logs": "one\ntwo\n"}), answer({"logs": None}), answer(DONE, 400)
    async with talking(*answers) as (api, coolify):
        assert await api.logs("u", 7) == ["one", "two"]
        assert await api.logs("u", 7) == []
        assert await api.logs("u", 7) is None
    assert coolify.requests[0].url.params["lines"] == "7"


@virtual
async def test_what_a_token_may_is_tried_on_nothing() -> None:
    for status, words, may in (
        (403, "Missing required permissions: write", False),
        (404, "Application not found.", True),
        (400, "Invalid request.", True),
    ):
        async with talking(answer({"message": words}, status)) as (api, _):
            assert await api.may("PATCH", "/applications/none") is may
    for status, words in ((403, "API is disabled."), (401, "Unauthenticated.")):
        async with talking(answer({"message": words}, status)) as (api, _):
            with pytest.raises(EngineUnavailable, match=words):
                await api.may("PATCH", "/applications/none")
