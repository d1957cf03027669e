"""What goes wrong on purpose. The seed decides when, to what, and for how long."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from botpool.errors import BotpoolError
from botpool.reconciler import Checkpoint
from botpool.simulation.replicas import Unreachable
from botpool.states import SlotStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from botpool.engines.base import Container
    from botpool.simulation.replicas import Replica
    from botpool.simulation.world import World

_CALLS = ("pull", "create", "start", "observe", "stop", "remove", "logs", "list")


class Troubles:
    """Makes trouble until it is told to stop."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._ceased = False
        self._tasks: list[asyncio.Task[None]] = []
        self._armed: dict[str, str] = {}
        """What happens to the first replica that reaches each checkpoint or call."""
        self._checkpoints: list[Checkpoint] = []
        self._random = self._chance("choices")

    def _chance(self, name: str) -> random.Random:
        return random.Random(f"{self._world.seed}/{name}")  # noqa: S311 - repeatable

    def begin(self) -> None:
        """Start the troubles of the profile."""
        actions: dict[str, Callable[[random.Random], None]] = {
            "kill": self._kill,
            "kill at a point": self._kill_at_point,
            "kill at the engine": lambda chance: self._arm_call(chance, "kill"),
            "pause": self._pause,
            "pause at a point": self._pause_at_point,
            "pause at the engine": lambda chance: self._arm_call(chance, "pause"),
            "stop": self._stop,
            "cut": self._cut,
            "host away": self._host_away,
            "host hangs": self._host_hangs,
            "host loses power": self._host_loses_power,
            "host loses its network": self._host_loses_network,
            "container lost": self._container_lost,
            "container exits": self._container_exits,
            "container breaks": self._container_breaks,
            "container ruined": self._container_ruined,
            "registry away": self._registry_away,
            "image lost": self._image_lost,
            "storm": self._storm,
            "clock forward": self._clock_forward,
            "clock back": self._clock_back,
            "drain": self._drain,
            "retry": self._retry,
        }
        for name, seconds in self._world.profile.troubles.items():
            self._tasks.append(
                self._world.process.spawn(self._again_and_again(name, seconds, actions[name]))
            )

    def cease(self) -> None:
        """Stop all trouble, and undo what can be undone."""
        self._ceased = True
        self._armed.clear()
        for task in self._tasks:
            task.cancel()
        world = self._world
        world.engine.faults = replace(
            world.profile.calm,
            start_fails=0.0,
            pull_fails=0.0,
            unavailable=0.0,
            reply_lost=0.0,
            hangs=0.0,
            lies=0.0,
        )
        for host in world.engine.hosts():
            world.engine.bring_back(host)
        world.engine.registry_away = False
        world.cut_off.clear()
        for one in world.replicas:
            one.calm()

    async def _again_and_again(
        self, name: str, seconds: float, action: Callable[[random.Random], None]
    ) -> None:
        chance = self._chance(name)
        while True:
            await asyncio.sleep(chance.expovariate(1 / seconds))
            action(chance)

    # To replicas

    def at(self, replica: Replica, where: Checkpoint | str) -> None:
        """Do to a replica what is armed for the first one that comes here."""
        match self._armed.pop(where, None):
            case "kill":
                replica.kill(f"at {where}")
            case "pause":
                replica.pause(self._random.uniform(16, 200), f"at {where}")

    def _somebody(self, chance: random.Random) -> Replica | None:
        alive = [replica for replica in self._world.replicas if replica.alive]
        return chance.choice(alive) if alive else None

    def _kill(self, chance: random.Random) -> None:
        if replica := self._somebody(chance):
            replica.kill("anywhere")

    def _kill_at_point(self, chance: random.Random) -> None:
        """Kill the next replica that reaches a checkpoint: each checkpoint in its turn."""
        if not self._checkpoints:
            self._checkpoints = chance.sample([*Checkpoint], len(Checkpoint))
        self._armed[self._checkpoints.pop()] = "kill"

    def _pause_at_point(self, chance: random.Random) -> None:
        self._armed[chance.choice([*Checkpoint])] = "pause"

    def _arm_call(self, chance: random.Random, what: str) -> None:
        self._armed[f"{chance.choice(('before', 'after'))} {chance.choice(_CALLS)}"] = what

    def _pause(self, chance: random.Random) -> None:
        if replica := self._somebody(chance):
            replica.pause(chance.choice((chance.uniform(1, 15), chance.uniform(16, 240))))

    def _stop(self, chance: random.Random) -> None:
        if replica := self._somebody(chance):
            replica.stop()

    def _cut(self, chance: random.Random) -> None:
        if replica := self._somebody(chance):
            replica.lose_connection(chance.choice((chance.uniform(0, 2), chance.uniform(2, 90))))

    # To hosts and containers

    def _host(self, chance: random.Random) -> str:
        return chance.choice([*self._world.engine.hosts()])

    def _back_later(self, host: str, seconds: float) -> None:
        world = self._world

        def back() -> None:
            if not self._ceased:
                world.journal.note(f"  {host} is back")
                world.engine.bring_back(host)
                world.cut_off.discard(host)

        asyncio.get_running_loop().call_later(seconds, back)

    def _host_away(self, chance: random.Random) -> None:
        host, seconds = self._host(chance), chance.uniform(5, 400)
        self._world.journal.did("host away", f"{host} for {seconds:.0f} s")
        self._world.engine.take_away(host)
        self._back_later(host, seconds)

    def _host_hangs(self, chance: random.Random) -> None:
        host, seconds = self._host(chance), chance.uniform(5, 300)
        self._world.journal.did("host hangs", f"{host} for {seconds:.0f} s")
        self._world.engine.hang(host)
        self._back_later(host, seconds)

    def _host_loses_power(self, chance: random.Random) -> None:
        host, seconds = self._host(chance), chance.uniform(30, 400)
        self._world.journal.did("host loses power", f"{host} for {seconds:.0f} s")
        self._world.engine.take_away(host)
        for container in self._world.engine.running():
            if container.host == host:
                self._world.engine.exit(container, 137)
        self._back_later(host, seconds)

    def _host_loses_network(self, chance: random.Random) -> None:
        """Cut a host off: botpool can't reach it, nor its bots botpool. The bots run on."""
        host, seconds = self._host(chance), chance.uniform(30, 500)
        self._world.journal.did("host loses its network", f"{host} for {seconds:.0f} s")
        self._world.engine.take_away(host)
        self._world.cut_off.add(host)
        self._back_later(host, seconds)

    def _container(self, chance: random.Random, among: Sequence[Container]) -> Container | None:
        return chance.choice(among) if among else None

    def _container_lost(self, chance: random.Random) -> None:
        if container := self._container(chance, self._world.engine.containers()):
            self._world.journal.did("container lost", container.ref)
            self._world.engine.lose(container)

    def _container_exits(self, chance: random.Random) -> None:
        if container := self._container(chance, self._world.engine.running()):
            self._world.journal.did("container exits", container.ref)
            self._world.engine.exit(container, chance.choice((0, 1, 137)))

    def _container_breaks(self, chance: random.Random) -> None:
        if container := self._container(chance, self._world.engine.running()):
            self._world.journal.did("container breaks", container.ref)
            self._world.engine.fail(container)

    def _container_ruined(self, chance: random.Random) -> None:
        """Make every start of a container fail from now on."""
        if container := self._container(chance, self._world.engine.containers()):
            self._world.journal.did("container ruined", container.ref)
            self._world.engine.ruin(container)

    def _registry_away(self, chance: random.Random) -> None:
        world, seconds = self._world, chance.uniform(30, 900)
        world.journal.did("registry away", f"for {seconds:.0f} s")
        world.engine.registry_away = True

        def back() -> None:
            if not self._ceased:
                world.journal.note("  the registry is back")
                world.engine.registry_away = False

        asyncio.get_running_loop().call_later(seconds, back)

    def _image_lost(self, chance: random.Random) -> None:
        world = self._world
        images = sorted({image for image in world.images() if image})
        if images:
            host, image = self._host(chance), chance.choice(images)
            world.journal.did("image lost", f"{image} on {host}")
            world.engine.lose_image(host, image)

    def _storm(self, chance: random.Random) -> None:
        world, seconds = self._world, chance.uniform(30, 400)
        world.journal.did("storm", f"for {seconds:.0f} s")
        world.engine.faults = world.profile.storm

        def over() -> None:
            if not self._ceased:
                world.journal.note("  the storm is over")
                world.engine.faults = world.profile.calm

        asyncio.get_running_loop().call_later(seconds, over)

    # To the clock, and what an operator does

    def _clock_forward(self, chance: random.Random) -> None:
        seconds = chance.choice((chance.uniform(0.1, 10), chance.uniform(10, 300)))
        self._world.journal.did("clock forward", f"by {seconds:.1f} s")
        self._world.move_clock(timedelta(seconds=seconds))

    def _clock_back(self, chance: random.Random) -> None:
        seconds = chance.uniform(0.1, 10)
        self._world.journal.did("clock back", f"by {seconds:.1f} s")
        self._world.move_clock(timedelta(seconds=-seconds))

    def _drain(self, chance: random.Random) -> None:
        self._world.process.spawn(self._to_slot(chance, "drain", None))

    def _retry(self, chance: random.Random) -> None:
        self._world.process.spawn(self._to_slot(chance, "retry", SlotStatus.ERROR))

    async def _to_slot(self, chance: random.Random, what: str, status: SlotStatus | None) -> None:
        if not (replica := self._somebody(chance)):
            return
        try:
            slots = await replica.ask(lambda asked: asked.store.slots.all())
            found = [slot for slot in slots if status in {None, slot.status}]
            if not found:
                return
            slot = chance.choice(found)
            self._world.journal.did(what, slot.slot_name)
            if what == "drain":
                await replica.ask(lambda asked: asked.pool.slots.drain(slot.id))
            else:
                await replica.ask(lambda asked: asked.pool.slots.retry(slot.id))
        except (Unreachable, BotpoolError) as error:
            self._world.journal.note(f"  {what} failed: {error}")
