"""How an imitated Coolify is set up, and what goes wrong with it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)(?:-beta\.(\d+))?")
_NO_BETA = 1_000_000


class Version(NamedTuple):
    """A release of Coolify; a beta comes before what it is a beta of."""

    major: int
    minor: int
    patch: int
    beta: int = _NO_BETA

    @classmethod
    def parse(cls, text: str) -> Version:
        """Read "4.2.0" or "4.0.0-beta.452". Raises `ValueError`."""
        match = _VERSION.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is no version of Coolify.")
        return cls(*(int(part) for part in match.groups() if part is not None))


def beta(number: int) -> Version:
    """A beta of v4.0.0."""
    return Version(4, 0, 0, number)


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How this Coolify is set up."""

    version: str = "4.3.11"
    servers: Sequence[str] = ("server-a",)
    """Their uuids."""
    requests_per_minute: int = 200
    """Of one user, in a fixed window that begins with its first request."""
    api_enabled: bool = True
    address_allowed: bool = True
    """Whether the client is on the list of allowed addresses."""
    abilities: Collection[str] = ("read", "write", "deploy")
    """Of the token. Without `read:sensitive`, values of variables are not shown."""
    admin: bool = True
    """Whether the token is of an admin of the team. Another member's may do nothing."""
    concurrent_builds: int = 2
    deployment_queue_limit: int = 25
    workers: int = 4
    """Deployments, stops, deletions and looks at servers share them, on all servers."""
    pull_seconds: float = 0.0
    """The pull of an image that is not on the server."""
    check_seconds: float = 0.0
    """The pull of an image that is there: it is compared with the registry's."""
    start_seconds: float = 0.0
    """From the pull to the container."""
    stop_seconds: float = 0.0
    """Until a stop that a worker took up takes effect."""
    delete_seconds: float = 0.0
    sync_seconds: float = 60.0
    """How often Coolify looks at the containers of a server, beside after each deployment."""
    status_lag_seconds: float = 0.0
    """What Coolify sees on a server is shown this much later. What a stop writes, at once."""
    stop_grace_seconds: float = 30.0
    """From SIGTERM to SIGKILL, unless an application has its own `stop_grace_period`."""
    latency_seconds: float = 0.0
    """Of each request."""
    list_seconds: float = 0.0
    """What `GET /applications` takes besides, for each application."""
    ssh_seconds: float = 0.0
    """Of each command on a server: `/logs` takes three of them."""
    server_settings: Mapping[str, object] = field(default_factory=dict)
    """Settings of every server that differ from Coolify's own."""

    @property
    def release(self) -> Version:
        """The version, to compare."""
        return Version.parse(self.version)


@dataclass(frozen=True, kw_only=True)
class Faults:
    """How likely each is to happen to a call. `/version` and `/health` are spared."""

    too_many: float = 0.0
    """429 with a short wait, and nothing done."""
    error: float = 0.0
    """500, and nothing done."""
    times_out: float = 0.0
    """No answer, and nothing done."""
    reply_lost: float = 0.0
    """Done, and then the connection breaks."""
    ssh: float = 0.0
    """A command on the server fails, so `/logs` says that nothing runs."""


class ReplyLost(ConnectionError):
    """The connection broke before the answer was complete."""
