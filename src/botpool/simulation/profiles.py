"""What a seed decides: the engine, the size of everything, and how often what goes wrong."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from botpool.engines.base import Traits
from botpool.engines.simulated import Faults
from botpool.settings import Settings
from botpool.states import Platform

if TYPE_CHECKING:
    from collections.abc import Sequence

TROUBLES: dict[str, float] = {
    "kill": 900,
    "kill at a point": 240,
    "kill at the engine": 420,
    "pause": 900,
    "pause at a point": 420,
    "pause at the engine": 420,
    "stop": 1200,
    "cut": 600,
    "host away": 1800,
    "host hangs": 2400,
    "host loses power": 3000,
    "host loses its network": 2400,
    "container lost": 900,
    "container exits": 900,
    "container breaks": 1500,
    "container ruined": 2400,
    "registry away": 3600,
    "image lost": 1800,
    "storm": 1800,
    "clock forward": 2400,
    "clock back": 2400,
    "drain": 1800,
    "retry": 1800,
}
"""About how many seconds pass between two troubles of a kind."""

_OFTEN_SECONDS = 60.0

MOST_LAUNCHES = 3
"""The most launches that a request asks for."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What one run is made of. `slots` is a platform's maximum."""

    engine: str
    traits: Traits
    hosts: int
    replicas: int
    slots: int
    bots: int
    """How many are created in an hour."""
    longest_stay: float
    image: str | None
    calm: Faults
    storm: Faults
    troubles: dict[str, float]
    settings: Settings = field(repr=False)

    @property
    def lies(self) -> bool:
        """Whether the engine sometimes says something wrong."""
        return self.calm.lies > 0 or self.storm.lies > 0

    def __str__(self) -> str:
        """One line."""
        troubles = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in self.troubles.items())
        settings = self.settings
        return (
            f"{self.engine}, {self.hosts} hosts, {self.replicas} replicas, {self.slots} slots each,"
            f" {settings.max_slots_per_host or 'any number'} a host, {settings.warm_slots} warm,"
            f" pull ahead {settings.pull_ahead}, {self.bots} bots an hour;"
            f" poll {settings.poll_interval_ms} ms, deployment limit {settings.deployment_limit_ms}"
            f" ms, heartbeat {settings.heartbeat_interval_ms} ms, lag {self.calm.lag:.0f} s;"
            f" {troubles}"
        )


def profile_of(
    seed: int,
    *,
    bots: int | None = None,
    slots: int | None = None,
    hours: float = 1.0,
    only: Sequence[str] = (),
) -> Profile:
    """The profile of a seed, with this many bots and slots in all, if given.

    With `only`, it has only these troubles, and often.
    """
    chance = random.Random(f"{seed}/profile")  # noqa: S311 - repeatable
    engine = chance.choice(("process", "docker", "docker", "coolify", "coolify", "liar"))
    traits, calm = _engine(engine, chance)
    per_platform = chance.randint(2, 5) if slots is None else -(-slots // len(Platform))
    hourly = chance.randint(40, 90) if bots is None else -(-bots // max(1, round(hours)))
    image = None if engine == "process" else "bot:1"
    return Profile(
        engine=engine,
        traits=traits,
        hosts=1 if engine == "process" else chance.randint(1, 3 if slots is None else 12),
        replicas=chance.randint(1, 4),
        slots=per_platform,
        bots=hourly,
        longest_stay=chance.choice((300.0, 600.0, 1200.0)),
        image=image,
        calm=calm,
        storm=_storm(calm, engine),
        troubles=dict.fromkeys(only, _OFTEN_SECONDS) or _troubles(chance),
        settings=_settings(chance, per_platform, image).model_copy(
            update=_since_then(seed) if slots is None else {}
        ),
    )


def _since_then(seed: int) -> dict[str, Any]:
    """Settings that came later, by chances of their own, so that old seeds stay what they were.

    A host may often have fewer slots than the pools would like.
    """
    chance = random.Random(f"{seed}/room")  # noqa: S311 - repeatable
    return {
        "max_slots_per_host": chance.choice((None, None, chance.randint(1, 8))),
        "pull_ahead": chance.choice((True, True, False)),
        "warm_slots": chance.choice(("0", "1", "google-meet=2,zoom=1")),
    }


def _troubles(chance: random.Random) -> dict[str, float]:
    return {
        name: seconds * chance.choice((0.25, 0.5, 1.0, 2.0))
        for name, seconds in TROUBLES.items()
        if chance.random() < 2 / 3
    }


def _settings(chance: random.Random, slots: int, image: str | None) -> Settings:
    values: dict[str, Any] = {
        "engine": "simulated",
        "max_pool_size": slots,
        "poll_interval_ms": chance.choice((10_000, 20_000, 30_000)),
        "sync_interval_ms": chance.choice((15_000, 30_000, 60_000)),
        "heartbeat_interval_ms": chance.choice((10_000, 20_000, 30_000)),
        "deployment_limit_ms": chance.choice((480_000, 900_000, 1_500_000)),
        "max_concurrent_deployments": chance.choice((1, 2, 4)),
        "max_launch_attempts": chance.choice((1, 2, 2, 3)),
        "relaunch_wait_ms": chance.choice((0, 5_000, 60_000)),
        "public_url": "http://botpool.test",
        "image_google_meet": image,
        "image_microsoft_teams": image and "teams:1",
        "image_zoom": image and "zoom:1",
    }
    return Settings(**values)


def _engine(name: str, chance: random.Random) -> tuple[Traits, Faults]:
    """The engine's traits, and its faults on a good day."""
    often = {"unavailable": 0.01, "reply_lost": 0.01, "hangs": 0.002, "start_fails": 0.02}
    match name:
        case "process":
            traits = Traits()
            faults = Faults(call=(0, 0.02), start=(0.1, 2), stop=(0.1, 12), start_fails=0.02)
        case "coolify":
            traits = Traits(
                lags=True,
                reusable=True,
                environment_at_start=chance.random() < 2 / 3,
                pulls_at_start=True,
                keeps_logs=False,
                patience_seconds=900.0,
            )
            faults = Faults(
                call=(0.1, 2), pull=(60, 400), start=(10, 60), stop=(1, 12),
                lag=chance.choice((0.0, 5.0, 15.0)), **often,
            )  # fmt: skip
        case _:
            traits = Traits(environment_at_start=False)
            faults = Faults(
                call=(0.01, 0.5), pull=(20, 180), start=(0.5, 5), stop=(0.2, 12),
                pull_fails=0.05, lies=0.02 if name == "liar" else 0.0, **often,
            )  # fmt: skip
    return traits, faults


def _storm(calm: Faults, engine: str) -> Faults:
    """The engine's faults on a bad day."""
    return Faults(
        call=(calm.call[0], calm.call[1] * 10 + 1),
        pull=(calm.pull[0], calm.pull[1] * 2),
        start=(calm.start[0], calm.start[1] * 4),
        stop=(calm.stop[0], calm.stop[1] * 2),
        lag=calm.lag,
        start_fails=0.2,
        pull_fails=0.2 if calm.pull_fails else 0.0,
        unavailable=0.15,
        reply_lost=0.15,
        hangs=0.02,
        lies=0.1 if engine == "liar" else 0.0,
    )
