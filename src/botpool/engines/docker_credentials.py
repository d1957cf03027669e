"""The credentials for registries that `docker login` has left, read as Docker's own client does.

    $DOCKER_CONFIG/config.json, or ~/.docker/config.json
        credHelpers   a program a registry
        credsStore    a program for every other one
        auths         without any program: name and password, or a token

No error and no log line has a secret, or anything that a program has said, in it.
"""

from __future__ import annotations

import asyncio
import base64
import os
from pathlib import Path
from typing import Any

import orjson

from botpool.errors import EngineRefused, EngineUnavailable

_HUB = "https://index.docker.io/v1/"
_HUB_HOSTS = frozenset({"docker.io", "index.docker.io", "registry-1.docker.io"})
_HELPER_SECONDS = 30
# What a program answers for a registry that it knows nothing of: a part of its protocol.
_NOT_FOUND = b"credentials not found in native keychain"
# The name that goes with a token instead of a password, likewise.
_TOKEN = "<token>"  # noqa: S105 - says that a token follows, and is none


async def registry_header(image: str) -> str | None:
    """The header `X-Registry-Auth` with which an image is pulled; None to pull it without a name.

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
    """What Docker keeps the credentials of an image's registry by."""
    first, slash, _ = image.partition("/")
    is_host = slash and ("." in first or ":" in first or first == "localhost")
    return first if is_host and first not in _HUB_HOSTS else _HUB


def _host(server: str) -> str:
    """The host of a registry, in whichever way the file names it."""
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
        raise EngineRefused(f"The credentials of {_host(server)} can't be read: log in again.")
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
            f"Docker's configuration names {program}, which can't be run: {error.strerror}."
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
        # The error itself has the secret in it.
        raise EngineUnavailable(f"{program} did not answer with credentials.") from None
    if username == _TOKEN:
        return {"identitytoken": secret}
    return {"username": username, "password": secret}
