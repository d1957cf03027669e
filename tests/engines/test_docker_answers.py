"""What the docker engine makes of answers that no Docker gives on demand."""

from __future__ import annotations

import json
import struct
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import ClientTimeout, web

from botpool.engines.base import Container, ContainerState
from botpool.engines.docker import api
from botpool.engines.docker.engine import DockerEngine
from botpool.errors import EngineRefused, EngineUnavailable
from tests.support.docker_scene import spec, web_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from botpool.engines.base import PullProgress
    from botpool.errors import EngineError

ONE = Container("a", "one")
BEGUN = '{"id": "x", "progressDetail": {"current": 1, "total": 9}}\n'


def imitation(answers: Mapping[str, tuple[int, Any]]) -> web.Application:
    """A Docker that has an answer for each method and path, and 404 for all others."""

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/version":
            return web.json_response({"ApiVersion": "1.41"})
        asked = f"{request.method} {request.path.removeprefix('/v1.41')}"
        status, said = answers.get(asked, (404, {"message": "not found"}))
        body = said if isinstance(said, bytes) else json.dumps(said).encode()
        # As Docker says it: without a charset.
        headers = {"Content-Type": "application/json"}
        return web.Response(status=status, body=body, headers=headers)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    return app


@asynccontextmanager
async def engine_at(url: str) -> AsyncIterator[DockerEngine]:
    engine = DockerEngine({"a": url}, installation="other")
    try:
        yield engine
    finally:
        await engine.close()


@asynccontextmanager
async def imitated_docker(answers: Mapping[str, tuple[int, Any]]) -> AsyncIterator[DockerEngine]:
    """An engine whose Docker has these answers."""
    async with web_server(imitation(answers)) as url, engine_at(url) as engine:
        yield engine


def found(status: str, **state: Any) -> tuple[int, dict[str, Any]]:
    """What Docker says of a container of ours."""
    return 200, {
        "Id": "0" * 64,
        "Name": "/one",
        "Config": {"Labels": {"botpool.installation": "other"}},
        "State": {"Status": status, "ExitCode": 0, **state},
    }


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, EngineRefused),
        (403, EngineRefused),
        (404, EngineRefused),
        (408, EngineUnavailable),
        (429, EngineUnavailable),
        (500, EngineUnavailable),
        (503, EngineUnavailable),
    ],
)
async def test_errors_are_told_apart_by_their_status(status: int, error: type[EngineError]) -> None:
    said = {"message": "Docker's\nown words"}
    async with imitated_docker({"GET /containers/json": (status, said)}) as engine:
        with pytest.raises(error, match="Docker on a: Docker's own words"):
            await engine.list("a")


async def test_an_answer_that_is_late_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "_ANSWER", ClientTimeout(total=1e-6))
    async with imitated_docker({}) as engine:
        with pytest.raises(EngineUnavailable, match="in time"):
            await engine.observe(ONE)


async def test_a_state_that_is_not_known_is_no_state() -> None:
    async with imitated_docker({"GET /containers/one/json": found("dreaming")}) as engine:
        with pytest.raises(EngineUnavailable, match="dreaming"):
            await engine.observe(ONE)


async def test_a_container_tells_its_exit_code_and_how_often_docker_restarted_it() -> None:
    status, said = found("exited", ExitCode=3)
    answers = {"GET /containers/one/json": (status, {**said, "RestartCount": 2})}
    async with imitated_docker(answers) as engine:
        seen = await engine.observe(ONE)
        assert (seen.exit_code, seen.restarts) == (3, 2)


async def test_a_container_that_is_being_removed_has_ended_and_is_waited_for() -> None:
    answers = {
        "GET /containers/one/json": found("removing"),
        f"DELETE /containers/{'0' * 64}": (409, {"message": "removal is already in progress"}),
    }
    async with imitated_docker(answers) as engine:
        assert (await engine.observe(ONE)).state is ContainerState.EXITED
        with pytest.raises(EngineUnavailable):
            await engine.remove(ONE)


async def test_a_name_that_is_still_taken_by_no_container_is_waited_for() -> None:
    answers = {"POST /containers/create": (409, {"message": "name is already in use"})}
    answers["GET /images/botpool-test/bot:1/json"] = (200, {})
    async with imitated_docker(answers) as engine:
        with pytest.raises(EngineUnavailable):
            await engine.create(spec("one"))


async def test_a_network_that_is_missing_is_no_missing_image() -> None:
    answers = {
        "POST /containers/create": (404, {"message": "network not found"}),
        "GET /images/botpool-test/bot:1/json": (200, {}),
    }
    async with imitated_docker(answers) as engine:
        with pytest.raises(EngineRefused, match="network not found") as raised:
            await engine.create(spec("one"))
        assert type(raised.value) is EngineRefused


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (found("created", Error="no such device"), EngineRefused),
        (found("created", Error=""), EngineUnavailable),
    ],
)
async def test_a_start_that_failed_for_good_is_told_from_a_fault_of_docker(
    state: tuple[int, Any], error: type[EngineError]
) -> None:
    answers = {
        "GET /containers/one/json": state,
        f"GET /containers/{'0' * 64}/json": state,
        f"POST /containers/{'0' * 64}/start": (500, {"message": "no such device"}),
    }
    async with imitated_docker(answers) as engine:
        with pytest.raises(error, match="no such device"):
            await engine.start(ONE, {})


async def test_a_start_that_docker_fails_because_it_shuts_down_is_not_refused() -> None:
    """It closes its door first, and still answers those inside, with whatever it says then."""
    answers = {
        "GET /containers/one/json": found("created", Error="no such file or directory"),
        f"GET /containers/{'0' * 64}/json": found("created", Error="no such file or directory"),
        f"POST /containers/{'0' * 64}/start": (404, {"message": "no such file or directory"}),
    }
    runner = web.AppRunner(imitation(answers))
    await runner.setup()
    try:
        door = web.TCPSite(runner, "127.0.0.1", 0)
        await door.start()
        async with engine_at("http://{}:{}".format(*runner.addresses[0])) as engine:
            await engine.observe(ONE)
            await door.stop()
            assert (await engine.observe(ONE)).state is ContainerState.CREATED
            with pytest.raises(EngineUnavailable):
                await engine.start(ONE, {})
    finally:
        await runner.cleanup()


async def test_lines_of_both_outputs_stay_whole_and_in_order() -> None:
    frames = [
        (1, b"one\ntw"),
        (2, b"three\n"),
        (1, b"o\n\xff\n"),
        (2, b"no end"),
    ]
    raw = b"".join(struct.pack(">BxxxL", output, len(text)) + text for output, text in frames)
    answers = {
        "GET /containers/one/json": found("running"),
        f"GET /containers/{'0' * 64}/logs": (200, raw),
    }
    async with imitated_docker(answers) as engine:
        lines = await engine.logs(ONE, 100)
    assert lines == ["one", "three", "two", "\N{REPLACEMENT CHARACTER}", "no end"]


async def test_what_was_fetched_is_not_counted_again_while_it_is_unpacked() -> None:
    steps = [("x", 4, 10), ("y", 5, 5), ("x", 10, 10), ("y", 1, 5), ("x", 3, 10)]
    events = [
        {"id": layer, "progressDetail": {"current": current, "total": total}}
        for layer, current, total in steps
    ]
    # Newer ones count the seconds of unpacking instead.
    events.append({"id": "x", "progressDetail": {"current": 1, "units": "s"}})
    stream = "".join(f"{json.dumps(event)}\n" for event in events).encode()
    seen: list[PullProgress] = []
    async with imitated_docker({"POST /images/create": (200, stream)}) as engine:
        with pytest.raises(EngineUnavailable):
            await engine.pull("a", "bots.example/bot:1", seen.append)
    assert [(one.current, one.total) for one in seen] == [
        (4, 10),
        (9, 15),
        (15, 15),
        (15, 15),
        (15, 15),
    ]


@pytest.mark.parametrize(
    "stream",
    [
        BEGUN,
        BEGUN + '{"errorDetail": {"message": "unexpected EOF"}, "error": "unexpected EOF"}\n',
        BEGUN + '{"id": "x", "progr',
    ],
)
async def test_a_pull_that_brings_no_image_has_failed(stream: str) -> None:
    answers = {"POST /images/create": (200, stream.encode())}
    async with imitated_docker(answers) as engine:
        with pytest.raises(EngineUnavailable):
            await engine.pull("a", "bots.example/bot:1", print)


@pytest.mark.parametrize(
    ("status", "error"),
    [(401, EngineRefused), (403, EngineRefused), (404, EngineUnavailable)],
)
async def test_a_registry_that_denies_is_told_from_one_that_is_down(
    status: int, error: type[EngineError]
) -> None:
    answers = {
        "POST /images/create": (500, {"message": "unauthorized"}),
        "GET /distribution/bots.example/bot:1/json": (status, {"message": "unauthorized"}),
    }
    async with imitated_docker(answers) as engine:
        with pytest.raises(error, match="unauthorized"):
            await engine.pull("a", "bots.example/bot:1", print)
