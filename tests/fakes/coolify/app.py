"""The API over HTTP: its routes, its tokens and limits, and what goes wrong on the way."""

from __future__ import annotations

import asyncio
import math
import random
import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.requests import Request as HttpRequest

from tests.fakes.coolify import calls
from tests.fakes.coolify.http import (
    Call,
    FrameworkError,
    Refused,
    read_json,
)
from tests.fakes.coolify.records import Request
from tests.fakes.coolify.rules import ReplyLost, Version, beta

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send

    from tests.fakes.coolify.coolify import Coolify
    from tests.fakes.coolify.model import Model

_RETRY_SECONDS = 3
_PREFIX = "/api/v1"
_WINDOW_SECONDS = 60.0
_ALWAYS = Version(0, 0, 0)
_POST_ONLY_SINCE = Version(4, 2, 0)
_SPARED = frozenset({"/version", "/health"})
_OF_CALLS = ("too_many", "error", "times_out", "reply_lost")
_COMMANDS_FOR_LOGS = 3


@dataclass(frozen=True)
class _Route:
    method: str
    pattern: str
    handle: Callable[[Model, Call], Response]
    ability: str | None = "read"
    once_get: bool = False
    """It took GET as well, once."""
    since: Version = _ALWAYS

    def match(self, path: str) -> re.Match[str] | None:
        return re.fullmatch(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", self.pattern), path)


_ROUTES = (
    _Route("GET", "/health", calls.health, None),
    _Route("GET", "/version", calls.version),
    _Route("GET", "/servers", calls.list_servers),
    _Route("GET", "/servers/{uuid}", calls.get_server),
    _Route("GET", "/servers/{uuid}/docker-cleanup", calls.get_cleanup, since=Version(4, 2, 0)),
    _Route("GET", "/projects", calls.list_projects),
    _Route("GET", "/projects/{uuid}", calls.get_project),
    _Route("GET", "/projects/{uuid}/environments", calls.list_environments),
    _Route("GET", "/projects/{uuid}/{environment}", calls.get_environment),
    _Route("POST", "/applications/dockerimage", calls.create_application, "write"),
    _Route("GET", "/applications", calls.list_applications),
    _Route("GET", "/applications/{uuid}", calls.get_application),
    _Route("PATCH", "/applications/{uuid}", calls.update_application, "write"),
    _Route("DELETE", "/applications/{uuid}", calls.delete_application, "write"),
    _Route("POST", "/applications/{uuid}/start", calls.start, "deploy", once_get=True),
    _Route("POST", "/applications/{uuid}/restart", calls.restart, "deploy", once_get=True),
    _Route("POST", "/applications/{uuid}/stop", calls.stop, "deploy", once_get=True),
    _Route("GET", "/applications/{uuid}/logs", calls.logs),
    _Route("PATCH", "/applications/{uuid}/envs/bulk", calls.set_variables, "write"),
    _Route("GET", "/applications/{uuid}/envs", calls.list_variables),
    _Route("POST", "/applications/{uuid}/envs", calls.create_variable, "write"),
    _Route("PATCH", "/applications/{uuid}/envs", calls.update_variable, "write"),
    _Route("DELETE", "/applications/{uuid}/envs/{variable}", calls.delete_variable, "write"),
    _Route("POST", "/deploy", calls.deploy, "deploy", once_get=True),
    _Route("GET", "/deployments", calls.list_deployments),
    _Route("GET", "/deployments/{uuid}", calls.get_deployment),
    _Route("GET", "/deployments/applications/{uuid}", calls.list_deployments_of),
    _Route(
        "POST", "/deployments/{uuid}/cancel", calls.cancel_deployment, "deploy", since=beta(436)
    ),
)


class _Window:
    """Counts one user's requests from the first one on, for a minute."""

    def __init__(self) -> None:
        self._count = 0
        self._ends_at = 0.0

    def hit(self, now: float, limit: int) -> bool:
        """Count a request, unless there were too many."""
        self._turn(now)
        if self._count >= limit:
            return False
        self._count += 1
        return True

    def left(self, now: float, limit: int) -> int:
        """How many more requests there may be."""
        self._turn(now)
        return max(limit - self._count, 0)

    def seconds(self, now: float) -> int:
        """How long until it is over."""
        return max(math.ceil(self._ends_at - now), 1)

    def _turn(self, now: float) -> None:
        if now >= self._ends_at:
            self._count, self._ends_at = 0, now + _WINDOW_SECONDS


class App:
    """The ASGI application."""

    def __init__(self, coolify: Coolify, seed: int) -> None:
        self._coolify = coolify
        self._windows: defaultdict[int | None, _Window] = defaultdict(_Window)
        """By user; None is whoever has no valid token."""
        self._random = random.Random(f"faults {seed}")  # noqa: S311 - it is to be repeatable
        self._ssh = random.Random(f"ssh {seed}")  # noqa: S311

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, if it is to be answered."""
        if scope["type"] != "http":
            raise NotImplementedError(scope["type"])
        request = HttpRequest(scope, receive)
        body = read_json(await request.body())
        path = request.url.path.removeprefix(_PREFIX)
        call = Call(request.method, path, dict(request.query_params), body)
        entry = Request(call.method, path, call.query, body, self._coolify.now)
        self._coolify.requests.append(entry)
        entry.fault = self._draw(path)
        # Of 0 seconds, too: a client that polls in a loop must let others go on.
        await asyncio.sleep(self._coolify.rules.latency_seconds)
        if entry.fault == "times_out":
            while (await receive())["type"] != "http.disconnect":
                pass
            return
        try:
            response = self._answer(request, call, entry.fault)
        except Refused as refused:
            response = refused.answer()
        except FrameworkError as error:
            accepts = request.headers.get("accept", "")
            response = error.answer(accepts_json="/json" in accepts or "+json" in accepts)
        if path != "/health" and self._coolify.outage is None:
            self._add_limits(request, response)
        await asyncio.sleep(self._seconds(call))
        entry.status = response.status_code
        if entry.fault == "reply_lost":
            # A server that has begun to answer can only close the connection.
            headers = [(b"content-length", b"1000000")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            raise ReplyLost("The connection broke.")
        await response(scope, receive, send)

    def _draw(self, path: str) -> str | None:
        """What goes wrong with a call. Each draws as often, so that a seed means the same."""
        if path in _SPARED:
            return None
        faults = self._coolify.faults
        drawn = [name for name in _OF_CALLS if self._random.random() < getattr(faults, name)]
        return drawn[0] if drawn and self._coolify.outage is None else None

    def _answer(self, request: HttpRequest, call: Call, fault: str | None) -> Response:
        coolify = self._coolify
        if coolify.outage is not None:
            raise FrameworkError(coolify.outage, "Service Unavailable")
        if not request.url.path.startswith(_PREFIX):
            raise FrameworkError(404, "Not Found")
        window = self._windows[self._user(request)]
        limit = coolify.rules.requests_per_minute
        within = call.path == "/health" or window.hit(coolify.now, limit)
        if not within or fault == "too_many":
            wait = _RETRY_SECONDS if within else window.seconds(coolify.now)
            raise FrameworkError(429, "Too Many Attempts.", {"Retry-After": str(wait)})
        if fault == "error":
            raise FrameworkError(500, "Server Error")
        route = self._route(call)
        if route.ability is not None:
            self._admit(request, route.ability)
        answer = route.handle(coolify, call)
        if route.handle is calls.logs and self._ssh.random() < coolify.faults.ssh:
            raise calls.not_running()
        return answer

    def _seconds(self, call: Call) -> float:
        """What an answer takes beyond the latency, after it was found out."""
        rules = self._coolify.rules
        if (call.method, call.path) == ("GET", "/applications"):
            return rules.list_seconds * len(self._coolify.applications)
        if call.path.endswith("/logs"):
            return rules.ssh_seconds * _COMMANDS_FOR_LOGS
        return 0.0

    def _route(self, call: Call) -> _Route:
        release = self._coolify.rules.release
        for route in _ROUTES:
            match = route.match(call.path)
            if match is None or release < route.since:
                continue
            call.parameters = match.groupdict()
            if call.method == route.method:
                return route
            if call.method == "GET" and route.once_get:
                if release < _POST_ONLY_SINCE:
                    return route
                raise FrameworkError(
                    405,
                    "The GET method is not supported for this route. Supported methods: POST.",
                    {"Allow": "POST"},
                )
        raise Refused(404, "Not found.", docs="https://coolify.io/docs")

    def _admit(self, request: HttpRequest, ability: str) -> None:
        coolify = self._coolify
        if self._user(request) is None:
            raise FrameworkError(401, "Unauthenticated.")
        if not coolify.rules.api_enabled:
            raise Refused(403, "API is disabled.", success=True)
        if not coolify.rules.address_allowed:
            raise Refused(403, "You are not allowed to access the API.", success=True)
        able = coolify.rules.admin and {"root", ability} & set(coolify.rules.abilities)
        if not able:
            raise Refused(403, f"Missing required permissions: {ability}")

    def _user(self, request: HttpRequest) -> int | None:
        coolify = self._coolify
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        return None if coolify.token_expired else coolify.users.get(token)

    def _add_limits(self, request: HttpRequest, response: Response) -> None:
        limit = self._coolify.rules.requests_per_minute
        window = self._windows[self._user(request)]
        left = 0 if response.status_code == 429 else window.left(self._coolify.now, limit)
        response.headers["X-RateLimit-Limit"] = str(limit)
        response.headers["X-RateLimit-Remaining"] = str(left)
