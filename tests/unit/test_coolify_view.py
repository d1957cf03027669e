"""One reading is shared by all callers, and none is told what was read before its change."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import httpx
import pytest

from botpool.engines.base import Container, ContainerSpec, ContainerState
from botpool.engines.coolify.api import CoolifyApi
from botpool.engines.coolify.budget import Budget
from botpool.engines.coolify.engine import CoolifyEngine
from botpool.engines.coolify.view import LIST_SECONDS, Shared, View
from botpool.engines.coolify.wire import (
    Application,
    Deployment,
    Server,
    split_image,
    version_number,
)
from botpool.errors import EngineRefused, EngineUnavailable
from botpool.states import Platform
from tests.fakes.coolify import Coolify as Imitation
from tests.fakes.coolify import Rules
from tests.support.coolify_engine import engine_on
from tests.support.virtual_time import virtual

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable


def now() -> float:
    return asyncio.get_running_loop().time()


class Source:
    """What is read: the time at which the reading began, or an error."""

    def __init__(self, takes: float = 0.5) -> None:
        self.takes = takes
        self.error: Exception | None = None
        self.begun: list[float] = []

    async def read(self) -> float:
        self.begun.append(now())
        begun = now()
        await asyncio.sleep(self.takes)
        if self.error is not None:
            raise self.error
        return begun


AFTER_HALF_A_SECOND = LIST_SECONDS + 3 * 0.5
"""When a list that took half a second is read again."""

# Shared


@virtual
async def test_all_who_ask_at_once_share_one_reading() -> None:
    source = Source()
    shared = Shared(source.read, 2)
    assert await asyncio.gather(*(shared.get() for _ in range(100))) == [0] * 100
    assert source.begun == [0]


@virtual
async def test_what_was_read_is_kept_for_its_seconds_and_then_read_again() -> None:
    source = Source()
    shared = Shared(source.read, 10)
    found = []
    for _ in range(25):
        found.append(await shared.get())
        await asyncio.sleep(1)
    assert source.begun == [0, 10.5, 21]
    assert sorted({*found}) == source.begun


@virtual
async def test_who_changed_something_waits_for_a_reading_that_begins_afterwards() -> None:
    source = Source(takes=3)
    shared = Shared(source.read, 100)
    first = asyncio.create_task(shared.get())
    await asyncio.sleep(1)
    changed = now()
    # The reading that is under way may not have seen it, and others are content with it.
    late, content = await asyncio.gather(shared.get(changed), shared.get())
    assert (await first, content, late) == (0, 0, 10)
    assert await shared.get(changed) == 10


@virtual
async def test_a_reading_that_began_with_the_change_is_not_one_after_it() -> None:
    source = Source()
    shared = Shared(source.read, 100)
    assert await shared.get(since=0) == AFTER_HALF_A_SECOND


@virtual
async def test_a_list_that_takes_long_is_given_a_rest() -> None:
    source = Source(takes=5)
    shared = Shared(source.read, 100)
    for _ in range(3):
        await shared.get(since=now() - 1)
    assert source.begun == [0, 16, 32]


@virtual
async def test_however_often_something_changes_readings_keep_their_distance() -> None:
    source = Source(takes=0)
    shared = Shared(source.read, 100)
    for _ in range(20):
        await shared.get(since=now())
        await asyncio.sleep(0.1)
    gaps = [after - before for before, after in zip(source.begun, source.begun[1:], strict=False)]
    assert min(gaps) >= LIST_SECONDS - 1e-6


@virtual
async def test_a_reading_that_takes_longer_than_it_is_kept_is_still_an_answer() -> None:
    source = Source(takes=30)
    shared = Shared(source.read, 2)
    async with asyncio.timeout(100):
        assert await shared.get() == 0
    assert source.begun == [0]


@virtual
async def test_a_failure_is_raised_to_all_who_wait_and_the_next_one_reads_again_soon() -> None:
    source = Source()
    shared = Shared(source.read, 3600)
    source.error = EngineUnavailable("no answer")
    failed = await asyncio.gather(*(shared.get() for _ in range(5)), return_exceptions=True)
    assert failed == [source.error] * 5
    source.error = None
    assert await shared.get() == AFTER_HALF_A_SECOND
    assert source.begun == [0, AFTER_HALF_A_SECOND]


@virtual
async def test_a_failure_leaves_nothing_old_to_those_who_need_news() -> None:
    source = Source()
    shared = Shared(source.read, 3600)
    assert await shared.get() == 0
    source.error = EngineUnavailable("no answer")
    with pytest.raises(EngineUnavailable):
        await shared.get(since=now())
    assert await shared.get() == 0


@virtual
async def test_who_is_cancelled_leaves_the_reading_to_the_others() -> None:
    source = Source()
    shared = Shared(source.read, 2)
    first, second = (asyncio.create_task(shared.get()) for _ in range(2))
    await asyncio.sleep(0.1)
    first.cancel()
    assert await second == 0
    assert first.cancelled()
    assert source.begun == [0]


@virtual
async def test_closing_ends_a_reading_that_is_under_way() -> None:
    source = Source(takes=1000)
    shared = Shared(source.read, 2)
    await shared.close()
    asking = asyncio.create_task(shared.get())
    await asyncio.sleep(1)
    await shared.close()
    assert now() == 1
    assert [
        task for task in asyncio.all_tasks() if task not in {asking, asyncio.current_task()}
    ] == []
    await asyncio.gather(asking, return_exceptions=True)


# The view


def deployment(uuid: str, application: str | None, status: str = "queued") -> Deployment:
    """A deployment as Coolify lists it."""
    url = f"/project/p/environment/e/application/{application}/deployment/{uuid}"
    return Deployment(
        deployment_uuid=uuid, status=status, deployment_url=url if application else None
    )


class Coolify:
    """An API that says what it is asked for, and what it was."""

    def __init__(self) -> None:
        self.budget = Budget()
        self.calls: list[str] = []
        self.listed = ["a"]
        self.state = "running:unknown"
        self.active: list[Deployment] | None = [deployment("d", "a")]

    async def applications(self) -> list[Application]:
        self.calls.append("applications")
        return [
            Application(uuid=uuid, name=f"at {now():g}", status=self.state) for uuid in self.listed
        ]

    async def application(self, uuid: str) -> Application | None:
        self.calls.append(f"application {uuid}")
        return Application(uuid=uuid) if uuid == "new" else None

    async def active_deployments(self) -> list[Deployment] | None:
        self.calls.append("active")
        return self.active

    async def deployment(self, uuid: str) -> Deployment | None:
        self.calls.append(f"deployment {uuid}")
        return Deployment(deployment_uuid=uuid, status="finished") if uuid == "over" else None

    async def deployments_of(self, uuid: str, most: int) -> list[Deployment] | None:
        self.calls.append(f"deployments of {uuid}")
        statuses = ["queued", "in_progress", "failed"]
        return [Deployment(deployment_uuid=status, status=status) for status in statuses]

    async def servers(self) -> list[Server]:
        self.calls.append("servers")
        return [Server(uuid="up"), Server(uuid="down", is_reachable=False)]


def view_of(coolify: Coolify, list_seconds: float = 2) -> View:
    return View(cast("CoolifyApi", coolify), list_seconds)


@virtual
async def test_a_hundred_slots_are_looked_at_with_one_list() -> None:
    coolify = Coolify()
    coolify.listed = [f"a{number}" for number in range(100)]
    view = view_of(coolify)
    found = await asyncio.gather(*(view.application(uuid) for uuid in coolify.listed))
    assert [one.uuid for one in found if one] == coolify.listed
    assert coolify.calls == ["applications"]


@virtual
async def test_only_what_was_changed_is_read_anew() -> None:
    coolify = Coolify()
    coolify.listed = ["a", "b"]
    view = view_of(coolify, 100)
    before = await view.application("a")
    await asyncio.sleep(5)
    view.changed("a")
    found = await view.application("b")
    after = await view.application("a")
    names = [one.name for one in (before, found, after) if one]
    assert names == ["at 0", "at 0", "at 100"]
    view.changed("a")
    view.forget("a")
    assert await view.application("a") == after


@virtual
async def test_the_whole_list_is_as_of_now() -> None:
    coolify = Coolify()
    view = view_of(coolify, 100)
    await view.application("a")
    await asyncio.sleep(50)
    coolify.listed = ["b"]
    assert [*await view.applications()] == ["b"]


@virtual
async def test_what_is_not_in_a_list_is_looked_up_by_itself() -> None:
    coolify = Coolify()
    view = view_of(coolify)
    assert await view.application("new") == Application(uuid="new")
    assert await view.application("none") is None
    assert coolify.calls == ["applications", "application new", "application none"]


@virtual
async def test_the_deployments_under_way_are_in_one_list_for_all() -> None:
    coolify = Coolify()
    coolify.active = [deployment("d", "a"), deployment("e", "b", "in_progress")]
    view = view_of(coolify)
    assert await view.deployment("a", "d") == coolify.active[0]
    assert await view.deployment("a", "over") is None
    found = await asyncio.gather(*(view.deployments_of(uuid) for uuid in ("a", "b", "c")))
    assert found == [[coolify.active[0]], [coolify.active[1]], []]
    assert coolify.calls == ["active"]


@pytest.mark.parametrize("active", [None, [deployment("d", None)]])
@virtual
async def test_where_that_list_does_not_tell_each_application_is_asked_for(
    active: list[Deployment] | None,
) -> None:
    coolify = Coolify()
    coolify.active = active
    view = view_of(coolify)
    found = [one.status for one in await view.deployments_of("a")]
    assert found == ["queued", "in_progress"]
    assert await view.deployment("a", "over") is None
    assert coolify.calls[:2] == ["active", "deployments of a"]


@virtual
async def test_a_list_of_any_age_since_its_last_change_tells_that_an_application_is_up() -> None:
    coolify = Coolify()
    view = view_of(coolify, 1)
    view.changed("a")
    await asyncio.sleep(1)
    assert await view.was_up("a")
    await asyncio.sleep(100)
    assert await view.was_up("a")
    assert coolify.calls == ["applications"]
    view.changed("a")
    coolify.state = "exited:unhealthy"
    await asyncio.sleep(1)
    assert not await view.was_up("a")
    assert len(coolify.calls) == 2


@pytest.mark.parametrize(("remaining", "most"), [(200, 61), (100, 9), (0, 5)])
@virtual
async def test_the_more_is_spent_the_less_often_is_a_list_read(remaining: int, most: int) -> None:
    coolify = Coolify()
    view = view_of(coolify, 1)
    while now() < 60:
        coolify.budget.told(now(), 200, remaining)
        view.changed("a")
        await view.application("a")
    assert most - 2 <= len(coolify.calls) <= most


@virtual
async def test_a_server_that_is_lost_or_unknown_tells_nothing() -> None:
    coolify = Coolify()
    view = view_of(coolify)
    await view.check("up")
    for server in ("down", "unknown"):
        with pytest.raises(EngineUnavailable, match=server):
            await view.check(server)
    assert await view.reachable() == {"up"}
    assert coolify.calls == ["servers"]


# What the engine makes of it


@asynccontextmanager
async def engine_with(**rules: Any) -> AsyncIterator[tuple[CoolifyEngine, Imitation]]:
    coolify = Imitation(Rules(**{"servers": ["a", "b"], "requests_per_minute": 10**6, **rules}))
    engine = engine_on(coolify)
    yield engine, coolify
    await engine.close()
    await coolify.close()


def spec(number: int, host: str) -> ContainerSpec:
    name = f"pool-zoom-{number:03}"
    return ContainerSpec(
        host=host,
        name=f"{name}-abcdef",
        slot_name=name,
        slot_id=number,
        platform=Platform.ZOOM,
        image="bot:1",
        environment={},
    )


@virtual
async def test_only_applications_of_ours_on_that_server_are_listed() -> None:
    async with engine_with() as (engine, coolify):
        unused, used, other = [
            await engine.create(spec(number, host))
            for number, host in ((1, "a"), (2, "a"), (3, "b"))
        ]
        await engine.describe(Container("a", used), "[IDLE] Available")
        coolify.applications[unused].fields["name"] = "renamed"
        made = "[DEPLOYING] Made by botpool"
        for name, description in (
            ("pool-zoom-004", "made by a person"),
            ("pool-zoom-005", None),
            ("pool-webex-001", "[IDLE] Available"),
            ("my-pool-zoom-001", "[IDLE] Available"),
            ("website", f"see: {made} test for slot 1 as it says"),
            ("website", f"{made} test for slot ² as it says"),
            ("website", f"{made} elsewhere for slot 1 as it says"),
        ):
            coolify.create_application("a", {}, {"name": name, "description": description})
        found = [(one.container.ref, one.slot_id, one.slot_name) for one in await engine.list("a")]
        assert found == [(unused, 1, "renamed"), (used, None, "pool-zoom-002")]
        (elsewhere,) = await engine.list("b")
        assert (elsewhere.container, elsewhere.slot_id) == (Container("b", other), 3)
        assert elsewhere.observation.state is ContainerState.EXITED
        assert {one.server_uuid for one in coolify.applications.values()} == {"a", "b"}


@virtual
async def test_an_application_that_tells_no_server_is_on_the_only_one() -> None:
    """As where the token may not see it."""
    untold = {"uuid": "u", "name": "pool-zoom-001", "description": "[IDLE] Available"}

    def shown(request: httpx.Request) -> httpx.Response:
        servers = [{"uuid": server} for server in ("a", "b")]
        return httpx.Response(200, json=servers if "servers" in request.url.path else [untold])

    found = []
    for servers in ("a", "ab"):
        transport = httpx.MockTransport(shown)
        api = CoolifyApi("http://c.test", "token", Budget(100), transport=transport)
        engine = CoolifyEngine(
            api, dict.fromkeys(servers), project="p", environment="e", installation="test"
        )
        found.append([one.container for one in await engine.list("a")])
        await engine.close()
    assert found == [[Container("a", "u")], []]


@virtual
async def test_a_server_that_can_not_be_reached_or_asked_raises_and_is_never_empty() -> None:
    async with engine_with() as (engine, coolify):
        container = Container("a", await engine.create(spec(1, "a")))
        deployment = await engine.start(container, {})
        await coolify.idle()
        await engine.observe(container, deployment)
        await coolify.set_reachable("a", False)
        await asyncio.sleep(30)
        assert await engine.open_hosts() == ["b"]
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: engine.list("a"),
            lambda: engine.observe(container),
            lambda: engine.observe(container, deployment),
            lambda: engine.remove(container),
        ]
        for call in calls:
            with pytest.raises(EngineUnavailable, match="can't reach the server a"):
                await call()
        await coolify.set_reachable("a", True)
        coolify.outage = 500
        for call in calls:
            with pytest.raises(EngineUnavailable):
                await call()
        assert "DELETE" not in {request.method for request in coolify.requests}


@virtual
async def test_a_server_that_is_not_in_the_settings_is_refused() -> None:
    async with engine_with() as (engine, coolify):
        nowhere = Container("c", "u")
        for call in (
            lambda: engine.create(spec(1, "c")),
            lambda: engine.start(nowhere, {}),
            lambda: engine.observe(nowhere),
            lambda: engine.stop(nowhere, 1),
            lambda: engine.logs(nowhere, 1),
            lambda: engine.list("c"),
        ):
            with pytest.raises(EngineUnavailable, match="doesn't name the server"):
                await call()
        assert coolify.requests == []


# What single things mean


def test_a_server_is_reachable_unless_it_says_otherwise_anywhere() -> None:
    assert Server(uuid="a").reachable
    for no in ({"is_reachable": False}, {"is_usable": False}):
        assert not Server.model_validate({"uuid": "a", **no}).reachable
        assert not Server.model_validate({"uuid": "a", "settings": no}).reachable


def test_an_application_tells_its_state_image_and_server() -> None:
    bare = Application(uuid="u")
    assert (bare.state, bare.image, bare.server) == ("exited", None, None)
    whole = Application.model_validate(
        {
            "uuid": "u",
            "status": "running:healthy",
            "docker_registry_image_name": "r/bot",
            "destination": {"server": {"uuid": "a"}},
        }
    )
    assert (whole.state, whole.image, whole.server) == ("running", "r/bot:latest", "a")


def test_versions_are_compared_as_numbers_and_betas_come_before_their_release() -> None:
    texts = ["4.0.0-beta.99", "v4.0.0-beta.452", "4.0.0", "4.2.0", "4.3.9", "4.3.11", "nightly"]
    numbers = [version_number(text) for text in texts]
    assert numbers == sorted({*numbers})


def test_an_image_is_a_name_and_a_tag() -> None:
    for image, parts in {
        "bot": ("bot", "latest"),
        "bot:1": ("bot", "1"),
        "registry:5000/x/bot": ("registry:5000/x/bot", "latest"),
        "registry:5000/x/bot:1.2": ("registry:5000/x/bot", "1.2"),
    }.items():
        assert split_image(image) == parts
    with pytest.raises(EngineRefused, match="use a tag"):
        split_image(f"bot:1@sha256:{'0' * 64}")
