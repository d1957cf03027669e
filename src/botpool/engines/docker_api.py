"""Single calls to the Docker Engine API of one host: what aiodocker leaves to its callers.

They raise aiodocker's `DockerError` and whatever its connection raises. `mapped_errors` is the one
place where these become ours.
"""

from __future__ import annotations

import os
import ssl
import struct
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson
from aiodocker import Docker, DockerError

from botpool.engines.base import PullProgress
from botpool.errors import EngineRefused, EngineUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

ANSWER_SECONDS = 30

BAD_REQUEST = 400
NOT_FOUND = 404
CONFLICT = 409
_DENIED = frozenset({401, 403})
_NOT_NOW = frozenset({408, 429})
_SERVER_ERROR = 500
_NO_STATUS = 0

_ANSWER = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
# A pull takes as long as it takes; only one that has gone silent is given up.
_PULL = aiohttp.ClientTimeout(total=None, sock_connect=ANSWER_SECONDS, sock_read=600)

_FRAME = struct.Struct(">BxxxL")  # of a log: which output, how many bytes


@contextmanager
def mapped_errors(host: str) -> Iterator[None]:
    """Turn what goes wrong with a host into our errors, by status, never by what it says."""
    try:
        yield
    except DockerError as error:
        refused = BAD_REQUEST <= error.status < _SERVER_ERROR and error.status not in _NOT_NOW
        ours = EngineRefused if refused else EngineUnavailable
        raise ours(f"Docker on {host}: {' '.join(error.message.split())}") from error
    except TimeoutError as error:
        raise EngineUnavailable(f"Docker on {host} did not answer in time.") from error
    except (aiohttp.ClientError, OSError) as error:
        raise EngineUnavailable(f"Docker on {host} does not answer: {error}") from error
    except (KeyError, TypeError, ValueError, struct.error) as error:
        raise EngineUnavailable(f"What answers for Docker on {host} is not Docker.") from error


def open_client(address: str | None, version: str = "auto") -> Docker:
    """The client of an address, which asks for the API's version first unless that is known.

    With `DOCKER_CERT_PATH`, tcp is TLS, and both ends are verified.
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
            "No Docker is found here: start it, or set BOTPOOL_DOCKER_HOSTS."
        ) from error


async def inspect(client: Docker, ref: str) -> dict[str, Any] | None:
    """What Docker says of the container with this name or whole id, None if there is none."""
    try:
        found = await client.containers.container(ref).show()
    except DockerError as error:
        if error.status == NOT_FOUND:
            return None
        raise
    # Docker takes the beginning of an id as well.
    return found if ref in {found["Id"], found["Name"].removeprefix("/")} else None


async def start(address: str | None, version: str, identity: str) -> dict[str, Any] | None:
    """Start a container and return what Docker says of it then, None if it is gone.

    Over a connection of its own: a Docker that shuts down takes no new ones. Over one that it has,
    it would start the container and end it with the others, or say in many ways that it can't.
    """
    async with open_client(address, version) as client:
        try:
            await client.containers.container(identity).start()
        except DockerError as error:
            found = await inspect(client, identity)
            if found is None:
                return None
            # Docker has many a status for what it can't start, and one place where it says so.
            if not found["State"].get("Error"):
                raise
            raise DockerError(BAD_REQUEST, error.message) from error
        return await inspect(client, identity)


async def stop(client: Docker, identity: str, grace_seconds: int) -> None:
    """Ask a container to end, and return when it has, or was forced to after the grace."""
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
            # Somebody else removes it, and is not done.
            raise DockerError(_NO_STATUS, error.message) from error
        if error.status != NOT_FOUND:
            raise


async def logs(client: Docker, identity: str, lines: int) -> list[str]:
    """The last lines of both outputs of a container, empty if it is gone."""
    # aiodocker's own reader leaves out what is not UTF-8, and which output a part belongs to.
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
    """The lines in the frames of a log. A long line comes in several, maybe with others between."""
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
    """Whether an image is on the host. No registry is asked."""
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
    """Fetch an image from its registry. Cancelled, it hangs up, which makes Docker stop."""
    query = {"fromImage": image}
    if not {":", "@"} & set(image.rpartition("/")[2]):
        query["tag"] = "latest"  # without one, Docker pulls them all
    headers = {"X-Registry-Auth": auth} if auth else {}
    # aiodocker's own pull takes a lost connection for the end, and does not hang up when cancelled.
    url = _url(client, "images/create")
    async with client.session.post(url, params=query, headers=headers, timeout=_PULL) as answer:
        if answer.ok:
            await _follow(answer, progress)
            return
        failure = await _failure(answer)
    if failure.status >= _SERVER_ERROR:
        # A registry that denies is an error of the server's in a pull, and told apart only here.
        url = _url(client, f"distribution/{image}/json")
        async with client.session.get(url, headers=headers, timeout=_ANSWER) as answer:
            if answer.status in _DENIED:
                raise DockerError(answer.status, failure.message) from failure
    raise failure


async def _follow(answer: aiohttp.ClientResponse, progress: Callable[[PullProgress], None]) -> None:
    layers: dict[str, tuple[int, int]] = {}
    async for line in answer.content:
        event: Mapping[str, Any] = orjson.loads(line)
        if "error" in event:
            raise DockerError(_NO_STATUS, event["error"])
        match event.get("progressDetail"):
            case {"current": int(current), "total": int(total)}:
                # A layer is counted from nothing again while it is unpacked.
                layer = layers.get(event["id"], (0, 0))
                layers[event["id"]] = max(layer[0], current), max(layer[1], total)
                done, whole = zip(*layers.values(), strict=True)
                progress(PullProgress(current=sum(done), total=sum(whole)))


def _url(client: Docker, path: str) -> str:
    """Where aiodocker itself would send a call, once its first one has learned the version."""
    return f"{client.docker_host}/{client.api_version}/{path}"


async def _failure(answer: aiohttp.ClientResponse) -> DockerError:
    """What Docker says instead of doing what was asked."""
    said = await answer.text(errors="replace")
    try:
        message = str(orjson.loads(said)["message"])
    except (KeyError, TypeError, orjson.JSONDecodeError):
        message = said
    return DockerError(answer.status, message)
