"""A client for Coolify's API, with typed answers, bounded waits and our own errors.

It retries calls when that is safe: calls that were never sent, calls that the rate limit turned
away (429), and repeatable calls if Coolify or a gateway failed (500, 502 to 504) or the answer was
lost. Errors contain the status, the path and Coolify's own words, and never the token.
"""

from __future__ import annotations

import asyncio
import random
import re
from typing import TYPE_CHECKING, Any, TypeVar

import httpx
from pydantic import TypeAdapter, ValidationError

from botpool.engines.coolify.budget import Urgency
from botpool.engines.coolify.wire import (
    Application,
    Created,
    Deployment,
    Deployments,
    Environment,
    Logs,
    Server,
    Started,
)
from botpool.errors import EngineRefused, EngineUnavailable
from botpool.tasks.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from botpool.engines.coolify.budget import Budget

_Answer = TypeVar("_Answer")

_TRIES = 4
_RETRIES = Backoff(0.75)
_LONGEST_PAUSE_SECONDS = 120.0
_LONGEST_WORDS = 500
_KEEPALIVE_SECONDS = 30.0

_COUNTS = ("Limit", "Remaining")

_BAD_REQUEST = 400
_NOT_FOUND = 404
_TOO_MANY = 429
_FAILED = frozenset({500, 502, 503, 504})
"""Coolify or a gateway failed. It may work in a moment."""
_WONT = frozenset({400, 404, 405, 409, 422})
"""Coolify understood the call and refused it. It would refuse it again."""


_APPLICATIONS = TypeAdapter(list[Application])
_SERVERS = TypeAdapter(list[Server])
_ENVIRONMENTS = TypeAdapter(list[Environment])
_ACTIVE = TypeAdapter(list[Deployment] | dict[str, Deployment])


class CoolifyApi:
    """The calls that botpool makes, all within one budget.

    They raise `EngineRefused` if Coolify understood a call and refused it, and `EngineUnavailable`
    for every other failure, a token that isn't accepted included.
    """

    def __init__(
        self,
        url: str,
        token: str,
        budget: Budget,
        *,
        timeout_seconds: float = 15.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        base = url.rstrip("/")
        self._base = base if base.endswith("/api/v1") else f"{base}/api/v1"
        self._token = token
        self._budget = budget
        self._seconds = timeout_seconds
        self._random = random.Random()  # noqa: S311 - spreads retries
        self._client = httpx.AsyncClient(
            transport=transport,
            # Shorter to connect than in all, so that a call that was never sent can be told apart.
            timeout=httpx.Timeout(timeout_seconds, connect=timeout_seconds / 3),
            # Longer than between two bots, and shorter than servers keep a connection open.
            limits=httpx.Limits(keepalive_expiry=_KEEPALIVE_SECONDS),
            headers={"Accept": "application/json", "Authorization": f"Bearer {token}"},
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    @property
    def budget(self) -> Budget:
        """What its calls may spend."""
        return self._budget

    # Applications

    async def applications(self) -> list[Application]:
        """Every application that the token can see."""
        answer = await self._get("/applications", Urgency.CHANGE)
        return self._read(answer, _APPLICATIONS)

    async def application(self, uuid: str) -> Application | None:
        """One application, None if there is none."""
        found = await self._find(f"/applications/{uuid}")
        return None if found is None else self._read(found, TypeAdapter(Application))

    async def create_application(self, fields: Mapping[str, object]) -> str:
        """Create an application from an image, and return its uuid."""
        answer = await self._call(
            "POST", "/applications/dockerimage", json=dict(fields), urgency=Urgency.CREATE
        )
        return self._read(answer, TypeAdapter(Created)).uuid

    async def describe(self, uuid: str, text: Callable[[], str]) -> None:
        """Set the description of an application. If it is gone, that is no error.

        The text is asked for when the budget lets the call through: it may wait for long.
        """
        await self._call(
            "PATCH",
            f"/applications/{uuid}",
            json=lambda: {"description": text()},
            urgency=Urgency.DESCRIBE,
            repeatable=True,
            or_missing=True,
        )

    async def change_application(self, uuid: str, fields: Mapping[str, object]) -> bool:
        """Change an application, from its next start on. Returns whether there is such a one."""
        return await self._done(
            "PATCH", f"/applications/{uuid}", json=dict(fields), repeatable=True
        )

    async def delete_application(self, uuid: str) -> None:
        """Have an application deleted, which takes a while. Images are kept."""
        # Not "false": in a deletion, old versions take that for true.
        await self._call(
            "DELETE",
            f"/applications/{uuid}",
            params={"docker_cleanup": "0"},
            repeatable=True,
            or_missing=True,
        )

    async def set_environment(
        self, uuid: str, values: Mapping[str, str], urgency: Urgency = Urgency.CHANGE
    ) -> bool:
        """Set variables for the next deployment. Returns whether there is such an application."""
        # Every flag is given: Coolify would reset the others.
        data = [
            {
                "key": key,
                "value": value,
                "is_preview": False,
                "is_literal": True,
                "is_multiline": False,
                "is_shown_once": True,  # some are secrets, and nobody needs to see the others
                "is_runtime": True,
                "is_buildtime": False,
            }
            for key, value in values.items()
        ]
        return await self._done(
            "PATCH",
            f"/applications/{uuid}/envs/bulk",
            json={"data": data},
            urgency=urgency,
            repeatable=True,
        )

    async def start(self, uuid: str) -> tuple[bool, str | None]:
        """Start an application.

        Returns whether there is such an application, and the uuid of the deployment that Coolify
        says will start it. There may be no such deployment: look it up.
        """
        answer = await self._call("POST", f"/applications/{uuid}/start", or_missing=True)
        if answer is None:
            return False, None
        return True, self._read(answer, TypeAdapter(Started)).deployment_uuid

    async def stop(self, uuid: str) -> bool:
        """Have an application stopped, which takes a while. Images are kept.

        Returns whether there is such an application.
        """
        return await self._done(
            "POST",
            f"/applications/{uuid}/stop",
            params={"docker_cleanup": "0"},
            repeatable=True,
        )

    async def logs(self, uuid: str, lines: int) -> list[str] | None:
        """The last lines that a running application wrote; None if it doesn't run.

        For this, Coolify looks at the container itself, whatever its statuses say.
        """
        path = f"/applications/{uuid}/logs"
        params = {"lines": str(lines)}
        answer = await self._send("GET", path, None, params, Urgency.READ, repeatable=True)
        if answer.status_code in {_BAD_REQUEST, _NOT_FOUND}:
            return None
        text = self._read(self._checked("GET", path, answer), TypeAdapter(Logs)).logs or ""
        return text.splitlines()

    # Deployments

    async def active_deployments(self) -> list[Deployment] | None:
        """Every deployment that is queued or in progress; None if Coolify has no such list.

        It costs Coolify little, whereas the list of applications takes long on a large one.
        """
        answer = await self._find("/deployments", urgency=Urgency.CHANGE)
        if answer is None:
            return None
        found = self._read(answer, _ACTIVE)
        return [*found.values()] if isinstance(found, dict) else found

    async def deployment(self, uuid: str) -> Deployment | None:
        """One deployment, None if there is none."""
        answer = await self._find(f"/deployments/{uuid}")
        return None if answer is None else self._read(answer, TypeAdapter(Deployment))

    async def deployments_of(
        self, uuid: str, most: int, urgency: Urgency = Urgency.READ
    ) -> list[Deployment] | None:
        """The newest deployments of an application, the newest first.

        None if the application is gone, or if Coolify has no such list.
        """
        answer = await self._find(
            f"/deployments/applications/{uuid}", {"skip": "0", "take": str(most)}, urgency
        )
        return None if answer is None else self._read(answer, TypeAdapter(Deployments)).deployments

    async def cancel(self, uuid: str) -> None:
        """Cancel a deployment. It is no error if it is over, or if an old Coolify can't do it."""
        path = f"/deployments/{uuid}/cancel"
        answer = await self._send("POST", path, None, None, Urgency.CHANGE, repeatable=True)
        if answer.status_code not in {_BAD_REQUEST, _NOT_FOUND}:
            self._checked("POST", path, answer)

    # Where things are

    async def servers(self) -> list[Server]:
        """Every server."""
        return self._read(await self._get("/servers"), _SERVERS)

    async def server(self, uuid: str) -> Server | None:
        """One server, None if there is none."""
        answer = await self._find(f"/servers/{uuid}")
        return None if answer is None else self._read(answer, TypeAdapter(Server))

    async def environments(self, project_uuid: str) -> list[Environment] | None:
        """The environments of a project, None if there is no such project."""
        answer = await self._find(f"/projects/{project_uuid}/environments")
        return None if answer is None else self._read(answer, _ENVIRONMENTS)

    async def version(self) -> str:
        """Coolify's version, as it says it."""
        said = (await self._get("/version")).text.strip().strip('"')
        if re.fullmatch(r"[\w.+-]{1,50}", said) is None:
            raise EngineUnavailable("Coolify's answer to GET /version is not a version.")
        return said

    async def may(self, method: str, path: str) -> bool:
        """Whether the token may make a call. Tried on something that doesn't exist."""
        answer = await self._send(method, path, {}, None, Urgency.READ, repeatable=True)
        if answer.status_code == httpx.codes.FORBIDDEN and "ermission" in self._words(answer):
            return False
        if answer.status_code not in _WONT:
            self._checked(method, path, answer)
        return True

    # How

    async def _get(self, path: str, urgency: Urgency = Urgency.READ) -> httpx.Response:
        answer = await self._send("GET", path, None, None, urgency, repeatable=True)
        return self._checked("GET", path, answer)

    async def _find(
        self,
        path: str,
        params: Mapping[str, str] | None = None,
        urgency: Urgency = Urgency.READ,
    ) -> httpx.Response | None:
        answer = await self._send("GET", path, None, params, urgency, repeatable=True)
        return None if answer.status_code == _NOT_FOUND else self._checked("GET", path, answer)

    async def _done(self, method: str, path: str, **call: Any) -> bool:
        return await self._call(method, path, or_missing=True, **call) is not None

    async def _call(
        self,
        method: str,
        path: str,
        *,
        json: object = None,
        params: Mapping[str, str] | None = None,
        urgency: Urgency = Urgency.CHANGE,
        repeatable: bool = False,
        or_missing: bool = False,
    ) -> httpx.Response | None:
        answer = await self._send(method, path, json, params, urgency, repeatable=repeatable)
        if or_missing and answer.status_code == _NOT_FOUND:
            return None
        return self._checked(method, path, answer)

    async def _send(
        self,
        method: str,
        path: str,
        json: object,
        params: Mapping[str, str] | None,
        urgency: Urgency,
        *,
        repeatable: bool,
    ) -> httpx.Response:
        """Make a call, and retry it if that is safe. Returns the answer, whatever its status."""
        for attempt in range(1, _TRIES + 1):
            last = attempt == _TRIES
            try:
                async with self._budget.spend(urgency), asyncio.timeout(self._seconds):
                    sent_at = asyncio.get_running_loop().time()
                    answer = await self._client.request(
                        method,
                        f"{self._base}{path}",
                        json=json() if callable(json) else json,
                        params=params,
                    )
                    self._note_limit(sent_at, answer)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                if last:  # it was never sent
                    raise self._silent(method, path, error) from error
            except (httpx.RequestError, TimeoutError, OSError) as error:
                if last or not repeatable:
                    raise self._silent(method, path, error) from error
            else:
                if answer.status_code == _TOO_MANY:
                    self._budget.pause(_retry_after(answer))
                elif answer.status_code not in _FAILED or not repeatable:
                    return self._own(method, path, answer)
                if last:
                    return answer
            await asyncio.sleep(_RETRIES.seconds(attempt, self._random))
        raise AssertionError("unreachable")

    def _note_limit(self, sent_at: float, answer: httpx.Response) -> None:
        """Note Coolify's own count. An answer to a call that was turned away doesn't tell it."""
        limit, remaining = (answer.headers.get(f"X-RateLimit-{name}", "") for name in _COUNTS)
        if answer.status_code != _TOO_MANY and limit.isdecimal() and remaining.isdecimal():
            self._budget.told(sent_at, max(1, int(limit)), int(remaining))

    def _own(self, method: str, path: str, answer: httpx.Response) -> httpx.Response:
        """The answer, if it is Coolify's. A proxy in front of it answers 404 for anything."""
        matters = answer.status_code in _WONT or (answer.is_success and method != "GET")
        if matters and _json(answer) is None:
            raise EngineUnavailable(self._told(method, path, answer))
        return answer

    def _checked(self, method: str, path: str, answer: httpx.Response) -> httpx.Response:
        if answer.is_success:
            return answer
        said = self._told(method, path, answer)
        raise EngineRefused(said) if answer.status_code in _WONT else EngineUnavailable(said)

    def _told(self, method: str, path: str, answer: httpx.Response) -> str:
        return f"Coolify answers {answer.status_code} to {method} {path}: {self._words(answer)}"

    def _silent(self, method: str, path: str, error: Exception) -> EngineUnavailable:
        kind = str(error) or type(error).__name__
        return EngineUnavailable(self._without_token(f"No answer to {method} {path}: {kind}"))

    def _words(self, answer: httpx.Response) -> str:
        """What Coolify says is wrong, on one line."""
        said = _json(answer)
        if said is None:
            location = answer.headers.get("location")
            kind = answer.headers.get("content-type") or "nothing"
            words = f"not JSON, but {f'a redirect to {location}' if location else kind}"
            return self._without_token(words)[:_LONGEST_WORDS]
        parts = []
        if isinstance(said, dict):
            parts = [_flat(said[name]) for name in ("message", "error") if said.get(name)]
            errors = said.get("errors")
            if isinstance(errors, dict):
                parts += [f"{name}: {_flat(problems)}" for name, problems in errors.items()]
        words = " ".join("; ".join(parts).split())
        return self._without_token(words or "nothing more")[:_LONGEST_WORDS]

    def _without_token(self, text: str) -> str:
        secret = self._token.partition("|")[2] or self._token
        return text.replace(self._token, "…").replace(secret, "…")

    def _read(self, answer: httpx.Response | None, shape: TypeAdapter[_Answer]) -> _Answer:
        try:
            return shape.validate_json(b"" if answer is None else answer.content)
        except ValidationError as error:
            path = "" if answer is None else answer.request.url.path
            problem = error.errors(include_input=False, include_url=False)[0]
            where = "".join(f"{part}: " for part in problem["loc"])
            raise EngineUnavailable(
                f"Coolify's answer to {path} is not as expected: {where}{problem['msg']}"
            ) from None


def _json(answer: httpx.Response) -> dict[str, Any] | list[Any] | None:
    try:
        said = answer.json()
    except ValueError:
        return None
    return said if isinstance(said, dict | list) else None


def _flat(problems: object) -> str:
    """A problem's words, whether they are one text or a list."""
    return " ".join(map(str, problems)) if isinstance(problems, list) else str(problems)


def _retry_after(answer: httpx.Response) -> float:
    try:
        seconds = float(answer.headers.get("Retry-After", "1"))
    except ValueError:
        seconds = 1.0
    return min(max(seconds, 0.0), _LONGEST_PAUSE_SECONDS)
