"""An API server with Secrets, Pods and DaemonSets, as far as botpool uses it, that has troubles.

It does what a real one was seen to do (tests/engines has one). Its only node starts pods at once,
and ends them at once. The pods of a DaemonSet are made by tests.
"""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from enum import StrEnum
from itertools import count
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

Object = dict[str, Any]


class Trouble(StrEnum):
    """What calls meet, as long as it lasts."""

    AWAY = "it is away"
    TOO_MANY = "it has too many requests"
    WEBHOOK = "a webhook that admits objects fails"
    LOST_REPLIES = "calls take effect, and their replies are lost"
    WATCH_CUT = "watches are cut"
    WATCH_TOO_OLD = "watches are too old"


class Watch(httpx.AsyncByteStream):
    """A watch that says nothing, until it is cut."""

    def __init__(self, over: asyncio.Event) -> None:
        self._over = over

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b""
        await self._over.wait()
        raise httpx.ReadError("cut")


class Server:
    """What a transport asks for each request."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Object] = {}
        """By kind and name."""
        self.deletions: list[tuple[str, str]] = []
        """The kind and name of what somebody has asked to delete."""
        self.made: list[str] = []
        """The names of the pods that were made, in order."""
        self.refused = 0
        """How many calls met the trouble."""
        self.calls: list[tuple[str, str]] = []
        """The method and path of each call, in order."""
        self.admit: Callable[[Object], None] = lambda _: None
        """What a webhook, or the age of the server, makes of an object that is created."""
        self.too_many = 0
        """How many of the next pods its node doesn't admit."""
        self._trouble: Trouble | None = None
        self._cut = asyncio.Event()
        self._numbers = count(1)

    @property
    def trouble(self) -> Trouble | None:
        """What calls meet now."""
        return self._trouble

    @trouble.setter
    def trouble(self, trouble: Trouble | None) -> None:
        self._trouble = trouble
        self._cut.set()  # no watch outlives it
        self._cut = asyncio.Event()

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        """Answer as a real one would, unless there is trouble."""
        watches = "watch" in request.url.params
        self.calls.append((request.method, request.url.path.rpartition("/bots/")[2]))
        match self._trouble:
            case Trouble.AWAY:
                self.refused += 1
                raise httpx.ConnectError("connection refused", request=request)
            case Trouble.TOO_MANY:
                self.refused += 1
                return httpx.Response(429, headers={"Retry-After": "0"})
            case Trouble.WEBHOOK if request.method == "POST":
                self.refused += 1
                return _status(500, "InternalError", "failed calling webhook: deadline exceeded")
            case Trouble.LOST_REPLIES if not watches:
                self.refused += 1
                self._answer(request)
                raise httpx.ReadError("connection reset", request=request)
            case Trouble.WATCH_CUT if watches:
                self.refused += 1
                raise httpx.ReadError("connection reset", request=request)
            case Trouble.WATCH_TOO_OLD if watches:
                self.refused += 1
                event = {"type": "ERROR", "object": {"kind": "Status", "code": 410}}
                return httpx.Response(200, content=json.dumps(event))
        return httpx.Response(200, stream=Watch(self._cut)) if watches else self._answer(request)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        if "/namespaces/bots/" in request.url.path:
            return self._answer_in_namespace(request)
        if request.url.path == "/version":
            return httpx.Response(200, json={"gitVersion": "v1.20.2"})
        return _status(403, "Forbidden", "cannot get resource at the cluster scope")

    def _answer_in_namespace(self, request: httpx.Request) -> httpx.Response:
        kind, _, rest = request.url.path.split("/namespaces/bots/", 1)[1].partition("/")
        name, _, part = rest.partition("/")
        if part == "log":
            return httpx.Response(200, text="")
        if not name and request.method == "GET":
            chosen = request.url.params.get("labelSelector", "")
            items = [
                found
                for (each, _), found in self.objects.items()
                if each == kind and _chosen(found, chosen)
            ]
            return httpx.Response(
                200, json={"metadata": {"resourceVersion": self._version()}, "items": items}
            )
        body = json.loads(request.content or b"{}")
        if request.method == "POST":
            return self._create(kind, body, dry_run="dryRun" in request.url.params)
        if (found := self.objects.get((kind, name))) is None:
            return _status(404, "NotFound", f'{kind} "{name}" not found')
        if request.method == "DELETE":
            return self._delete(kind, found, body)
        if request.method == "PATCH":
            found["metadata"] |= body["metadata"]
            self._forget(kind, found)
        return httpx.Response(200, json=found)

    def _version(self) -> str:
        return str(next(self._numbers))

    def _create(self, kind: str, made: Object, *, dry_run: bool) -> httpx.Response:
        self.admit(made)
        metadata = made["metadata"]
        name = metadata["name"]
        if (kind, name) in self.objects:
            return _status(409, "AlreadyExists", f'{kind} "{name}" already exists')
        if dry_run:
            return httpx.Response(201, json=made)
        metadata |= {
            "uid": f"uid-{self._version()}",
            "resourceVersion": self._version(),
            "creationTimestamp": datetime.now(UTC).isoformat(),
            "generation": 1,
        }
        if kind == "pods":
            self.made.append(name)
            made["spec"]["nodeName"] = "n1"
            running = {"name": "bot", "state": {"running": {}}}
            made["status"] = {"phase": "Running", "containerStatuses": [running]}
            if self.too_many:
                self.too_many -= 1
                made["status"] = {"phase": "Failed", "reason": "OutOfcpu", "message": "no cpu"}
        self.objects[kind, name] = made
        return httpx.Response(201, json=made)

    def _delete(self, kind: str, found: Object, body: Object) -> httpx.Response:
        metadata = found["metadata"]
        if body["preconditions"]["uid"] != metadata["uid"]:
            return _status(409, "Conflict", "the UID in the precondition does not match")
        self.deletions.append((kind, metadata["name"]))
        metadata |= {
            "deletionTimestamp": "2000-01-01T00:00:00Z",
            "deletionGracePeriodSeconds": body.get("gracePeriodSeconds"),
            "resourceVersion": self._version(),
        }
        if kind == "pods" and "containerStatuses" in found["status"]:
            ended = {"terminated": {"exitCode": 0, "reason": "Completed"}}
            found["status"]["containerStatuses"] = [{"name": "bot", "state": ended}]
        self._forget(kind, found)
        return httpx.Response(200, json={"kind": "Pod", **found})

    def _forget(self, kind: str, found: Object) -> None:
        """Remove what is deleted and has no finalizer any more."""
        metadata = found["metadata"]
        if "deletionTimestamp" in metadata and not metadata.get("finalizers"):
            self.objects.pop((kind, metadata["name"]), None)


def _chosen(found: Object, selector: str) -> bool:
    """Whether an object has each label of a selector, with its value if it names one."""
    labels = found["metadata"].get("labels") or {}
    wanted = (each.partition("=") for each in selector.split(",") if each)
    return all(
        labels.get(key) == value if equals else key in labels for key, equals, value in wanted
    )


def _status(code: int, reason: str, message: str) -> httpx.Response:
    return httpx.Response(
        code, json={"kind": "Status", "code": code, "reason": reason, "message": message}
    )
