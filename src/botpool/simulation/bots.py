"""What runs in the containers: bots that claim, send heartbeats, report their status, and end.

Some don't: they crash, hang, exit without reporting, stay when told to leave, or come back.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from botpool.engines.base import Container, ContainerState
from botpool.errors import SlotNotFound, StaleLease, Unauthorized
from botpool.simulation.replicas import Unreachable
from botpool.states import BotStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from botpool.models.bots import Bot
    from botpool.models.slots import Slot
    from botpool.simulation.journal import Assignment
    from botpool.simulation.replicas import Replica
    from botpool.simulation.world import World

_Result = TypeVar("_Result")

_OVER = (StaleLease, SlotNotFound, Unauthorized)
_BEHAVIOURS = {
    "normal": 60,
    "crash": 6,
    "exit": 4,
    "hang": 5,
    "stay": 5,
    "fail": 4,
    "come back": 4,
}
_MUTE = 0.01
"""The share of containers that run but never call botpool."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a bot does, in seconds after its claim. It is part of the request, in its config."""

    in_waiting_room: float
    in_call: float
    leaving: float
    done: float
    behaviour: str
    at: float
    """When it misbehaves."""
    lingers: bool
    """Whether its container runs on after the bot is done."""


def new_plan(chance: random.Random, longest_stay: float) -> Plan:
    """A plan for one bot."""
    in_waiting_room = chance.uniform(0.1, 20)
    in_call = in_waiting_room + chance.choice((chance.uniform(0.1, 30), chance.uniform(30, 240)))
    leaving = in_call + chance.uniform(1, longest_stay)
    return Plan(
        in_waiting_room=in_waiting_room,
        in_call=in_call,
        leaving=leaving,
        done=leaving + chance.uniform(0.1, 10),
        behaviour=chance.choices([*_BEHAVIOURS], [*_BEHAVIOURS.values()])[0],
        at=chance.uniform(0, leaving),
        lingers=chance.random() < 1 / 2,
    )


class Bots:
    """Simulates a bot in every container that is started."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.serving: dict[Assignment, list[_Run]] = {}
        """The runs that have claimed each assignment."""

    def started(self, container: Container, environment: Mapping[str, str]) -> None:
        """Simulate a bot in a container, once the container runs."""
        self._world.process.spawn(_Run(self._world, self, container, environment).live())


class _Gone(Exception):
    """The container does not run any more."""


class _Run:
    """One run of one container, from its start to its end."""

    def __init__(
        self, world: World, bots: Bots, container: Container, environment: Mapping[str, str]
    ) -> None:
        self._world = world
        self._bots = bots
        self.container = container
        self._environment = environment
        self._number = world.engine.starts(container)
        self.heard_at = world.health.in_all
        """When it last got an answer, counted only while a replica could answer."""
        self._random = random.Random(  # noqa: S311 - repeatable
            f"{world.seed}/{container.ref}/{self._number}"
        )

    def __str__(self) -> str:
        return f"{self.container.ref} (start {self._number})"

    @property
    def lives(self) -> bool:
        """Whether it runs now."""
        engine = self._world.engine
        return (
            engine.state(self.container) is ContainerState.RUNNING
            and engine.starts(self.container) == self._number
        )

    async def live(self) -> None:
        """Act as a bot until the container ends."""
        try:
            await self._until_running()
            if self._random.random() < _MUTE:
                self._world.journal.did("mute", str(self))
                return
            if await self._be_a_bot():
                await self._sleep(self._random.uniform(0.5, 10))
                await self._be_a_bot(well=True)
        except _Gone:
            return

    async def _until_running(self) -> None:
        engine = self._world.engine
        while not self.lives:
            change = engine.next_change(self.container)
            if change is None or engine.starts(self.container) != self._number:
                raise _Gone
            await asyncio.sleep(max(change - asyncio.get_running_loop().time(), 0.001))

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))
        if not self.lives:
            raise _Gone

    async def _be_a_bot(self, *, well: bool = False) -> bool:
        """Act as a bot from its claim to its end. Returns whether it comes back, behaving well."""
        try:
            slot, bot = await self._claim()
        except _OVER:
            self._leave(lingers=self._random.random() < 1 / 2, code=0)
            return False
        began = asyncio.get_running_loop().time()
        plan = Plan(**bot.config["plan"])
        if well:
            plan = replace(plan, behaviour="normal")
        try:
            return await self._follow(slot, plan, began)
        except _OVER:
            self._leave(lingers=plan.lingers, code=0)
            return False

    async def _follow(self, slot: Slot, plan: Plan, began: float) -> bool:
        loop = asyncio.get_running_loop()
        steps = [
            (began + plan.in_waiting_room, BotStatus.IN_WAITING_ROOM),
            (began + plan.in_call, BotStatus.IN_CALL),
            (began + plan.leaving, BotStatus.LEAVING),
            (began + plan.done, BotStatus.DONE),
        ]
        beat = began
        fault = began + plan.at if plan.behaviour not in {"normal", "stay"} else float("inf")
        told = False
        while steps:
            due = min(beat, fault, steps[0][0])
            await self._sleep(due - loop.time())
            if due == fault:
                return await self._misbehave(slot, plan.behaviour)
            if due == steps[0][0]:
                await self._say(slot, steps.pop(0)[1])
                continue
            beat = loop.time() + self._world.settings.heartbeat_interval_ms / 1000
            if await self._heartbeat(slot) and not told and plan.behaviour != "stay":
                told = True
                steps = [(loop.time() + self._random.uniform(0.1, 10), BotStatus.DONE)]
        self._leave(lingers=plan.lingers, code=0)
        return False

    async def _misbehave(self, slot: Slot, behaviour: str) -> bool:
        self._world.journal.did(behaviour, f"{self} of lease {slot.lease}")
        match behaviour:
            case "crash":
                self._leave(lingers=False, code=1)
            case "exit":
                self._leave(lingers=False, code=0)
            case "fail":
                await self._say(slot, BotStatus.FATAL)
                self._leave(lingers=True, code=0)
            case "come back":
                return True
        return False  # it hangs

    def _leave(self, *, lingers: bool, code: int) -> None:
        if self.lives and not lingers:
            self._world.engine.exit(self.container, code)

    # What it asks for

    async def _claim(self) -> tuple[Slot, Bot]:
        token = self._environment["BOTPOOL_SLOT_TOKEN"]

        async def claim(replica: Replica) -> tuple[Slot, Bot]:
            slot = await _slot(replica, token)
            return slot, await replica.pool.assignments.claim(slot)

        asked = self._world.journal.transitions
        slot, bot = await self._ask_until_answered(claim)
        assignment = (slot.id, slot.lease)
        checks = self._world.checks
        checks.answered("a claim", assignment, asked)
        checks.claimed(self, assignment, bot, self._told_at_start())
        others = [run for run in self._bots.serving.get(assignment, []) if run is not self]
        for run in others:
            if run.lives:
                self._world.broken("one container serves a lease", f"{run} and {self} do")
        self._bots.serving[assignment] = [*others, self]
        return slot, bot

    def _told_at_start(self) -> tuple[int | None, int | None] | None:
        """The bot and the lease in the container's environment; both `None` for no bot."""
        if (data := self._environment.get("BOT_DATA")) is None:
            return None
        told = json.loads(base64.urlsafe_b64decode(data))
        return told.get("botId"), told.get("lease")

    async def _heartbeat(self, slot: Slot) -> bool:
        """Send a heartbeat. Returns whether the bot should leave. No answer is ignored."""
        token = self._environment["BOTPOOL_SLOT_TOKEN"]

        async def beat(replica: Replica) -> bool:
            found = await replica.pool.assignments.heartbeat(
                (await _slot(replica, token)).id, slot.lease
            )
            return found.bot_status is BotStatus.LEAVING

        asked = self._world.journal.transitions
        try:
            leave = await self._ask(beat)
        except Unreachable:
            return False
        self._world.checks.answered("a heartbeat", (slot.id, slot.lease), asked)
        return leave

    async def _say(self, slot: Slot, status: BotStatus) -> None:
        token = self._environment["BOTPOOL_SLOT_TOKEN"]

        async def say(replica: Replica) -> None:
            own = await _slot(replica, token)
            await replica.pool.assignments.advance(own.id, slot.lease, status, "the bot says so")

        await self._ask_until_answered(say)

    async def _ask_until_answered(
        self, request: Callable[[Replica], Coroutine[Any, Any, _Result]]
    ) -> _Result:
        while True:
            try:
                return await self._ask(request)
            except Unreachable:
                await self._sleep(self._random.uniform(0.5, 5))

    async def _ask(self, request: Callable[[Replica], Coroutine[Any, Any, _Result]]) -> _Result:
        if self.container.host in self._world.cut_off:
            raise Unreachable
        answer = await self._world.ask(self._random, request)
        self.heard_at = self._world.health.in_all
        if not self.lives:
            raise _Gone
        return answer


async def _slot(replica: Replica, token: str) -> Slot:
    """The slot that a token belongs to, as the API finds it."""
    slot = await replica.store.slots.of_token(token)
    if slot is None:
        raise Unauthorized
    return slot


def config_of(plan: Plan) -> dict[str, Any]:
    """The config of a request with this plan."""
    return {"plan": asdict(plan)}
