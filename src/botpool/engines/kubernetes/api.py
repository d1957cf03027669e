"""A client for the API server of one cluster, in one namespace, with our own errors.

A call that is turned away because there are too many (429) waits as long as the server says, and is
made again. Where calls have to wait for each other, those that change something go first, and the
reads that they begin with. Errors have the server's own words, and nothing of what was sent.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import httpx
import orjson

from botpool.errors import EngineRefused, EngineUnavailable, HostUnreachable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from botpool.engines.kubernetes.credentials import Access, Certificate, Credentials, User

Object = dict[str, Any]
"""An object of Kubernetes, as JSON."""

_AT_A_TIME = 16
_TRIES = 8
_SECONDS = 15.0
_LONGEST_WAIT_SECONDS = 30.0
_PAGE = 500
_WATCH_SECONDS = 240
_LONGEST_WORDS = 600

_BAD_REQUEST = 400
_UNAUTHORIZED = 401
_FORBIDDEN = 403
_NOT_FOUND = 404
_CONFLICT = 409
_TOO_MANY = 429
_WONT = frozenset({400, 405, 413, 415, 422})
"""The server understood the call and refused it. It would refuse it again."""
_NO_RIGHT = re.compile(r"cannot \w+ resource")
_QUOTA = "exceeded quota"
_NO_LOG = "unable to retrieve container logs"
"""The server answers this with the status 200 for a container that is gone."""

_LOG_ENDS = "rpc error: code = NotFound desc = an error occurred when try to find container"
"""What a kubelet adds to a log that is followed until its container is gone."""
_NOT_STARTED = "is waiting to start"
_TERMINATED = "is terminated"

_METADATA = "application/json;as={};g=meta.k8s.io;v=v1,application/json"


class Kind(StrEnum):
    """What we make and read. The value is its path in a namespace."""

    POD = "api/v1/{}/pods"
    SECRET = "api/v1/{}/secrets"  # noqa: S105 - a path
    EVENT = "api/v1/{}/events"
    DAEMON_SET = "apis/apps/v1/{}/daemonsets"


class NameTaken(EngineRefused):
    """Another object has this name."""


class WatchTooOld(EngineUnavailable):
    """What happened since this version is not known any more: list again."""


class Gate:
    """Lets a few calls through at a time, those that are urgent before others that wait."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._waiting: tuple[deque[asyncio.Future[None]], ...] = (deque(), deque())

    @asynccontextmanager
    async def through(self, *, urgent: bool) -> AsyncIterator[None]:
        """Hold a place for the length of the block."""
        if self._free:
            self._free -= 1
        else:
            waiting = self._waiting[not urgent]
            turn = asyncio.get_running_loop().create_future()
            waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._leave()
                raise
        try:
            yield
        finally:
            self._leave()

    def _leave(self) -> None:
        for waiting in self._waiting:
            while waiting:
                turn = waiting.popleft()
                if not turn.done():
                    turn.set_result(None)
                    return
        self._free += 1


class _Call:
    """A call of a user, which may have to be made again."""

    def __init__(self, user: User) -> None:
        self._user = user
        self._renewed = False

    async def again(self, answer: httpx.Response, used: Credentials) -> bool:
        """Whether it is to be made again after an answer; waits as long as the server says."""
        if answer.status_code == _TOO_MANY:
            await asyncio.sleep(_retry_after(answer))
            return True
        if answer.status_code == _UNAUTHORIZED and not self._renewed:
            self._user.refused(used)
            self._renewed = True
            return True
        return False


class KubernetesApi:
    """The API of the cluster `host`. A call raises `EngineUnavailable` or `EngineRefused`."""

    def __init__(
        self, host: str, access: Access, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self.host = host
        self.access = access
        self._transport = transport
        self._gate = Gate(_AT_A_TIME)
        self._client: httpx.AsyncClient | None = None
        self._certificate: Certificate | None = None
        self.requests = 0
        """How many requests were made."""

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    def path(self, kind: Kind, name: str = "") -> str:
        """The path of all objects of a kind, or of one."""
        path = kind.format(f"namespaces/{self.access.namespace}")
        return f"/{path}/{name}" if name else f"/{path}"

    # Objects

    async def find(
        self, kind: Kind, name: str, *, metadata: bool = False, urgent: bool = False
    ) -> Object | None:
        """An object, or only its metadata; None if there is none."""
        accept = _METADATA.format("PartialObjectMetadata") if metadata else None
        answer = await self.request("GET", self.path(kind, name), accept=accept, urgent=urgent)
        return None if _missing(answer) else self._object(answer)

    async def list(
        self, kind: Kind, *, metadata: bool = False, **selectors: str
    ) -> tuple[list[Object], str]:
        """Every object that the selectors choose, and the version of that list."""
        accept = _METADATA.format("PartialObjectMetadataList") if metadata else None
        found: list[Object] = []
        more = ""
        while True:
            params = {**selectors, "limit": str(_PAGE), **({"continue": more} if more else {})}
            page = self._object(
                await self.request("GET", self.path(kind), params=params, accept=accept)
            )
            found += page.get("items") or []
            more = page["metadata"].get("continue", "")
            if not more:
                return found, page["metadata"]["resourceVersion"]

    async def create(self, kind: Kind, object_: Object, *, dry_run: bool = False) -> Object:
        """Create an object, or only try whether it could be. Raises `NameTaken`."""
        params = {"dryRun": "All"} if dry_run else None
        return self._object(
            await self.request("POST", self.path(kind), json=object_, params=params)
        )

    async def delete(
        self, kind: Kind, object_: Object, grace_seconds: int | None = None
    ) -> Object | None:
        """Have this very object deleted. Returns what was left of it, None if it was gone."""
        metadata = object_["metadata"]
        body: Object = {
            "preconditions": {"uid": metadata["uid"]},
            "propagationPolicy": "Background",
        }
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        answer = await self.request("DELETE", self.path(kind, metadata["name"]), json=body)
        if _missing(answer) or answer.status_code == _CONFLICT:
            return None  # if another object has its name, this one is gone
        return self._object(answer)

    async def change(self, kind: Kind, object_: Object, metadata: Object) -> bool:
        """Change the metadata of this very object, as it was read. Returns whether it was there.

        Raises `EngineUnavailable` if it has changed since.
        """
        name, uid, version = (
            object_["metadata"][key] for key in ("name", "uid", "resourceVersion")
        )
        body = {"metadata": {"uid": uid, "resourceVersion": version, **metadata}}
        answer = await self.request(
            "PATCH", self.path(kind, name), json=body, content="application/merge-patch+json"
        )
        if _missing(answer):
            return False
        self._object(answer)
        return True

    async def watch(self, kind: Kind, version: str, **selectors: str) -> AsyncIterator[Object]:
        """What happens to objects after a version of their list: `type` and `object`.

        Ends when the server likes. Raises `WatchTooOld`.
        """
        params = {
            **selectors,
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(_WATCH_SECONDS),
        }
        async with self._stream(
            self.path(kind), params, read_seconds=_WATCH_SECONDS + 30
        ) as answer:
            async for line in answer.aiter_lines():
                event = _json(line.encode())
                if event.get("type") == "ERROR":
                    status = event.get("object") or {}
                    raise WatchTooOld(self._told(str(status.get("message")), status.get("code")))
                yield event

    @asynccontextmanager
    async def log(
        self, pod: str, container: str, lines: int, *, follow: bool = False
    ) -> AsyncIterator[AsyncIterator[str]]:
        """The last lines of a container; with `follow`, also those to come, until it ends.

        There are none if it is gone or was never started.
        """
        params = {"container": container, "tailLines": str(lines)}
        if follow:
            params["follow"] = "true"
        async with AsyncExitStack() as stack:
            path = f"{self.path(Kind.POD, pod)}/log"
            try:
                answer = await stack.enter_async_context(self._stream(path, params))
            except EngineRefused:
                answer = None
            yield _log_lines(answer)

    async def says_stopped(self, pod: str, container: str) -> bool:
        """Whether the kubelet itself, asked now, says that a container doesn't run."""
        path = f"{self.path(Kind.POD, pod)}/log"
        answer = await self.request("GET", path, params={"container": container, "tailLines": "1"})
        if answer.status_code != _BAD_REQUEST:
            return False
        said = str(_json(answer.content).get("message"))
        return said.endswith(_TERMINATED) or _NOT_STARTED in said

    async def version(self) -> Object:
        """The server's version."""
        return self._object(await self.request("GET", "/version"))

    # How

    async def request(
        self,
        method: str,
        path: str,
        *,
        json: Object | None = None,
        params: Mapping[str, str] | None = None,
        accept: str | None = None,
        content: str = "application/json",
        urgent: bool = False,
    ) -> httpx.Response:
        """Make a call, and return the answer, whatever its status.

        It is made again if it was turned away, or if the credentials had to be renewed. It goes
        before others that wait if it changes something, or if it is `urgent`.
        """
        call = _Call(self.access.user)
        for _ in range(_TRIES):
            credentials = await self.access.user.credentials()
            headers = {"Accept": accept or "application/json", "Content-Type": content}
            with self._mapped(method, path):
                async with self._gate.through(urgent=urgent or method != "GET"):
                    self.requests += 1
                    answer = await self._opened(credentials).request(
                        method,
                        f"{self.access.server}{path}",
                        content=None if json is None else orjson.dumps(json),
                        params=params,
                        headers=headers | _authorization(credentials),
                        extensions=self._extensions(),
                    )
            if not await call.again(answer, credentials):
                return answer
        raise EngineUnavailable(self._told("too many requests", _TOO_MANY))

    @asynccontextmanager
    async def _stream(
        self, path: str, params: Mapping[str, str], read_seconds: float | None = None
    ) -> AsyncIterator[httpx.Response]:
        """An answer that is read as it comes. It takes no place from other calls.

        The call is made again as `request` does it.
        """
        call = _Call(self.access.user)
        for _ in range(_TRIES):
            credentials = await self.access.user.credentials()
            with self._mapped("GET", path):
                self.requests += 1
                async with self._opened(credentials).stream(
                    "GET",
                    f"{self.access.server}{path}",
                    params=params,
                    headers=_authorization(credentials),
                    extensions=self._extensions(),
                    timeout=httpx.Timeout(_SECONDS, read=read_seconds),
                ) as answer:
                    if answer.is_success:
                        yield answer
                        return
                    await answer.aread()
            if not await call.again(answer, credentials):
                self._object(answer)  # it raises what the answer says
        raise EngineUnavailable(self._told("too many requests", _TOO_MANY))

    def _opened(self, credentials: Credentials) -> httpx.AsyncClient:
        """The client, opened again if our certificate is another one now."""
        if self._client is None or credentials.certificate != self._certificate:
            self._certificate = credentials.certificate
            self._client = httpx.AsyncClient(
                transport=self._transport,
                verify=self.access.tls(credentials.certificate),
                timeout=httpx.Timeout(_SECONDS, connect=_SECONDS / 3),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=_AT_A_TIME),
                trust_env=False,
            )
        return self._client

    def _extensions(self) -> dict[str, Any]:
        return {"sni_hostname": self.access.server_name} if self.access.server_name else {}

    @contextmanager
    def _mapped(self, method: str, path: str) -> Iterator[None]:
        """Turn the errors of the connection into ours."""
        where = f"{method} {path.partition('?')[0]}"
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise HostUnreachable(
                f"The cluster {self.host} doesn't answer: {_cause(error)}."
            ) from error
        except (httpx.RequestError, httpx.InvalidURL, OSError) as error:
            raise EngineUnavailable(
                f"The cluster {self.host} didn't answer {where}: {_cause(error)}."
            ) from error

    def _object(self, answer: httpx.Response) -> Object:
        """The object in an answer. Raises the error that the answer is."""
        status, said = answer.status_code, _json(answer.content)
        if answer.is_success:
            if not said:
                raise EngineUnavailable(self._told("its answer is not JSON", status))
            return said
        message = str(said.get("message") or f"status {status}")
        told = self._told(message, status)
        if status == _CONFLICT and said.get("reason") == "AlreadyExists":
            raise NameTaken(told)
        refused = status in _WONT or _missing(answer) or _not_admitted(status, message)
        # An answer that is not the server's own may be a proxy's, which knows nothing.
        if refused and said.get("kind") == "Status":
            raise EngineRefused(told)
        raise EngineUnavailable(told)

    def _told(self, message: str, status: object) -> str:
        message = message[:_LONGEST_WORDS]
        if status == _UNAUTHORIZED:
            return f"The cluster {self.host} doesn't accept the credentials: {message}"
        if status == _FORBIDDEN and _QUOTA in message:
            return f"The quota of the cluster {self.host} is used up: {message}"
        if status == _FORBIDDEN and _NO_RIGHT.search(message):
            return f"The cluster {self.host} doesn't give botpool this right: {message}"
        return f"The cluster {self.host} says: {message}"


def _missing(answer: httpx.Response) -> bool:
    """Whether the server itself says that there is no such object."""
    if answer.status_code != _NOT_FOUND:
        return False
    said = _json(answer.content)
    kind = (said.get("details") or {}).get("kind")
    return said.get("reason") == "NotFound" and kind != "namespaces"


def _not_admitted(status: int, message: str) -> bool:
    """Whether a rule of the cluster forbids the object: no missing right, and no full quota."""
    return status == _FORBIDDEN and _QUOTA not in message and not _NO_RIGHT.search(message)


def _authorization(credentials: Credentials) -> dict[str, str]:
    return {"Authorization": credentials.header} if credentials.header else {}


def _retry_after(answer: httpx.Response) -> float:
    said = answer.headers.get("Retry-After", "")
    return min(float(said), _LONGEST_WAIT_SECONDS) if said.isdecimal() else 1.0


def _json(content: bytes) -> Object:
    try:
        said = orjson.loads(content)
    except orjson.JSONDecodeError:
        return {}
    return said if isinstance(said, dict) else {}


def _cause(error: Exception) -> str:
    return str(error) or type(error).__name__


async def _log_lines(answer: httpx.Response | None) -> AsyncIterator[str]:
    if answer is not None:
        async for line in answer.aiter_lines():
            if line.startswith((_NO_LOG, _LOG_ENDS)):
                return
            yield line
