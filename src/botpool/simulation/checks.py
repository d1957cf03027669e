"""What must hold, checked from outside: in the database, on the engine, and by the bots."""

from __future__ import annotations

from collections import Counter
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING

from botpool.engines.base import Container
from botpool.models.queue import QueuePage
from botpool.reconciler import Checkpoint
from botpool.simulation.profiles import MOST_LAUNCHES
from botpool.states import BotStatus, FailureCause, SlotStatus
from botpool.store.invariants import broken_invariants

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import asyncpg

    from botpool.models.bots import Bot
    from botpool.models.slots import Slot
    from botpool.settings import Settings
    from botpool.simulation.journal import Assignment
    from botpool.simulation.replicas import Replica
    from botpool.simulation.world import World

_CONFIRMED_AFTER = frozenset(f"at {point}" for point in Checkpoint)
"""A replica that was paused here has to make sure that it still has the slot."""
_MOST_MINUTES_IDLE_AND_RUNNING = 5
_MOST_FAILED_LAUNCHES = 2
_SLACK_SECONDS = 900.0
_WHOLE_QUEUE = QueuePage(limit=1_000_000)


def longest_life(settings: Settings, longest_stay: float) -> float:
    """Within how many seconds in which botpool works every bot ends, whatever crashes.

    Each launch waits for a slot, and fails if it takes too long. In its call a bot stays as long as
    it plans to, and is ended if it is silent or was told to leave. The rest is slack for troubles:
    steps that hang, and reservations that expire.
    """
    launch = (
        settings.max_queue_timeout_ms + settings.deployment_limit_ms + settings.reservation_ttl_ms
    )
    leave = settings.leave_grace_ms + 2 * settings.recovery_interval_ms
    silence = settings.heartbeat_freshness_ms
    attempts = max(settings.max_launch_attempts, MOST_LAUNCHES)
    call = attempts * 2 * (longest_stay + 300)  # each container may come back once
    in_all_ms = attempts * (launch + silence) + silence + leave
    return in_all_ms / 1000 + call + _SLACK_SECONDS


class Checks:
    """Reports every broken promise to the world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._pulls: dict[tuple[str, str], list[tuple[Replica, int, int]]] = {}
        self._idle_and_running: Counter[Container] = Counter()
        self._born: dict[int, float] = {}
        """For how long botpool had worked, of each live bot, when it was created."""
        self._queued: dict[str, dict[int, datetime]] = {}
        """The bots that wait, of each platform, and until when."""
        self._beside: set[tuple[int, int]] = set()
        """Bots that waited at the last check beside a slot that would do."""
        self._well_and_unhealthy: set[str] = set()
        """Hosts that were unhealthy at the last check although a launch went well there."""
        self.made = 0
        """How often everything was checked."""

    # As it happens

    def answered(self, what: str, assignment: Assignment, asked: int) -> None:
        """Check the answer to a call for an assignment, made after `asked` transitions."""
        over = self._world.journal.over.get(assignment)
        if over is not None and over <= asked:
            self._world.broken(
                "nothing of an ended lease is answered",
                f"{what} of slot {assignment[0]}, lease {assignment[1]}",
            )

    def claimed(
        self,
        run: object,
        assignment: Assignment,
        bot: Bot,
        told: tuple[int | None, int | None] | None,
    ) -> None:
        """Check the bot that a container has claimed."""
        if self._world.journal.bots.get(assignment) != bot.id:
            self._world.broken("a claim is answered with the bot of its lease", str(run))
        if told is not None and told != (bot.id, assignment[1]):
            self._world.broken(
                "nothing of one bot reaches the next",
                f"{run} was started for bot {told[0]}, lease {told[1]}, and claims bot {bot.id},"
                f" lease {assignment[1]}",
            )

    @asynccontextmanager
    async def pulling(self, replica: Replica, key: tuple[str, str]) -> AsyncIterator[None]:
        """Check that only one replica pulls an image for the length of the block.

        Two may do so only if one of them was killed, paused or cut off, or if the clock jumped:
        then its reservation may have expired. A replica that was paused right before the call can't
        know.
        """
        jumps = self._world.jumps
        pulls = self._pulls.setdefault(key, [])
        known = {(pull.host, pull.image): pull for pull in await self._world.store.pulls.all()}
        if known[key].reserved_by != replica.replica_name:
            self._world.journal.did("late pull", f"of {key} by {replica.name}")
            yield
            return
        for other, disturbed, jumped in pulls:
            if other.disturbed == disturbed and jumped == jumps:
                self._world.broken(
                    "one pull of an image on a host at a time",
                    f"{other.name} and {replica.name}: {key}",
                )
        entry = (replica, replica.disturbed, jumps)
        pulls.append(entry)
        try:
            yield
        finally:
            pulls.remove(entry)

    async def starting(self, replica: Replica, container: Container) -> None:
        """Check that the replica has the slot, and that no other container of the slot runs.

        A replica that was paused right before the call can't know that another one took over.
        """
        engine = self._world.engine
        if container not in engine.containers():
            return
        slot_id = engine.slot_of(container)
        slot = await self._world.store.slots.find(slot_id)
        if slot is None or slot.reserved_by != replica.replica_name:
            self._world.journal.did("late start", f"of {container.ref} by {replica.name}")
            if replica.paused_at in _CONFIRMED_AFTER:
                self._world.broken(
                    "a replica that has lost a slot starts nothing in it",
                    f"{replica.name}: {container.ref}",
                )
            return
        await self._not_again_and_again(slot, container)
        others = self._running_of(slot_id) - {container}
        if others and self._can_tell():
            self._world.broken(
                "nothing is started before the last one of its slot is proved stopped",
                f"{container.ref} is, and {', '.join(other.ref for other in others)} runs",
            )

    async def _not_again_and_again(self, slot: Slot, container: Container) -> None:
        """Check that no bot is launched on a container that fails again and again.

        It had to be made anew when its slot was released: two launches in a row had failed on it,
        and another slot's launch on its host had gone well in the meantime. A launch that is over
        while it starts can't be judged: the last release is its own.
        """
        if (
            slot.failed_launches < _MOST_FAILED_LAUNCHES
            or slot.last_released_at is None
            or slot.last_released_at > slot.last_assigned_at
        ):
            return
        for other in await self._world.store.slots.of_host(slot.engine, container.host):
            if (
                other.id != slot.id
                and other.launched_at is not None
                and slot.failing_since is not None
                and slot.failing_since < other.launched_at < slot.last_released_at
            ):
                self._world.broken(
                    "a container that fails again and again is made anew",
                    f"{container.ref}: {slot.failed_launches} launches, {other.slot_name} ran",
                )

    def transition(self, row: asyncpg.Record) -> None:
        """Check that no newcomer overtakes, that nothing of an idle slot runs, and silences."""
        if row["machine"] == "bot":
            self._born.setdefault(row["bot_id"], self._world.health.in_all)
            self._in_order(row)
            return
        if row["details"].get("failureCause") == FailureCause.HEARTBEAT_LOST:
            self._silent((row["slot_id"], row["lease"]))
        if row["to_status"] == SlotStatus.IDLE and self._can_tell():
            self._idle(row)

    def _in_order(self, row: asyncpg.Record) -> None:
        """Check that a newcomer gets a slot only if no bot of its platform waits."""
        queue = self._queued.setdefault(row["platform"], {})
        if row["to_status"] == BotStatus.QUEUED:
            queue[row["bot_id"]] = datetime.fromisoformat(row["details"]["timeoutAt"])
            return
        queue.pop(row["bot_id"], None)
        if row["from_status"] is None and any(row["at"] < deadline for deadline in queue.values()):
            self._world.broken(
                "no newcomer overtakes", f"bot {row['bot_id']}, while {[*queue]} waited"
            )

    def _silent(self, assignment: Assignment) -> None:
        health = self._world.health
        least = self._world.settings.heartbeat_freshness_ms / 1000 / 2
        for run in self._world.bots.serving.get(assignment, []):
            if run.lives and health.in_all - run.heard_at < least:
                self._world.broken("no bot is silent while it can't be heard", str(run))

    def _idle(self, row: asyncpg.Record) -> None:
        running = self._running_of(row["slot_id"])
        if running:
            self._world.broken(
                "a slot is idle once its container is proved stopped",
                f"{row['slot_name']} is idle, and {', '.join(one.ref for one in running)} runs",
            )

    def _can_tell(self) -> bool:
        """Whether the engine's answers are proofs: always true, and never old."""
        faults = self._world.engine.faults
        return not self._world.profile.lies and faults.lag == 0

    def _running_of(self, slot_id: int) -> set[Container]:
        engine = self._world.engine
        return {one for one in engine.running() if engine.slot_of(one) == slot_id}

    # Every minute

    async def make(self, *, history: bool = True) -> None:
        """Check everything, with or without what all transitions tell together."""
        self.made += 1
        world = self._world
        for promise in await broken_invariants(world.database, history=history):
            world.broken("the database's invariants hold", promise)
        slots = await world.store.slots.all()
        self._check_hosts(slots)
        self._check_idle(slots)
        await self._check_queue()
        await self._check_free(slots)
        await self._check_health(slots)
        self._check_lives()

    def _check_hosts(self, slots: list[Slot]) -> None:
        under_way = Counter(
            slot.host
            for slot in slots
            if slot.status is SlotStatus.DEPLOYING and slot.deployment_started_at is not None
        )
        most = self._world.settings.max_concurrent_deployments
        for host, count in under_way.items():
            if count > most:
                self._world.broken(f"at most {most} deployments on a host", f"{count} on {host}")

    def _check_idle(self, slots: list[Slot]) -> None:
        """Check that a container that was started late in an idle slot is found and stopped."""
        engine = self._world.engine
        running = {*engine.running()}
        found = Counter[Container]()
        for slot in slots:
            container = Container(slot.host or "", slot.container_ref or "")
            if slot.status is SlotStatus.IDLE and container in running:
                found[container] = self._idle_and_running[container] + 1
                if self._world.troubled(container.host):
                    found[container] = 0
            if found[container] > _MOST_MINUTES_IDLE_AND_RUNNING:
                self._world.broken(
                    "nothing runs in an idle slot for long", f"{container.ref} in {slot.slot_name}"
                )
        self._idle_and_running = found

    async def _check_queue(self) -> None:
        world = self._world
        bound = 2 * world.settings.poll_interval_ms / 1000 + 10
        if world.health.seconds < bound:
            return
        now = world.database.now()
        for entry in await world.store.queue.page(_WHOLE_QUEUE):
            late = (now - entry.timeout_at).total_seconds()
            if late > bound:
                world.broken(
                    "no bot waits past its deadline", f"bot {entry.bot_id} by {late:.1f} s"
                )

    async def _check_free(self, slots: list[Slot]) -> None:
        """Check that no bot waits, from one check to the next, beside a slot that would do."""
        world = self._world
        now = world.database.now()
        waiting = await world.store.queue.page(_WHOLE_QUEUE)
        beside = {
            (entry.bot_id, slot.id)
            for slot in slots
            if slot.status is SlotStatus.IDLE and not slot.held and not slot.draining
            for entry in waiting
            if entry.platform is slot.platform and now < entry.timeout_at
        }
        if both := beside & self._beside:
            world.broken("nobody waits beside a free slot that would do", str(sorted(both)))
        self._beside = beside

    async def _check_health(self, slots: list[Slot]) -> None:
        """Check that a host is healthy on which a launch went well, as soon as that is noted."""
        world = self._world
        working = world.health.seconds > 2 * world.settings.recovery_interval_ms / 1000
        unhealthy = {
            host.host: host.unhealthy_since
            for host in await world.store.hosts.all()
            if host.unhealthy_since is not None
        }
        found = {
            slot.host
            for slot in slots
            if slot.host in unhealthy
            and slot.launched_at is not None
            and slot.launched_at > unhealthy[slot.host]
        }
        for host in found & self._well_and_unhealthy if working else ():
            world.broken("a host whose launches succeed is healthy", host)
        self._well_and_unhealthy = found

    def _check_lives(self) -> None:
        """Check that no bot lives for ever, if botpool works. One that is paused ends no bot."""
        world = self._world
        longest = longest_life(world.settings, world.profile.longest_stay)
        self._born = {bot_id: self._born[bot_id] for bot_id in world.journal.live}
        for bot_id, born in self._born.items():
            lived = world.health.in_all - born
            if lived > longest:
                world.broken(
                    f"every bot ends within {longest:.0f} s in which botpool works",
                    f"bot {bot_id} lives {lived:.0f}",
                )

    # At the end

    async def unrest(self) -> list[str]:
        """Everything that is not at rest, although nothing goes wrong and no bot is created."""
        world, engine = self._world, self._world.engine
        slots = await world.store.slots.all()
        owned = {Container(slot.host or "", slot.container_ref or "") for slot in slots}
        waiting = await world.store.queue.page(_WHOLE_QUEUE)
        pulls = await world.store.pulls.all()
        return [
            *(f"bot {bot_id} has not ended" for bot_id in world.journal.live),
            *(f"bot {entry.bot_id} waits" for entry in waiting),
            *(f"{s.slot_name} is {s.status}" for s in slots if s.status is not SlotStatus.IDLE),
            *(
                f"{slot.slot_name} is reserved by {slot.reserved_by}"
                for slot in slots
                if slot.reserved_until is not None and slot.reserved_until > slot.read_at
            ),
            *(f"{container.ref} runs" for container in engine.running()),
            *(f"{one.ref} belongs to no slot" for one in engine.containers() if one not in owned),
            *(
                f"{pull.image} is being pulled to {pull.host}"
                for pull in pulls
                if pull.status == "pulling"
            ),
        ]
