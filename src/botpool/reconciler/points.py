"""Where a reconciler can be killed.

Between any two things that it does, in the database or at an engine, stands one of these. Whatever
it was killed at, another reconciler goes on from what the database and the engine say. Tests walk
all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum


class Point(StrEnum):
    """A place between two steps, named after what was done last."""

    DEPLOY_TAKEN = "deploy: taken"
    DEPLOY_PLACED = "deploy: placed on a host"
    PULL_TAKEN = "pull: taken"
    PULL_DONE = "pull: image fetched"
    PULL_RECORDED = "pull: recorded"
    DEPLOY_ADMITTED = "deploy: let onto the host"
    CREATE_TOKEN = "create: token recorded"  # noqa: S105 - a name
    CREATE_DONE = "create: container made"
    CREATE_RECORDED = "create: recorded"
    START_TOKEN = "start: token recorded"  # noqa: S105 - a name
    START_DONE = "start: called"
    START_SEEN = "start: looked at"
    DEPLOY_RUNNING = "deploy: running"
    RELEASE_TAKEN = "release: taken"
    RELEASE_STOPPED = "release: stop called"
    RELEASE_PROVED = "release: proved stopped"
    RELEASE_LOGGED = "release: logs kept"
    RELEASE_CLEAN = "release: clean"
    RELEASE_FREED = "release: freed"


Reached = Callable[[Point], None]


def go_on(point: Point) -> None:
    """What a reconciler does at a point when nobody watches it: nothing."""
