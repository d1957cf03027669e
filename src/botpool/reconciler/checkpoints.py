"""Where a reconciler can be killed.

There is a checkpoint between any two things that it does in the database or on an engine. Wherever
it was killed, another reconciler goes on from what the database and the engine say. Tests kill it
at every checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum


class Checkpoint(StrEnum):
    """A place between two steps, named after the step before it."""

    DEPLOY_TAKEN = "deploy: taken"
    PULL_TAKEN = "pull: taken"
    PULL_DONE = "pull: image fetched"
    PULL_RECORDED = "pull: recorded"
    DEPLOY_ADMITTED = "deploy: its turn on the host"
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
    RELEASE_IDLE = "release: made idle"


Reached = Callable[[Checkpoint], None]


def go_on(checkpoint: Checkpoint) -> None:
    """Do nothing. That is what a reconciler does at a checkpoint outside tests."""
