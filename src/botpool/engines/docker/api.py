"""Single calls to the Docker Engine API of one host: what aiodocker leaves to its callers.

They raise aiodocker's `DockerError` and the errors of its connection. `mapped_errors` is the one
place that turns these into ours.
"""

from __future__ import annotations

import os
import re
import ssl
import struct
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson
from aiodocker import Docker, DockerError

from botpool.engines.base import PullProgress
from botpool.engines.images import read_image
from botpool.errors import EngineRefused, EngineUnavailable, HostUnreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

ANSWER_SECONDS = 30

BAD_REQUEST = 400
NOT_FOUND = 404
CONFLICT = 409
_UNAUTHORIZED = 401
DENIED = frozenset({_UNAUTHORIZED, 403})
_NOT_NOW = frozenset({408, 429})
_SERVER_ERROR = 500
_NO_STATUS = 0

_ANSWER = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
# A pull may take as long as it needs. It is only given up if nothing arrives for long.
_PULL = aiohttp.ClientTimeout(total=None, sock_connect=ANSWER_SECONDS, sock_read=600)

_NO_NAME_GIVEN = "no basic auth credentials"
"""What Docker says, as a server error, of a registry that wants a name and gets none."""

# What a registry answers in place of an image. Neither Docker nor Podman passes on its status, but
# both pass on its code, such as `manifest unknown`.
_REFUSED_BY_REGISTRY = re.compile(
    rf"{_NO_NAME_GIVEN}|\b(?:unauthorized|denied|manifest unknown|name unknown): "
)

_FRAME = struct.Struct(">BxxxL")  # the head of a log's frame: which output, how many bytes


@contextmanager
def mapped_errors(host: str) -> Iterator[None]:
    """Turn the errors of a host into ours, by their status, never by their text."""
    try:
        yield
    except DockerError as error:
        refused = BAD_REQUEST <= error.status < _SERVER_ERROR and error.status not in _NOT_NOW
        ours = EngineRefused if refused else EngineUnavailable
        raise ours(f"Docker on {host}: {' '.join(error.message.split())}") from error
    except TimeoutError as error:
        raise HostUnreachable(f"Docker on {host} did not answer in time.") from error
    except (aiohttp.ClientError, OSError) as error:
        raise HostUnreachable(f"Docker on {host} doesn't answer: {error}") from error
    except (KeyError, TypeError, ValueError, struct.error) as error:
        raise EngineUnavailable(f"The server that answers on {host} is not Docker.") from error


def open_client(address: str | None, version: str = "auto") -> Docker:
    """A client for an address. It asks for the API's version first, unless that is given.

    With `DOCKER_CERT_PATH`, tcp means TLS, and both sides verify each other.
    """
    context = None
    certificates = os.environ.get("DOCKER_CERT_PATH")
    if address and address.startswith("tcp://") and certificates:
        folder = Path(certificates)
        context = ssl.create_default_context(cafile=folder / "ca.pem")
        context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
        address = f"https://{address.removeprefix('tcp://')}"
    try:
        return Docker(address, ssl_context=context, timeout=_ANSWER, api_version=version)
    except (AssertionError, ImportError, TypeError, ValueError) as error:
        raise EngineUnavailable(
            "There is no Docker on this machine: start it, or set BOTPOOL_DOCKER_HOSTS."
        ) from error


def is_podman(version: Mapping[str, Any]) -> bool:
    """Whether this is the version of a Podman."""
    parts = version.get("Components") or []
    return any("podman" in str(part.get("Name", "")).lower() for part in parts)


async def inspect(client: Docker, ref: str) -> dict[str, Any] | None:
    """What Docker says about the container with this name or full id, None if there is none."""
    try:
        found = await client.containers.container(ref).show()
    except DockerError as error:
        if error.status == NOT_FOUND:
            return None
        raise
    # Docker also accepts the beginning of an id.
    return found if ref in {found["Id"], found["Name"].removeprefix("/")} else None


async def start(address: str | None, version: str, identity: str) -> dict[str, Any] | None:
    """Start a container and return what Docker says about it then, None if it is gone.

    It opens a new connection, because a Docker that is shutting down accepts none. Over an old
    connection, such a Docker would start the container only to end it at once, or fail the start
    in one of many ways.
    """
    async with open_client(address, version) as client:
        try:
            await client.containers.container(identity).start()
        except DockerError as error:
            found = await inspect(client, identity)
            if found is None:
                return None
            # If Docker can't start a container, the status varies, but the state has an error.
            if not found["State"].get("Error"):
                raise
            raise DockerError(BAD_REQUEST, error.message) from error
        return await inspect(client, identity)


async def stop(client: Docker, identity: str, grace_seconds: int) -> None:
    """Ask a container to end, and return once it has ended, or was killed after the grace."""
    timeout = aiohttp.ClientTimeout(total=grace_seconds + ANSWER_SECONDS)
    try:
        await client.containers.container(identity).stop(t=grace_seconds, timeout=timeout)
    except DockerError as error:
        if error.status != NOT_FOUND:
            raise


async def delete(client: Docker, identity: str) -> None:
    """Remove a stopped container and its anonymous volumes."""
    try:
        await client.containers.container(identity).delete(v=True, timeout=_ANSWER)
    except DockerError as error:
        if error.status == CONFLICT:
            # Another removal of it is under way.
            raise DockerError(_NO_STATUS, error.message) from error
        if error.status != NOT_FOUND:
            raise


async def logs(client: Docker, identity: str, lines: int) -> list[str]:
    """The last lines of both outputs of a container, empty if it is gone."""
    # aiodocker's own reader drops what is not UTF-8, and doesn't say which output a part is from.
    query = {"stdout": "1", "stderr": "1", "tail": str(lines)}
    url = _url(client, f"containers/{identity}/logs")
    async with client.session.get(url, params=query, timeout=_ANSWER) as answer:
        if answer.status == NOT_FOUND:
            return []
        if not answer.ok:
            raise await _failure(answer)
        frames = await answer.read()
    return _lines(frames)[-lines:] if lines else []


def _lines(frames: bytes) -> list[str]:
    """The lines in the frames of a log. A long line may be split over several frames."""
    lines: list[bytes] = []
    begun: dict[int, bytes] = {}
    position = 0
    while position < len(frames):
        output, size = _FRAME.unpack_from(frames, position)
        position += _FRAME.size
        text = begun.pop(output, b"") + frames[position : position + size]
        *whole, rest = text.split(b"\n")
        lines += whole
        if rest:
            begun[output] = rest
        position += size
    return [line.decode(errors="replace") for line in [*lines, *begun.values()]]


async def has_image(client: Docker, image: str) -> bool:
    """Whether an image is on the host. Doesn't ask a registry."""
    try:
        await client.images.inspect(image)
    except DockerError as error:
        if error.status == NOT_FOUND:
            return False
        raise
    return True


async def pull(
    client: Docker, image: str, auth: str | None, progress: Callable[[PullProgress], None]
) -> None:
    """Fetch an image from its registry. If cancelled, it disconnects, which makes Docker stop."""
    query = {"fromImage": image}
    found = read_image(image)
    if found is None:
        raise EngineRefused(f"{image} is not the name of an image.")
    if found.tag is None and found.digest is None:
        query["tag"] = "latest"  # without a tag, Docker pulls all of them
    headers = {"X-Registry-Auth": auth} if auth else {}
    # aiodocker's own pull takes a lost connection for success, and doesn't disconnect if cancelled.
    url = _url(client, "images/create")
    async with client.session.post(url, params=query, headers=headers, timeout=_PULL) as answer:
        if answer.ok:
            await _follow(answer, progress)
            return
        failure = await _failure(answer)
    if failure.status >= _SERVER_ERROR and not _refuses(failure.message):
        # In a pull, a registry's denial looks like any server error; this call tells it apart.
        asked = await ask_registry(client, image, auth)
        if asked is not None and asked.status in DENIED:
            raise DockerError(asked.status, failure.message) from failure
    raise _pull_failure(failure.status, failure.message) from failure


async def ask_registry(client: Docker, image: str, auth: str | None) -> DockerError | None:
    """Let a host ask the registry for an image, and return why that failed, None if it is there.

    The status is `NOT_FOUND` if the registry doesn't have it, and in `DENIED` if the credentials
    don't open it. Podman can't do this.
    """
    headers = {"X-Registry-Auth": auth} if auth else {}
    url = _url(client, f"distribution/{image}/json")
    async with client.session.get(url, headers=headers, timeout=_ANSWER) as answer:
        if answer.ok:
            return None
        failure = await _failure(answer)
    denied = _NO_NAME_GIVEN in failure.message
    return DockerError(_UNAUTHORIZED, failure.message) if denied else failure


async def _follow(answer: aiohttp.ClientResponse, progress: Callable[[PullProgress], None]) -> None:
    layers: dict[str, tuple[int, int]] = {}
    async for line in answer.content:
        event: Mapping[str, Any] = orjson.loads(line)
        if "error" in event:
            raise _pull_failure(_NO_STATUS, event["error"])
        match event.get("progressDetail"):
            case {"current": int(current), "total": int(total)}:
                # While a layer is unpacked, Docker counts it from 0 again.
                layer = layers.get(event["id"], (0, 0))
                layers[event["id"]] = max(layer[0], current), max(layer[1], total)
                done, whole = zip(*layers.values(), strict=True)
                progress(PullProgress(current=sum(done), total=sum(whole)))


def _refuses(message: str) -> bool:
    return _REFUSED_BY_REGISTRY.search(message) is not None


def _pull_failure(status: int, message: str) -> DockerError:
    """The error of a pull: a refusal, if the registry won't or can't give the image."""
    return DockerError(NOT_FOUND if _refuses(message) else status, message)


def _url(client: Docker, path: str) -> str:
    """The URL that aiodocker itself would call. Its first call has learned the version."""
    return f"{client.docker_host}/{client.api_version}/{path}"


async def _failure(answer: aiohttp.ClientResponse) -> DockerError:
    """The error in Docker's answer."""
    said = await answer.text(errors="replace")
    try:
        message = str(orjson.loads(said)["message"])
    except (KeyError, TypeError, orjson.JSONDecodeError):
        message = said
    return DockerError(answer.status, message)
