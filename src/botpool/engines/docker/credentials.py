"""The registry credentials that `docker login` stored, read as Docker's own client does.

    $DOCKER_CONFIG/config.json, or ~/.docker/config.json
        credHelpers   a program for each of some registries
        credsStore    a program for every other registry
        auths         without a program: name and password, or a token

No error and no log line contains a secret, or the output of a program.
"""

from __future__ import annotations

import asyncio
import base64
import os
from pathlib import Path
from typing import Any

import orjson

from botpool.engines.images import read_image
from botpool.errors import EngineRefused, EngineUnavailable

_HUB = "https://index.docker.io/v1/"
_HUB_HOSTS = frozenset({"docker.io", "index.docker.io", "registry-1.docker.io"})
_HELPER_SECONDS = 30
# What a program answers for a registry that it doesn't know: part of the protocol.
_NOT_FOUND = b"credentials not found in native keychain"
# The name that goes with a token in place of a password: part of the protocol, too.
_TOKEN = "<token>"  # noqa: S105 - it says that a token follows, it isn't one


async def registry_header(image: str) -> str | None:
    """The header `X-Registry-Auth` for pulling an image; None to pull it anonymously.

    Raises `EngineRefused` if the file or a program in it can't be used, and `EngineUnavailable` if
    the program fails.
    """
    server = _server(image)
    config = _config()
    helpers = {_host(key): helper for key, helper in config.get("credHelpers", {}).items()}
    helper = helpers.get(_host(server)) or config.get("credsStore")
    credentials = await _asked(helper, server) if helper else _kept(config, server)
    if not credentials:
        return None
    return base64.urlsafe_b64encode(orjson.dumps({**credentials, "serveraddress": server})).decode()


def _server(image: str) -> str:
    """The name under which Docker stores the credentials of an image's registry."""
    found = read_image(image)
    if found is None:
        raise EngineRefused(f"{image} is not the name of an image.")
    registry = found.registry
    return _HUB if registry is None or registry in _HUB_HOSTS else registry


def _host(server: str) -> str:
    """The host of a registry, however the file names it."""
    host = server.rpartition("://")[2].partition("/")[0]
    return "index.docker.io" if host in _HUB_HOSTS else host


def _config() -> dict[str, Any]:
    folder = os.environ.get("DOCKER_CONFIG")
    path = (Path(folder) if folder else Path.home() / ".docker") / "config.json"
    try:
        config = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise EngineRefused(f"{path} can't be read: {error.strerror}.") from error
    except orjson.JSONDecodeError:
        config = None
    if not isinstance(config, dict):
        raise EngineRefused(f"{path} is not a JSON object.")
    return config


def _kept(config: dict[str, Any], server: str) -> dict[str, str] | None:
    """The credentials in the file itself."""
    entries: dict[str, dict[str, str]] = config.get("auths", {})
    by_host = {_host(key): entry for key, entry in entries.items()}
    entry = entries.get(server) or by_host.get(_host(server)) or {}
    if token := entry.get("identitytoken"):
        return {"identitytoken": token}
    if not (auth := entry.get("auth")):
        return None
    try:
        username, colon, password = base64.b64decode(auth).decode().partition(":")
    except ValueError:
        colon = ""
    if not colon:
        raise EngineRefused(
            f"The credentials of {_host(server)} can't be read: run `docker login` again."
        )
    return {"username": username, "password": password.rstrip("\0")}


async def _asked(helper: str, server: str) -> dict[str, str] | None:
    """The credentials that a program keeps."""
    program = f"docker-credential-{helper}"
    try:
        process = await asyncio.create_subprocess_exec(
            program,
            "get",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError as error:
        raise EngineRefused(
            f"Docker's configuration names {program}, but it can't be run: {error.strerror}."
        ) from error
    try:
        async with asyncio.timeout(_HELPER_SECONDS):
            said, _ = await process.communicate(server.encode())
    except TimeoutError:
        raise EngineUnavailable(f"{program} did not answer in time.") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        if said.strip() == _NOT_FOUND:
            return None
        raise EngineUnavailable(f"{program} failed with exit code {process.returncode}.")
    return _answered(program, said)


def _answered(program: str, said: bytes) -> dict[str, str]:
    try:
        answer = orjson.loads(said)
        username, secret = answer["Username"], answer["Secret"]
    except (KeyError, TypeError, orjson.JSONDecodeError):
        # The error itself contains the secret.
        raise EngineUnavailable(f"{program} did not answer with credentials.") from None
    if username == _TOKEN:
        return {"identitytoken": secret}
    return {"username": username, "password": secret}
