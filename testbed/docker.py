"""Real container engines and a real registry, each run from the machine's own programs.

    async with docker_daemon(folder) as daemon, registry(folder / "registry") as store:
        await load(daemon, busybox_image(folder / "bot.tar", BOT_IMAGE))
        await push(daemon, BOT_IMAGE, f"{store.address}/bot:1")

Every server is on a unix socket or on a free port of the loopback address, keeps its files in the
folder that it is given, and ends with its context. The process that starts it must have left the
machine's network, as `testbed.network` says. No image comes from outside: they are made here, from
the machine's static busybox.
"""

# ruff: noqa: ASYNC240 - its files are small, and on this machine

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import platform
import re
import shutil
import tarfile
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from ipaddress import IPv4Interface
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiodocker
import aiohttp
import psutil
import pytest

from testbed.network import has_left_machine_network

if TYPE_CHECKING:
    import signal
    from collections.abc import AsyncIterator, Mapping, Sequence

BOT_IMAGE = "botpool-test/bot:1"
USERNAME = "bot"
PASSWORD = "correct-horse"  # noqa: S105 - of a registry that lives as long as a test
_HTPASSWD = f"{USERNAME}:$2y$05$abcdefghijklmnopqrstuuZ0Fx87Pb/Aqb0E90lfvCwzXnaFKUHpS\n"

_PACKAGES = {
    "busybox": "busybox-static",
    "caddy": "caddy",
    "containerd": "containerd",
    "docker": "docker.io",
    "docker-compose": "docker-compose",
    "docker-init": "docker.io",
    "docker-registry": "docker-registry",
    "dockerd": "docker.io",
    "etcd": "etcd-server",
    "ip": "iproute2",
    "iptables": "iptables",
    "nginx": "nginx-light",
    "openssl": "openssl",
    "podman": "podman",
    "runc": "runc",
}
_END_SECONDS = 30

BOT = r"""#!/bin/sh
# What a container of the tests does, as TEST_BEHAVIOUR says. Each says a word once it is ready.
until_asked() {
  # A signal interrupts `wait` at once, and `sleep` not before it is over.
  while :; do sleep 3600 & wait $!; done
}
deaf() {
  trap '' TERM
  while :; do sleep 3600; done
}
trap 'exit 0' TERM
case "$TEST_BEHAVIOUR" in
  run) echo hello; until_asked ;;
  exit:*) echo bye; exit "${TEST_BEHAVIOUR#exit:}" ;;
  ignore) trap '' TERM; echo deaf; deaf ;;
  children) deaf & echo parent; until_asked ;;
  write)
    if [ -e /left-behind ]; then echo "found left-behind"; fi
    echo something > /left-behind
    env
    until_asked ;;
esac
wget -q -O - --header "Authorization: Bearer $BOTPOOL_SLOT_TOKEN" \
  --header 'Content-Type: application/json' --post-data '{}' \
  "$BOTPOOL_URL/api/v1/runtime/claim" & wait $!
echo "claimed: $?"
until_asked
"""


def need(*programs: str) -> None:
    """Skip the test where it can't run, and say what to install. In CI a skip is a failure."""
    if not has_left_machine_network():
        pytest.skip("container engines are started for real: needs root, and a network of its own")
    if missing := [_PACKAGES[program] for program in programs if not shutil.which(program)]:
        pytest.skip(f"needs other programs: apt-get install {' '.join(missing)}")


class Output:
    """The lines that a server has written so far."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._over = False
        self._news = asyncio.Condition()

    async def follow(self, reader: asyncio.StreamReader) -> None:
        """Take down its lines until it ends."""
        while line := await reader.readline():
            async with self._news:
                self.lines.append(line.decode(errors="replace").rstrip("\n"))
                self._news.notify_all()
        async with self._news:
            self._over = True
            self._news.notify_all()

    async def said(self, pattern: str) -> re.Match[str]:
        """Wait for a line that matches. Raises if the server ends before it says that."""
        position = 0
        async with self._news:
            while True:
                for line in self.lines[position:]:
                    if found := re.search(pattern, line):
                        return found
                position = len(self.lines)
                if self._over:
                    raise RuntimeError("\n".join(["it ended too early:", *self.lines[-20:]]))
                await self._news.wait()


@asynccontextmanager
async def server_program(
    folder: Path, *command: str, environment: Mapping[str, str] | None = None
) -> AsyncIterator[Output]:
    """Run a program in a folder until the end of the context, and stop it by its process id."""
    output = Output()
    # A pipe of our own, because what the program leaves behind may hold its end of it open.
    read, write = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=folder,
            env={**os.environ, **(environment or {})},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=write,
            stderr=write,
        )
    finally:
        os.close(write)
    reader = asyncio.StreamReader(limit=2**24)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read, "rb")
    )
    following = asyncio.create_task(output.follow(reader))
    try:
        yield output
    finally:
        if process.returncode is None:
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), _END_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()
        transport.close()
        following.cancel()
        await asyncio.wait({following})


@dataclass(frozen=True)
class Daemon:
    """A Docker Engine API to talk to."""

    address: str
    output: Output
    folder: Path

    @asynccontextmanager
    async def client(self) -> AsyncIterator[aiodocker.Docker]:
        """A client of its own, closed at the end of the context."""
        async with aiodocker.Docker(self.address) as client:
            yield client


@asynccontextmanager
async def docker_daemon(
    folder: Path, bridge_ip: str | None = None, *options: str
) -> AsyncIterator[Daemon]:
    """A dockerd of its own, with further options. Several run at once, each one a host.

    Without `bridge_ip`, such as 172.30.0.1/24, it has no bridge: its containers use the network of
    this process, so they reach what listens on the loopback address. It has no firewall, so a
    bridge leads to this network and no further.
    """
    async with (
        _bridge(bridge_ip) as bridge,
        _unmounted(folder),
        _dockerd(folder, bridge, *options) as daemon,
    ):
        yield daemon


@asynccontextmanager
async def _dockerd(folder: Path, bridge: str, *options: str) -> AsyncIterator[Daemon]:
    need("dockerd", "docker-init", "runc")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "daemon.json").write_text("{}")
    socket = folder / "docker.sock"
    command = (
        "dockerd",
        *("--config-file", str(folder / "daemon.json"), "--pidfile", str(folder / "pid")),
        *("--data-root", str(folder / "data"), "--exec-root", str(folder / "exec")),
        *("--host", f"unix://{socket}", "--storage-driver", "overlay2", "--bridge", bridge),
        *("--iptables=false", "--ip6tables=false", "--ip-forward=false"),
        *("--userland-proxy=false", "--shutdown-timeout", "1", *options),
    )
    async with server_program(folder, *command) as output:
        await output.said("API listen on /")
        yield Daemon(f"unix://{socket}", output, folder)


@dataclass(frozen=True)
class RestartableDaemon(Daemon):
    """A Docker without a bridge that can be ended by a signal, and comes back to what it left."""

    options: tuple[str, ...]
    run: AsyncExitStack

    async def restart(self, number: signal.Signals) -> None:
        """End it by this signal, and return when it answers again."""
        os.kill(int((self.folder / "pid").read_text()), number)
        await self.run.aclose()
        await self.run.enter_async_context(_dockerd(self.folder, "none", *self.options))


@asynccontextmanager
async def restartable_daemon(folder: Path, *options: str) -> AsyncIterator[RestartableDaemon]:
    """A dockerd of its own. Whether containers outlive a restart is for the options to say."""
    async with _unmounted(folder):
        try:
            async with AsyncExitStack() as run:
                daemon = await run.enter_async_context(_dockerd(folder, "none", *options))
                yield RestartableDaemon(daemon.address, daemon.output, folder, options, run)
        finally:
            _kill_shims(folder)


def _kill_shims(folder: Path) -> None:
    """End what is left of starts in whose midst a Docker was ended: it knows nothing of them."""
    for process in psutil.process_iter(["cmdline"]):
        with suppress(psutil.Error):
            if any(part.startswith(f"{folder}/") for part in process.info["cmdline"] or ()):
                for each in [*process.children(recursive=True), process]:
                    each.kill()


@asynccontextmanager
async def containerd(folder: Path) -> AsyncIterator[str]:
    """The address of a containerd beside dockerd, as it is installed, for its `--containerd`."""
    need("containerd", "runc")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(
        f'version = 2\nroot = "{folder}/data"\nstate = "{folder}/state"\n'
        f'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
        f'[grpc]\naddress = "{folder}/containerd.sock"\n'
    )
    command = ("containerd", "--config", str(folder / "config.toml"))
    async with _unmounted(folder), server_program(folder, *command) as output:
        await output.said("containerd successfully booted")
        yield str(folder / "containerd.sock")


@asynccontextmanager
async def small_disk(folder: Path, size: str) -> AsyncIterator[None]:
    """Let a folder be a disk of its own, of this size."""
    folder.mkdir(parents=True)
    await _run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder))
    async with _unmounted(folder):
        yield


@asynccontextmanager
async def _bridge(address: str | None) -> AsyncIterator[str]:
    """The name of a bridge with this address, `none` without one."""
    if address is None:
        yield "none"
        return
    need("ip")
    name = f"bp-{int(IPv4Interface(address).ip):08x}"
    await _run("ip", "link", "add", name, "type", "bridge")
    try:
        await _run("ip", "address", "add", address, "dev", name)
        await _run("ip", "link", "set", name, "up")
        yield name
    finally:
        await _run("ip", "link", "delete", name)


@asynccontextmanager
async def _unmounted(folder: Path) -> AsyncIterator[None]:
    """Unmount what an engine leaves mounted in its folder, so that it can be deleted."""
    try:
        yield
    finally:
        mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        for mount in reversed([mount for mount in mounts if Path(mount).is_relative_to(folder)]):
            await _run("umount", mount)


async def _run(*command: str) -> None:
    process = await asyncio.create_subprocess_exec(*command)
    if await process.wait():
        raise RuntimeError(f"{' '.join(command)} failed")


@asynccontextmanager
async def podman_service(folder: Path) -> AsyncIterator[Daemon]:
    """Podman's imitation of the Docker Engine API. Its containers end with the context."""
    need("podman", "docker-init", "runc")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "containers.conf").write_text(
        '[containers]\ndefault_ulimits = ["nofile=20000:20000", "nproc=10000:10000"]\n'
        '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
        'lock_type = "file"\n'  # the other type is shared by every Podman of the machine
        f'init_path = "{shutil.which("docker-init")}"\n'
    )
    (folder / "registries.conf").write_text(
        "unqualified-search-registries = []\n"
        '[[registry]]\nlocation = "127.0.0.1"\ninsecure = true\n'
    )
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/data"\nrunroot = "{folder}/run"\n'
    )
    environment = {
        "CONTAINERS_CONF": str(folder / "containers.conf"),
        "CONTAINERS_REGISTRIES_CONF": str(folder / "registries.conf"),
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
    }
    socket = folder / "podman.sock"
    command = (
        *("podman", "--log-level", "info", "--tmpdir", str(folder / "tmp")),
        *("system", "service", "--time=0", f"unix://{socket}"),
    )
    async with (
        _unmounted(folder),
        server_program(folder, *command, environment=environment) as output,
    ):
        await output.said("API service listening")
        daemon = Daemon(f"unix://{socket}", output, folder)
        try:
            yield daemon
        finally:
            async with daemon.client() as client:
                for container in await client.containers.list(all=True):
                    await container.delete(force=True, v=True)


@dataclass(frozen=True)
class Request:
    """A line of a registry's access log."""

    method: str
    path: str
    status: int
    size: int


@dataclass(frozen=True)
class Registry:
    """A registry, and what it was asked."""

    address: str
    output: Output

    async def requests(self) -> Sequence[Request]:
        """All that it was asked so far, in order."""
        mark = f"mark-{len(self.output.lines)}"
        async with aiohttp.ClientSession() as session:
            await session.get(f"http://{self.address}/{mark}")
        await self.output.said(f'"GET /{mark} ')
        asked = (
            re.search(r'"([A-Z]+) (/v2/\S*) \S+" (\d+) (\d+)', line) for line in self.output.lines
        )
        return [
            Request(found[1], found[2], int(found[3]), int(found[4])) for found in asked if found
        ]


@asynccontextmanager
async def registry(
    folder: Path, port: int = 0, *, host: str = "127.0.0.1", private: bool = False
) -> AsyncIterator[Registry]:
    """A registry, by default on the loopback address, which Docker trusts without TLS.

    Port 0 is a free one. A private registry asks for USERNAME and PASSWORD.
    """
    need("docker-registry")
    folder.mkdir(parents=True, exist_ok=True)
    settings: dict[str, Any] = {
        "version": 0.1,
        "log": {"level": "info"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "http": {"addr": f"{host}:{port}"},
    }
    if private:
        (folder / "htpasswd").write_text(_HTPASSWD)
        settings["auth"] = {"htpasswd": {"realm": "test", "path": str(folder / "htpasswd")}}
    # JSON is YAML.
    (folder / "registry.yml").write_text(json.dumps(settings))
    async with server_program(
        folder, "docker-registry", "serve", str(folder / "registry.yml")
    ) as output:
        found = await output.said(r"listening on ([\d.]+:\d+)")
        yield Registry(found[1], output)


def busybox_image(path: Path, name: str, *, script: str = BOT, padding: int = 0) -> Path:
    """Write an image whose command is `/bot`, the script, as `docker save` does.

    `padding` bytes that can't be compressed are a layer of their own, different in every image.
    """
    need("busybox")
    layers = [_layer(script)]
    if padding:
        layers.append(_archive({"padding": (0o644, os.urandom(padding))}))
    config = {
        "architecture": {"aarch64": "arm64"}.get(platform.machine(), "amd64"),
        "os": "linux",
        "config": {"Cmd": ["/bot"], "Env": ["PATH=/bin"]},
        "rootfs": {
            "type": "layers",
            "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers],
        },
    }
    names = [f"layer{number}.tar" for number in range(len(layers))]
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": names}]
    files = {name: (0o644, layer) for name, layer in zip(names, layers, strict=True)}
    files["config.json"] = (0o644, json.dumps(config).encode())
    files["manifest.json"] = (0o644, json.dumps(manifest).encode())
    path.write_bytes(_archive(files))
    return path


def _layer(script: str) -> bytes:
    busybox = Path(shutil.which("busybox") or "").read_bytes()
    applets = ("cat", "env", "head", "sh", "sleep", "tail", "wget")
    links = {f"bin/{applet}": "busybox" for applet in applets}
    return _archive({"bin/busybox": (0o755, busybox), "bot": (0o755, script.encode())}, links)


def _archive(
    files: Mapping[str, tuple[int, bytes]], links: Mapping[str, str] | None = None
) -> bytes:
    """An archive that is the same whenever it is made."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as archive:
        for name, (mode, content) in files.items():
            entry = tarfile.TarInfo(name)
            entry.mode, entry.size = mode, len(content)
            archive.addfile(entry, io.BytesIO(content))
        for name, target in (links or {}).items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)
    return whole.getvalue()


async def load(daemon: Daemon, path: Path) -> None:
    """Put an image that `busybox_image` has written onto a host."""
    async with daemon.client() as client:
        with path.open("rb") as file:
            await client.images.import_image(file)


async def push(daemon: Daemon, image: str, target: str, *, private: bool = False) -> None:
    """Send an image to a registry, as the image `target`, and forget that name."""
    auth = {"username": USERNAME, "password": PASSWORD} if private else None
    async with daemon.client() as client:
        repository, _, tag = target.rpartition(":")
        await client.images.tag(image, repository, tag=tag)
        await client.images.push(repository, tag=tag, auth=auth)
        await client.images.delete(target)
