"""What is measured beside the pool: calls of engines, and how late the event loop is."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

import pytest

from botpool.engines.base import Container, ContainerSpec, Engine
from botpool.engines.measured import MeasuredEngine
from botpool.engines.simulated import SimulatedEngine
from botpool.errors import ContainerMissing, EngineUnavailable
from botpool.states import Platform
from botpool.tasks.lag import EventLoopLag

if TYPE_CHECKING:
    from collections.abc import Callable

CONTAINER = Container("a", "x")
SPEC = ContainerSpec(
    host="a",
    name="x",
    slot_id=1,
    slot_name="pool-zoom-001",
    platform=Platform.ZOOM,
    image=None,
    environment={},
)
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "open_hosts": (),
    "pull": ("a", "bot:1", print),
    "has_image": ("a", "bot:1"),
    "create": (SPEC,),
    "start": (CONTAINER, {}),
    "observe": (CONTAINER,),
    "stop": (CONTAINER, 1.0),
    "remove": (CONTAINER,),
    "describe": (CONTAINER, "busy"),
    "logs": (CONTAINER, 10),
    "list": ("a",),
}


class Inside:
    """An engine that answers every call as it is told to."""

    name = "inside"
    traits = "its traits"

    def __init__(self, answer: Callable[[], Any]) -> None:
        self.answer = answer
        self.called: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.closed = False

    def hosts(self) -> list[str]:
        return ["a"]

    async def close(self) -> None:
        self.closed = True

    def __getattr__(self, call: str) -> Any:
        async def answer(*args: Any, **options: Any) -> Any:
            self.called.append((call, args, options))
            return self.answer()

        return answer


def measured(answer: Callable[[], Any]) -> tuple[Inside, Any, list[tuple[str, str, str, float]]]:
    told: list[tuple[str, str, str, float]] = []
    ticks = iter(range(1000))
    inside: Any = Inside(answer)
    engine = MeasuredEngine(inside, lambda *call: told.append(call), lambda: float(next(ticks)))
    return inside, engine, told


def test_it_has_every_call_of_an_engine_with_its_arguments() -> None:
    """A call that an engine gets later has to be measured, too."""
    calls = {
        name: method
        for name, method in vars(Engine).items()
        if inspect.iscoroutinefunction(method) and name != "close"
    }
    assert set(calls) == set(ARGUMENTS)
    for name, method in calls.items():
        ours = inspect.signature(getattr(MeasuredEngine, name))
        assert ours.parameters.keys() == inspect.signature(method).parameters.keys()
    engine: Engine = MeasuredEngine(SimulatedEngine(), lambda *_: None)
    assert engine.hosts() == ("simulated",)


@pytest.mark.parametrize("call", ARGUMENTS)
async def test_a_call_is_passed_on_and_told_once(call: str) -> None:
    answer = object()
    inside, engine, told = measured(lambda: answer)
    found = await getattr(engine, call)(*ARGUMENTS[call])
    assert found is answer or call in {"stop", "remove", "describe"}
    ((passed, arguments, _),) = inside.called
    assert passed == call
    assert arguments[: len(ARGUMENTS[call])] == ARGUMENTS[call]
    assert told == [("inside", call, "ok", 1.0)]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ContainerMissing("gone"), "refused"),
        (EngineUnavailable("away"), "unavailable"),
        (asyncio.CancelledError(), "cancelled"),
        (ZeroDivisionError(), "error"),
    ],
)
async def test_what_went_wrong_is_told_and_raised(error: BaseException, outcome: str) -> None:
    def fail() -> None:
        raise error

    _, engine, told = measured(fail)
    with pytest.raises(type(error)):
        await engine.observe(CONTAINER)
    assert told == [("inside", "observe", outcome, 1.0)]


async def test_the_rest_is_the_engine_s_own() -> None:
    inside, engine, told = measured(lambda: None)
    await engine.start(CONTAINER, {}, stopped=True)
    assert inside.called[0][2] == {"stopped": True, "avoid_node": None}
    assert (engine.name, engine.traits, engine.hosts()) == ("inside", "its traits", ["a"])
    await engine.close()
    assert inside.closed
    assert len(told) == 1


def test_the_lag_is_the_worst_of_the_last_minute() -> None:
    lag = EventLoopLag()
    assert lag.worst() == 0
    for now, late in ((0, 0.1), (10, 0.5), (20, 0.2), (30, 0.3)):
        lag.note(now, late)
    assert lag.worst() == 0.5
    lag.note(70, 0.0)
    assert lag.worst() == 0.3
    lag.note(200, 0.0)
    assert lag.worst() == 0.0
