"""How a cluster is reached, and who we are there.

A pod in the cluster has a token of its service account in a file, which is renewed there: it is
read again. A kubeconfig names a server and a user: a token, a file with one, a certificate, a name
and password, or a program that prints credentials (an exec plugin), which is run again when they
expire.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
import ssl
import tempfile
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
import yaml

from botpool.errors import EngineUnavailable, SettingsInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

_READ_AGAIN_SECONDS = 60.0
_EARLY_SECONDS = 60.0
"""Credentials are renewed so long before they expire."""
_PLUGIN_SECONDS = 60.0


class Certificate(NamedTuple):
    """A client's certificate and its key, as PEM."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class Credentials:
    """What proves who we are: a header, a certificate, both, or nothing."""

    header: str | None = None
    certificate: Certificate | None = None
    expires_at: float | None = None
    """When they must be renewed, by this machine's clock."""


class User:
    """Whose credentials are used. They are kept until they expire or are refused."""

    def __init__(self, settings: Mapping[str, Any], folder: Path, cluster: Mapping[str, Any]):
        self._settings = settings
        self._folder = folder
        self._cluster = cluster
        self._known: Credentials | None = None
        self._renewing = asyncio.Lock()

    async def credentials(self) -> Credentials:
        """The credentials that are in force now. Raises `EngineUnavailable`."""
        async with self._renewing:
            known = self._known
            if known is None or (known.expires_at is not None and time.time() >= known.expires_at):
                self._known = known = await self._read()
        return known

    def refused(self, credentials: Credentials) -> None:
        """Forget credentials that the server doesn't take any more."""
        if self._known is credentials:
            self._known = None

    async def _read(self) -> Credentials:
        user = self._settings
        if "exec" in user:
            return await _from_plugin(user["exec"], self._folder, self._cluster)
        certificate = None
        pem = _content(user, "client-certificate", self._folder)
        key = _content(user, "client-key", self._folder)
        if pem is not None and key is not None:
            certificate = Certificate(pem, key)
        if "tokenFile" in user:
            token = _read_file(self._folder / user["tokenFile"]).decode().strip()
            return Credentials(f"Bearer {token}", certificate, time.time() + _READ_AGAIN_SECONDS)
        if "token" in user:
            return Credentials(f"Bearer {user['token']}", certificate)
        if "username" in user:
            pair = f"{user['username']}:{user.get('password', '')}".encode()
            return Credentials(f"Basic {base64.b64encode(pair).decode()}", certificate)
        return Credentials(None, certificate)


@dataclass(frozen=True, slots=True)
class Access:
    """A namespace of a cluster, and whose credentials open it."""

    server: str
    namespace: str
    user: User
    authority: bytes | None = None
    """The certificates, as PEM, that the server's must be signed by; this machine's if None."""
    verify: bool = True
    server_name: str | None = None

    def tls(self, certificate: Certificate | None) -> ssl.SSLContext:
        """How connections to the server are made. Raises `EngineUnavailable`."""
        try:
            data = self.authority.decode() if self.authority else None
            context = ssl.create_default_context(cadata=data)
            if not self.verify:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            if certificate is not None:
                # Python takes them from a file only.
                with tempfile.NamedTemporaryFile() as file:
                    file.write(certificate.certificate + b"\n" + certificate.key)
                    file.flush()
                    context.load_cert_chain(file.name)
        except (ValueError, OSError) as error:  # ssl.SSLError is an OSError
            raise EngineUnavailable(
                f"The certificates of a cluster can't be used: {error}."
            ) from None
        return context


def in_cluster(namespace: str | None, folder: Path = SERVICE_ACCOUNT) -> Access:
    """The cluster that this process runs in. Raises `SettingsInvalid` if it runs in none."""
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{what}") for what in ("HOST", "PORT"))
    if not host or not (folder / "token").exists():
        raise SettingsInvalid(
            "BOTPOOL_KUBERNETES_CLUSTERS must be set, because botpool doesn't run in a cluster."
        )
    try:
        authority = (folder / "ca.crt").read_bytes()
        namespace = namespace or (folder / "namespace").read_text().strip()
    except OSError as error:
        raise SettingsInvalid(f"{error.filename} can't be read: {error.strerror}.") from None
    address = f"[{host}]" if ":" in host else host
    user = User({"tokenFile": str(folder / "token")}, folder, {})
    return Access(f"https://{address}:{port or 443}", namespace, user, authority)


def from_kubeconfig(path: Path, context: str | None, namespace: str | None) -> Access:
    """What a context of a kubeconfig names, its current one by default.

    Raises `SettingsInvalid`, which shows nothing of the file but names.
    """
    try:
        config = yaml.safe_load(path.read_text("utf-8"))
    except OSError as error:
        raise SettingsInvalid(f"{path} can't be read: {error.strerror}.") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise SettingsInvalid(f"{path} is not YAML.") from None
    if not isinstance(config, dict):
        raise SettingsInvalid(f"{path} is not a kubeconfig.")
    named = _named(config, "contexts", "context", context or config.get("current-context"), path)
    cluster = _named(config, "clusters", "cluster", named.get("cluster"), path)
    user = _named(config, "users", "user", named.get("user"), path) if "user" in named else {}
    if not isinstance(server := cluster.get("server"), str):
        raise SettingsInvalid(f"{path} names no server.")
    folder = path.absolute().parent
    try:
        authority = _content(cluster, "certificate-authority", folder)
    except EngineUnavailable as error:
        raise SettingsInvalid(str(error)) from None
    return Access(
        server.rstrip("/"),
        namespace or named.get("namespace") or "default",
        User(user, folder, cluster),
        authority,
        verify=not cluster.get("insecure-skip-tls-verify", False),
        server_name=cluster.get("tls-server-name"),
    )


def _named(
    config: Mapping[str, Any], list_: str, key: str, name: object, path: Path
) -> dict[str, Any]:
    """The entry of a kubeconfig's list with this name."""
    if not name:
        raise SettingsInvalid(f"{path} names no {key}: add one after a `#`.")
    for entry in config.get(list_) or []:
        if isinstance(entry, dict) and entry.get("name") == name:
            return entry.get(key) or {}
    raise SettingsInvalid(f"{path} has no {key} named {name}.")


def _content(table: Mapping[str, Any], key: str, folder: Path) -> bytes | None:
    """What a kubeconfig has in it (`key-data`), or in the file that it names (`key`)."""
    if data := table.get(f"{key}-data"):
        try:
            return base64.b64decode(data, validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise EngineUnavailable(f"A kubeconfig's {key}-data is not base64.") from None
    return _read_file(folder / table[key]) if table.get(key) else None


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise EngineUnavailable(f"{path} can't be read: {error.strerror}.") from None


async def _from_plugin(
    plugin: Mapping[str, Any], folder: Path, cluster: Mapping[str, Any]
) -> Credentials:
    """Run a program that prints credentials. Its words are never shown: they may be secret."""
    program = str(plugin.get("command"))
    if "/" in program:
        program = str(folder / program)
    version = plugin.get("apiVersion") or "client.authentication.k8s.io/v1"
    spec: dict[str, Any] = {"interactive": False}
    if plugin.get("provideClusterInfo"):
        names = (
            "server",
            "tls-server-name",
            "insecure-skip-tls-verify",
            "certificate-authority-data",
        )
        spec["cluster"] = {name: cluster[name] for name in names if name in cluster}
    asked = {"apiVersion": version, "kind": "ExecCredential", "spec": spec}
    environment = {
        **os.environ,
        **{each["name"]: each["value"] for each in plugin.get("env") or []},
        "KUBERNETES_EXEC_INFO": orjson.dumps(asked).decode(),
    }
    try:
        process = await asyncio.create_subprocess_exec(
            program,
            *(plugin.get("args") or []),
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError as error:
        raise EngineUnavailable(f"{program} can't be run: {error.strerror}.") from error
    try:
        async with asyncio.timeout(_PLUGIN_SECONDS):
            said, _ = await process.communicate()
    except TimeoutError:
        raise EngineUnavailable(f"{program} did not answer in time.") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise EngineUnavailable(f"{program} failed with exit code {process.returncode}.")
    return _answered(program, said)


def _answered(program: str, said: bytes) -> Credentials:
    try:
        status = orjson.loads(said)["status"]
        token, expires = status.get("token"), status.get("expirationTimestamp")
        certificate, key = status.get("clientCertificateData"), status.get("clientKeyData")
        expires_at = expires and datetime.fromisoformat(expires).timestamp() - _EARLY_SECONDS
    except (AttributeError, KeyError, TypeError, ValueError):
        # The error itself may contain the secret.
        raise EngineUnavailable(f"{program} did not answer with credentials.") from None
    pair = Certificate(certificate.encode(), key.encode()) if certificate and key else None
    return Credentials(f"Bearer {token}" if token else None, pair, expires_at)
