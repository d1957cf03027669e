"""A stateful imitation of Coolify v4: its API, its queue and its containers.

In a test, give `httpx.ASGITransport` the `app` of a `Coolify`. On a port, with real processes in
its containers: `python -m tests.fakes.coolify --help`.
"""

from tests.fakes.coolify.containers import (
    Containers,
    ContainerState,
    ProcessContainers,
    RunningContainer,
    TaskContainers,
    wait_for_stop,
)
from tests.fakes.coolify.coolify import Coolify
from tests.fakes.coolify.records import (
    Application,
    Deployment,
    DeploymentStatus,
    Request,
)
from tests.fakes.coolify.rules import (
    Faults,
    ReplyLost,
    Rules,
    Version,
)

__all__ = [
    "Application",
    "ContainerState",
    "Containers",
    "Coolify",
    "Deployment",
    "DeploymentStatus",
    "Faults",
    "ProcessContainers",
    "ReplyLost",
    "Request",
    "Rules",
    "RunningContainer",
    "TaskContainers",
    "Version",
    "wait_for_stop",
]
