"""What every engine promises, as `botpool.engines.base` says it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, cast

import psutil
import pytest

from botpool.engines.base import STOPPED, Container, ContainerSpec, ContainerState
from botpool.engines.kubernetes.engine import KubernetesEngine
from botpool.engines.process.engine import ProcessEngine
from botpool.engines.simulated import SimulatedEngine
from botpool.errors import ContainerMissing, EngineError, EngineRefused, ImageMissing
from botpool.states import Platform
from testbed.docker import BOT, BOT_IMAGE
from tests.support.waiting import a_moment

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from botpool.engines.base import Engine

REAL = ["process", "docker", "podman", "kubernetes"]
HERE_AND_NOW = ["simulated", *REAL]
"""Coolify's containers start again when they have ended, and its calls take effect later."""
WITH_IMAGES = ["simulated", "docker", "podman", "kubernetes"]
SAYS = {"run": "hello", "ignore": "deaf", "children": "parent"}
"""The word that a behaviour says once it is ready."""

_names = count(1)


@dataclass(frozen=True)
class Stand:
    """An engine, and the verbs that its tests need."""

    engine: Engine
    image: str | None

    def spec(self, behaviour: str = "run", **changes: Any) -> ContainerSpec:
        number = next(_names)
        environment = {"TEST_BEHAVIOUR": behaviour, **changes.pop("environment", {})}
        return ContainerSpec(
            **{
                "host": self.engine.hosts()[0],
                "name": f"pool-zoom-{number:03}-abcdef",
                "slot_id": number,
                "slot_name": f"pool-zoom-{number:03}",
                "platform": Platform.ZOOM,
                "image": self.image,
                "environment": environment,
                **changes,
            }
        )

    async def created(self, behaviour: str = "run", **changes: Any) -> Container:
        spec = self.spec(behaviour, **changes)
        return Container(spec.host, await self.engine.create(spec))

    async def started(self, behaviour: str = "run", **changes: Any) -> Container:
        container = await self.created(behaviour, **changes)
        await self.engine.start(container, {})
        if behaviour in SAYS:
            await self.until_said(container, SAYS[behaviour])
        return container

    async def until_said(self, container: Container, word: str) -> None:
        while word not in await self.engine.logs(container, 100):
            state = await self.state(container)
            assert state in {ContainerState.STARTING, ContainerState.RUNNING}, state
            await a_moment()

    async def until(self, container: Container, state: ContainerState) -> None:
        while await self.state(container) is not state:
            await a_moment()

    async def until_over(self, container: Container) -> None:
        while await self.state(container) not in STOPPED:
            await a_moment()

    async def state(self, container: Container) -> ContainerState:
        return (await self.engine.observe(container)).state

    async def listed(self) -> list[Container]:
        return [found.container for found in await self.engine.list(self.engine.hosts()[0])]


@pytest.fixture(scope="session")
async def process_engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ProcessEngine]:
    folder = tmp_path_factory.mktemp("process")
    script = folder / "bot"
    script.write_text(BOT.replace("/left-behind", "left-behind"))
    engine = ProcessEngine(folder / "slots", ["/bin/sh", str(script)])
    yield engine
    await engine.close()


@pytest.fixture(scope="session")
def simulated_engine() -> SimulatedEngine:
    """Its bots do what those of the other engines do."""

    def started(container: Container, environment: Mapping[str, str]) -> None:
        behaviour = environment["TEST_BEHAVIOUR"]
        if behaviour.startswith("exit:"):
            engine.say(container, "bye")
            engine.exit(container, int(behaviour.removeprefix("exit:")))
        else:
            engine.say(container, SAYS.get(behaviour, "hello"))

    engine = SimulatedEngine(["a"], started=started)
    engine.add_image("a", BOT_IMAGE)
    return engine


@pytest.fixture(
    scope="session",
    params=["process", "simulated", "docker", "podman", "coolify", "kubernetes"],
)
def name(request: pytest.FixtureRequest) -> str:
    return cast("str", request.param)


@pytest.fixture(scope="session")
def stand(name: str, request: pytest.FixtureRequest) -> Stand:
    engine = cast("Engine", request.getfixturevalue(f"{name}_engine"))
    if isinstance(engine, KubernetesEngine):
        return Stand(engine, engine.images[0])
    return Stand(engine, None if name == "process" else BOT_IMAGE)


@pytest.fixture(autouse=True)
def turn(name: str, request: pytest.FixtureRequest) -> None:
    """Nobody takes a part of the cluster away during a test."""
    if name == "kubernetes":
        request.getfixturevalue("cluster")


def only(names: list[str]) -> Callable[[Any], Any]:
    return pytest.mark.parametrize("name", names, indirect=False, scope="session")


async def test_a_new_container_is_listed_with_its_slot_and_was_never_started(stand: Stand) -> None:
    spec = stand.spec()
    container = Container(spec.host, await stand.engine.create(spec))
    assert await stand.state(container) is ContainerState.CREATED
    (found,) = [f for f in await stand.engine.list(spec.host) if f.container == container]
    assert (found.slot_id, found.slot_name) == (spec.slot_id, spec.slot_name)
    assert found.observation.state in STOPPED
    assert await stand.engine.logs(container, 10) == []


async def test_a_container_whose_creation_is_asked_for_again_is_one(stand: Stand) -> None:
    spec = stand.spec()
    container = Container(spec.host, await stand.engine.create(spec))
    assert await stand.engine.create(spec) == container.ref
    named = [f for f in await stand.engine.list(spec.host) if f.slot_name == spec.slot_name]
    assert [found.container for found in named] == [container]


@only(HERE_AND_NOW)
async def test_a_container_created_twice_is_one_and_new(stand: Stand) -> None:
    spec = stand.spec("exit:0")
    container = Container(spec.host, await stand.engine.create(spec))
    await stand.engine.start(container, {})
    await stand.until_over(container)
    assert await stand.engine.create(spec) == container.ref
    assert await stand.state(container) is ContainerState.CREATED
    assert (await stand.listed()).count(container) == 1


async def test_a_container_that_runs_is_not_replaced(stand: Stand) -> None:
    spec = stand.spec()
    container = Container(spec.host, await stand.engine.create(spec))
    await stand.engine.start(container, {})
    await stand.until(container, ContainerState.RUNNING)
    with pytest.raises(EngineRefused):
        await stand.engine.create(spec)
    assert await stand.state(container) is ContainerState.RUNNING
    await stand.engine.stop(container, 5)


async def test_a_started_container_runs_and_starting_it_again_changes_nothing(stand: Stand) -> None:
    container = await stand.started()
    # A kubelet may tell of it only after the container has written its first line.
    await stand.until(container, ContainerState.RUNNING)
    assert await stand.engine.start(container, {})
    assert await stand.state(container) is ContainerState.RUNNING
    assert await stand.engine.logs(container, 10) == ["hello"]
    await stand.engine.stop(container, 5)


@only(HERE_AND_NOW)
@pytest.mark.parametrize("code", [0, 3])
async def test_a_container_that_ends_by_itself_tells_its_exit_code(stand: Stand, code: int) -> None:
    container = await stand.started(f"exit:{code}")
    await stand.until_over(container)
    observation = await stand.engine.observe(container)
    assert (observation.state, observation.exit_code) == (ContainerState.EXITED, code)
    assert await stand.engine.logs(container, 10) == ["bye"]


async def test_a_container_that_is_asked_to_stop_is_over_and_can_be_asked_again(
    stand: Stand,
) -> None:
    container = await stand.started()
    await stand.engine.stop(container, 30)
    await stand.until_over(container)
    assert await stand.state(container) is ContainerState.EXITED
    await stand.engine.stop(container, 30)
    assert await stand.state(container) is ContainerState.EXITED


async def test_stopping_what_was_never_started_leaves_it_as_it_is(stand: Stand) -> None:
    container = await stand.created()
    await stand.engine.stop(container, 1)
    assert await stand.state(container) is ContainerState.CREATED


async def test_a_container_that_does_not_listen_is_forced_after_the_grace(stand: Stand) -> None:
    container = await stand.started("ignore")
    await stand.engine.stop(container, 0.5)
    await stand.until_over(container)
    assert await stand.state(container) is ContainerState.EXITED


async def test_a_container_that_runs_is_not_removed(stand: Stand) -> None:
    container = await stand.started()
    with pytest.raises(EngineRefused):
        await stand.engine.remove(container)
    await stand.until(container, ContainerState.RUNNING)
    await stand.engine.stop(container, 5)


async def test_a_removed_container_is_gone_and_can_be_removed_again(stand: Stand) -> None:
    container = await stand.created()
    await stand.engine.remove(container)
    await stand.until(container, ContainerState.MISSING)
    assert container not in await stand.listed()
    await stand.engine.remove(container)


async def test_a_container_that_is_gone_can_be_asked_for_but_not_started(stand: Stand) -> None:
    gone = Container(stand.engine.hosts()[0], "pool-zoom-999-abcdef")
    assert await stand.state(gone) is ContainerState.MISSING
    assert await stand.engine.logs(gone, 10) == []
    await stand.engine.stop(gone, 1)
    await stand.engine.describe(gone, "[IDLE] Available")
    with pytest.raises(ContainerMissing):
        await stand.engine.start(gone, {})


async def test_logs_are_the_last_lines(stand: Stand) -> None:
    container = await stand.started()
    assert await stand.engine.logs(container, 1) == ["hello"]
    assert await stand.engine.logs(container, 0) == []
    await stand.engine.stop(container, 5)


async def test_a_host_that_is_not_there_has_no_list_rather_than_an_empty_one(stand: Stand) -> None:
    with pytest.raises(EngineError):
        await stand.engine.list("nowhere")
    with pytest.raises(EngineError):
        await stand.engine.observe(Container("nowhere", "pool-zoom-001-abcdef"))


@only(WITH_IMAGES)
async def test_a_container_of_an_image_that_is_not_there_never_runs_and_says_why(
    stand: Stand,
) -> None:
    missing = f"{(stand.image or '').rpartition('/')[0]}/none:1"
    spec = stand.spec(image=missing)
    container = Container(spec.host, spec.name)
    try:
        await stand.engine.create(spec)
    except ImageMissing:
        assert await stand.state(container) is ContainerState.MISSING
        return
    assert stand.engine.traits.has_nodes
    await stand.engine.start(container, {})
    await stand.until(container, ContainerState.FAILED)
    observation = await stand.engine.observe(container)
    assert observation.image_failed
    assert missing in observation.detail
    await stand.engine.stop(container, 1)
    await stand.until_over(container)
    await stand.engine.remove(container)


@only(WITH_IMAGES)
async def test_an_image_that_is_there_is_not_fetched(stand: Stand) -> None:
    host, image = stand.engine.hosts()[0], stand.image or ""
    await stand.engine.pull(host, image, lambda _: None)
    assert not await stand.engine.pull(host, image, lambda _: None)
    assert await stand.engine.has_image(host, image)


@only(REAL)
async def test_nothing_of_one_bot_is_there_for_the_next(stand: Stand) -> None:
    spec = stand.spec("write", environment={"BOTPOOL_SLOT_TOKEN": "token-of-a", "OF_A": "1"})
    container = Container(spec.host, await stand.engine.create(spec))
    await stand.engine.start(container, {"BOT_DATA": "data-of-a"})
    await stand.until_said(container, "OF_A=1")
    await stand.engine.stop(container, 5)
    await stand.until_over(container)

    environment = {"TEST_BEHAVIOUR": "write", "BOTPOOL_SLOT_TOKEN": "token-of-b", "OF_B": "1"}
    again = stand.spec(name=spec.name, environment=environment)
    await stand.engine.create(again)
    await stand.engine.start(container, {"BOT_DATA": "data-of-b"})
    await stand.until_said(container, "OF_B=1")
    said = "\n".join(await stand.engine.logs(container, 100))
    assert "found left-behind" not in said
    assert "of-a" not in said
    assert "OF_A" not in said
    await stand.engine.stop(container, 5)


@only(["process"])
async def test_a_process_gets_a_clean_environment_and_its_bot(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOTPOOL_DATABASE_URL", "postgresql://secret")
    container = await stand.created("write", environment={"LAST": "1"})
    await stand.engine.start(container, {"BOT_DATA": "abc"})
    await stand.until_said(container, "BOT_DATA=abc")
    names = {line.partition("=")[0] for line in await stand.engine.logs(container, 100)}
    assert "BOTPOOL_DATABASE_URL" not in names
    await stand.engine.stop(container, 5)


@only(["process"])
async def test_children_that_do_not_listen_are_gone_with_their_container(stand: Stand) -> None:
    container = await stand.started("children")
    await stand.engine.stop(container, 0.2)
    assert await stand.state(container) is ContainerState.EXITED
    assert processes_of(container) == []


def processes_of(container: Container) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("POOL_SLOT_UUID") == container.ref:
                found.append(process)
        except psutil.Error:
            continue
    return [process for process in found if process.status() != psutil.STATUS_ZOMBIE]
