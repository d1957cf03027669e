"""The client of a cluster, against answers that a real one gives only when it is in trouble."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from botpool.engines.kubernetes.api import Gate, Kind, KubernetesApi, NameTaken, WatchTooOld
from botpool.engines.kubernetes.credentials import Access, User
from botpool.engines.kubernetes.watch import PodWatch
from botpool.errors import EngineRefused, EngineUnavailable, HostUnreachable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Answer = Callable[[httpx.Request], httpx.Response]


def status(code: int, reason: str, message: str = "no", **more: Any) -> httpx.Response:
    said = {"kind": "Status", "code": code, "reason": reason, "message": message, **more}
    return httpx.Response(code, json=said)


@pytest.fixture
def on(tmp_path: Path) -> Callable[[Answer], KubernetesApi]:
    def on(answer: Answer) -> KubernetesApi:
        access = Access("https://cluster", "bots", User({"token": "secret"}, tmp_path, {}))
        return KubernetesApi("a", access, httpx.MockTransport(answer))

    return on


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        (status(422, "Invalid", "bad field"), EngineRefused, "bad field"),
        (
            status(403, "Forbidden", "exceeded quota: q"),
            EngineUnavailable,
            "quota of the cluster a",
        ),
        (
            status(403, "Forbidden", 'User "x" cannot create resource "pods"'),
            EngineUnavailable,
            "doesn't give botpool this right",
        ),
        (status(403, "Forbidden", "violates PodSecurity"), EngineRefused, "violates PodSecurity"),
        (status(409, "AlreadyExists"), NameTaken, "The cluster a says"),
        (status(409, "Conflict"), EngineUnavailable, "The cluster a says"),
        (
            status(404, "NotFound", 'namespaces "bots" not found', details={"kind": "namespaces"}),
            EngineUnavailable,
            "not found",
        ),
        (status(500, "InternalError", "failed calling webhook"), EngineUnavailable, "webhook"),
        (httpx.Response(422, text="<html>"), EngineUnavailable, "status 422"),
        (httpx.Response(200, text="<html>"), EngineUnavailable, "not JSON"),
    ],
)
async def test_an_answer_becomes_an_error_that_says_whether_to_try_again(
    on: Callable[[Answer], KubernetesApi], answer: httpx.Response, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said) as raised:
        await on(lambda _: answer).create(Kind.POD, {"metadata": {}})
    assert raised.type is error


async def test_only_the_server_itself_can_say_that_an_object_is_gone(
    on: Callable[[Answer], KubernetesApi],
) -> None:
    assert await on(lambda _: status(404, "NotFound")).find(Kind.POD, "x") is None
    with pytest.raises(EngineUnavailable):
        await on(lambda _: httpx.Response(404, text="no such route")).find(Kind.POD, "x")


async def test_a_server_that_is_away_is_unreachable(
    on: Callable[[Answer], KubernetesApi],
) -> None:
    def away(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    with pytest.raises(HostUnreachable, match="a doesn't answer"):
        await on(away).find(Kind.POD, "x")


async def test_a_call_that_is_turned_away_is_made_again_when_the_server_says(
    on: Callable[[Answer], KubernetesApi], monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("botpool.engines.kubernetes.api.asyncio.sleep", sleep)
    answers = [
        httpx.Response(429, headers={"Retry-After": "7"}),
        httpx.Response(429, headers={"Retry-After": "3"}),
        httpx.Response(200, json={"metadata": {"name": "x"}}),
    ]
    assert await on(lambda _: answers.pop(0)).find(Kind.POD, "x") == {"metadata": {"name": "x"}}
    assert slept == [7, 3]


async def test_a_log_that_is_turned_away_is_asked_for_again_also_with_a_new_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("botpool.engines.kubernetes.api.asyncio.sleep", sleep)
    token = tmp_path / "token"
    token.write_text("old")

    def answer(request: httpx.Request) -> httpx.Response:
        if not slept:
            return httpx.Response(429, headers={"Retry-After": "1"})
        if request.headers["Authorization"] == "Bearer old":
            token.write_text("new")
            return status(401, "Unauthorized")
        return httpx.Response(200, text="the last line\n")

    access = Access("https://cluster", "bots", User({"tokenFile": str(token)}, tmp_path, {}))
    api = KubernetesApi("a", access, httpx.MockTransport(answer))
    async with api.log("x", "bot", 5, follow=True) as written:
        assert [line async for line in written] == ["the last line"]
    assert slept == [1]


async def test_a_watch_is_not_tried_for_ever(
    on: Callable[[Answer], KubernetesApi],
) -> None:
    turned_away = httpx.Response(429, headers={"Retry-After": "0"})
    with pytest.raises(EngineUnavailable, match="too many requests"):
        async for _ in on(lambda _: turned_away).watch(Kind.POD, "1"):
            pass
    with pytest.raises(EngineUnavailable, match="doesn't accept the credentials"):
        async for _ in on(lambda _: status(401, "Unauthorized")).watch(Kind.POD, "1"):
            pass


async def test_calls_that_change_something_go_before_reads_that_wait() -> None:
    gate, order = Gate(1), list[str]()

    async def call(name: str, *, urgent: bool) -> None:
        async with gate.through(urgent=urgent):
            order.append(name)

    async with gate.through(urgent=False):
        calls = [
            asyncio.create_task(call("read", urgent=False)),
            asyncio.create_task(call("start", urgent=True)),
        ]
        given_up = asyncio.create_task(call("never", urgent=True))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
    await asyncio.gather(*calls)
    assert order == ["start", "read"]


async def test_a_deletion_names_the_object_that_it_means(
    on: Callable[[Answer], KubernetesApi],
) -> None:
    sent: list[dict[str, Any]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(json.loads(request.content))
        return status(409, "Conflict", "the UID in the precondition does not match")

    pod = {"metadata": {"name": "x", "uid": "u1", "resourceVersion": "5", "finalizers": []}}
    assert await on(answer).delete(Kind.POD, pod, 5) is None
    assert sent[-1]["preconditions"] == {"uid": "u1"}
    with pytest.raises(EngineUnavailable):
        await on(answer).change(Kind.POD, pod, {"finalizers": None})
    assert sent[-1]["metadata"] == {"uid": "u1", "resourceVersion": "5", "finalizers": None}


class Pods:
    """A server with pods, whose watches go as a test says."""

    def __init__(self) -> None:
        self.names = ["a"]
        self.lists = 0
        self.watches: list[list[dict[str, Any]] | Exception] = []
        self.watched: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if "watch" not in request.url.params:
            self.lists += 1
            items = [{"metadata": {"name": name}} for name in self.names]
            version = str(self.lists)
            return httpx.Response(
                200, json={"metadata": {"resourceVersion": version}, "items": items}
            )
        self.watched.append(request.url.params["resourceVersion"])
        events = self.watches.pop(0) if self.watches else []
        if isinstance(events, Exception):
            raise events
        return httpx.Response(200, content=b"".join(json.dumps(e).encode() + b"\n" for e in events))


async def names(watch: PodWatch) -> list[str]:
    found = [pod["metadata"]["name"] for pod in await watch.pods()]
    if watch._watching is not None:
        await asyncio.gather(watch._watching, return_exceptions=True)
    return found


@pytest.mark.parametrize(
    "trouble",
    [
        [],  # the server closes a watch as it likes
        [{"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}}],
        httpx.ReadError("cut"),
    ],
)
async def test_after_a_watch_that_ends_everything_is_listed_again(
    on: Callable[[Answer], KubernetesApi], trouble: list[dict[str, Any]] | Exception
) -> None:
    pods = Pods()
    pods.watches = [trouble]
    watch = PodWatch(on(pods), "x=y")
    assert await names(watch) == ["a"]
    pods.names = ["b"]  # what happened in between is only seen by a new list
    assert await names(watch) == ["b"]
    assert (pods.lists, pods.watched) == (2, ["1", "2"])
    await watch.close()


async def test_a_watch_saves_lists_and_tells_what_happens(
    on: Callable[[Answer], KubernetesApi],
) -> None:
    seen = asyncio.Event()
    pods = Pods()
    events = [
        {"type": "ADDED", "object": {"metadata": {"name": "b"}}},
        {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}},
        {"type": "DELETED", "object": {"metadata": {"name": "a"}}},
    ]

    class Open(httpx.AsyncByteStream):
        async def __aiter__(self) -> Any:
            for event in events:
                yield json.dumps(event).encode() + b"\n"
            seen.set()
            await asyncio.Event().wait()

    def answer(request: httpx.Request) -> httpx.Response:
        if "watch" in request.url.params:
            return httpx.Response(200, stream=Open())
        return pods(request)

    watch = PodWatch(on(answer), "x=y")
    await watch.pods()
    await seen.wait()
    assert [pod["metadata"]["name"] for pod in await watch.pods()] == ["b"]
    assert pods.lists == 1
    await watch.close()
    silent = PodWatch(on(answer), "x=y", list_seconds=0)
    await silent.pods()
    await silent.pods()
    assert pods.lists == 3  # a watch that says nothing may be dead
    await silent.close()


async def test_a_watch_that_is_too_old_says_so(on: Callable[[Answer], KubernetesApi]) -> None:
    pods = Pods()
    pods.watches = [[{"type": "ERROR", "object": {"code": 410, "message": "too old"}}]]
    with pytest.raises(WatchTooOld, match="too old"):
        async for _ in on(pods).watch(Kind.POD, "1"):
            pass
