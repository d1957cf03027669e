"""Start a cluster or join the one that another process of the same test run has started."""

# ruff: noqa: ASYNC110, ASYNC221, ASYNC240 - it does nothing else meanwhile

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import ssl
import subprocess
import sys
import tarfile
import tempfile
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import psutil
import pytest

from testbed.docker import Request
from testbed.docker import need as need_programs
from testbed.kubernetes import addresses
from testbed.kubernetes.parts import CGROUPS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from typing import IO

BUILD = Path(__file__).with_name("build")
_LINK = "kube"
_namespaces = count(1)


def need() -> None:
    """Skip the test where no cluster can be, and say why. In CI a skip is a failure."""
    need_programs(
        "busybox", "containerd", "docker-registry", "etcd", "ip", "iptables", "openssl", "runc"
    )
    if not Path("/usr/lib/cni/bridge").exists():
        pytest.skip("needs other programs: apt-get install containernetworking-plugins")
    if not (CGROUPS / "memory").is_dir():
        pytest.skip("kubelets of this version are run with version 1 of control groups")
    if programs() is None:
        pytest.skip(
            f"needs Kubernetes, which {BUILD.relative_to(Path.cwd())} builds in some minutes"
        )


def programs() -> Path | None:
    """The folder with Kubernetes' programs, if they were built."""
    found = subprocess.run([BUILD, "--where"], capture_output=True, text=True, check=False)  # noqa: S603
    return Path(found.stdout.strip()) if found.returncode == 0 else None


class Cluster:
    """A running cluster as a process sees it that has joined it."""

    def __init__(self, folder: Path, locks: Path, address: str, api: httpx.AsyncClient) -> None:
        self.folder = folder
        self.kubeconfig = folder / "admin.kubeconfig"
        self.registry = addresses.REGISTRY
        self.address = address
        """Where pods reach this process."""
        self.api = api
        """The API server, as the admin."""
        self._locks = locks

    async def ask(self, do: str, *arguments: str) -> Any:
        """Let the cluster's own process do what `Parts` has a coroutine for."""
        reader, writer = await asyncio.open_unix_connection(
            self.folder / "control.sock", limit=2**26
        )
        writer.write(json.dumps({"do": do, "with": arguments}).encode() + b"\n")
        told = json.loads(await reader.readline())
        writer.close()
        if "error" in told:
            raise RuntimeError(f"{do}: {told['error']}")
        return told["result"]

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Meanwhile nobody is `alone`."""
        async with AsyncExitStack() as stack:
            # Whoever wants to be alone is next: nobody comes in before.
            async with _lock(self._locks / "door", fcntl.LOCK_EX):
                await stack.enter_async_context(_lock(self._locks / "turns", fcntl.LOCK_SH))
            yield

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Meanwhile no other test uses the cluster: for those that take parts of it away."""
        async with (
            _lock(self._locks / "door", fcntl.LOCK_EX),
            _lock(self._locks / "turns", fcntl.LOCK_EX),
        ):
            yield

    # Parts that come and go

    async def cut(self, node: str) -> None:
        """Take a node's link down: what runs there goes on."""
        await self.ask("cut", node)

    async def mend(self, node: str) -> None:
        """Let a node that was cut off be reached again."""
        await self.ask("mend", node)

    async def add_node(self) -> str:
        """The name of a new node that is ready."""
        name: str = await self.ask("add_node")
        await self.ready(name)
        return name

    async def remove_node(self, node: str) -> None:
        """Let a machine be gone, and its object."""
        await self.ask("remove_node", node)
        await self.api.delete(f"/api/v1/nodes/{node}")

    async def restart_kubelet(self, node: str) -> None:
        """Let it begin anew, as it must if its node's object was deleted. Containers run on."""
        await self.ask("restart_kubelet", node)

    async def stop_api(self) -> None:
        """Let the API server be away, at once."""
        await self.ask("stop_api")

    async def start_api(self) -> None:
        """Return when it answers again."""
        await self.ask("start_api")

    async def stop_registry(self) -> None:
        """Let it be away. What it was asked is forgotten."""
        await self.ask("stop_registry")

    async def start_registry(self) -> None:
        """Return when it listens again."""
        await self.ask("start_registry")

    # Images

    async def fetches(self, image: str) -> Sequence[Request]:
        """The whole layers and settings that nodes have fetched of an image such as `bot:1`."""
        repository = image.partition(":")[0]
        asked = [Request(**request) for request in await self.ask("requests")]
        return [
            request
            for request in asked
            if request.method == "GET"
            and request.path.startswith(f"/v2/{repository}/blobs/")
            and request.status == httpx.codes.OK
        ]

    async def push(self, archive: Path, image: str) -> str:
        """Put an image that `busybox_image` has written into the registry. Its full name."""
        repository, _, tag = image.partition(":")
        base = f"http://{self.registry}/v2/{repository}"
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
            with tarfile.open(archive) as files:
                description = json.loads(_content(files, "manifest.json"))[0]
                config = await _upload(client, base, _content(files, description["Config"]))
                layers = [
                    await _upload(client, base, _content(files, layer))
                    for layer in description["Layers"]
                ]
            kind = "application/vnd.docker.distribution.manifest.v2+json"
            manifest = {
                "schemaVersion": 2,
                "mediaType": kind,
                "config": {"mediaType": "application/vnd.docker.container.image.v1+json", **config},
                "layers": [
                    {"mediaType": "application/vnd.docker.image.rootfs.diff.tar", **layer}
                    for layer in layers
                ],
            }
            answer = await client.put(
                f"{base}/manifests/{tag}",
                content=json.dumps(manifest),
                headers={"Content-Type": kind},
            )
            answer.raise_for_status()
        return f"{self.registry}/{image}"

    # Objects

    async def create(self, path: str, body: Mapping[str, Any]) -> Any:
        """Make an object. Raises unless it was made."""
        answer = await self.api.post(path, json=body)
        if answer.is_error:
            raise RuntimeError(f"{path}: {answer.status_code} {answer.text}")
        return answer.json()

    @asynccontextmanager
    async def namespace(self) -> AsyncIterator[str]:
        """The name of a new namespace, deleted at the end with all that is in it."""
        name = f"test-{os.getpid()}-{next(_namespaces)}"
        await self.create("/api/v1/namespaces", {"metadata": {"name": name}})
        await self._account(name)
        try:
            yield name
        finally:
            for pod in (await self.api.get(f"/api/v1/namespaces/{name}/pods")).json()["items"]:
                path = f"/api/v1/namespaces/{name}/pods/{pod['metadata']['name']}"
                with suppress(RuntimeError):  # it may be gone by now
                    await self.change(path, {"metadata": {"finalizers": None}})
            await self.api.delete(f"/api/v1/namespaces/{name}")

    async def _account(self, namespace: str) -> None:
        """Wait for what controllers make in a namespace: no pod is accepted before."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
        while "secrets" not in (await self.api.get(path)).json():
            await asyncio.sleep(0.1)

    async def kubeconfig_of(self, namespace: str, rules: Sequence[Mapping[str, Any]]) -> Path:
        """The kubeconfig of a new account of this namespace that has these rights there."""
        base = f"/api/v1/namespaces/{namespace}"
        rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
        await self.create(f"{base}/serviceaccounts", {"metadata": {"name": "botpool"}})
        await self.create(f"{rbac}/roles", {"metadata": {"name": "botpool"}, "rules": list(rules)})
        group = "rbac.authorization.k8s.io"
        binding = {
            "metadata": {"name": "botpool"},
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "botpool"},
            "subjects": [{"kind": "ServiceAccount", "name": "botpool", "namespace": namespace}],
        }
        await self.create(f"{rbac}/rolebindings", binding)
        token = await self.create(
            f"{base}/serviceaccounts/botpool/token", {"spec": {"expirationSeconds": 36000}}
        )
        config = json.loads(self.kubeconfig.read_text())
        config["users"] = [{"name": "botpool", "user": {"token": token["status"]["token"]}}]
        config["contexts"][0]["context"] |= {"user": "botpool", "namespace": namespace}
        path = self.folder / f"{namespace}.kubeconfig"
        path.write_text(json.dumps(config))
        return path

    async def change(self, path: str, body: Mapping[str, Any]) -> None:
        """Merge this into an object. Raises unless it was changed."""
        kind = {"Content-Type": "application/merge-patch+json"}
        answer = await self.api.patch(path, json=body, headers=kind)
        if answer.is_error:
            raise RuntimeError(f"{path}: {answer.status_code} {answer.text}")

    @asynccontextmanager
    async def closed(self, node: str) -> AsyncIterator[None]:
        """Meanwhile no new pod is put onto a node."""
        path = f"/api/v1/nodes/{node}"
        await self.change(path, {"spec": {"unschedulable": True}})
        try:
            yield
        finally:
            await self.change(path, {"spec": {"unschedulable": None}})

    async def ready(self, node: str) -> None:
        """Wait until a node takes pods."""
        await self._until_ready_is(node, {"True"})

    async def unready(self, node: str) -> None:
        """Wait until it is known that a node is away."""
        await self._until_ready_is(node, {"False", "Unknown"})

    async def _until_ready_is(self, node: str, wanted: set[str]) -> None:
        while True:
            answer = await self.api.get(f"/api/v1/nodes/{node}")
            known = answer.json()["status"] if answer.is_success else {}
            for condition in known.get("conditions", ()):
                if condition["type"] == "Ready" and condition["status"] in wanted:
                    return
            await asyncio.sleep(0.2)


def _content(files: tarfile.TarFile, name: str) -> bytes:
    file = files.extractfile(name)
    if file is None:
        raise ValueError(name)
    return file.read()


async def _upload(client: httpx.AsyncClient, base: str, content: bytes) -> Mapping[str, Any]:
    """Put a blob into a registry, and describe it."""
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    if (await client.head(f"{base}/blobs/{digest}")).is_error:
        started = await client.post(f"{base}/blobs/uploads/")
        answer = await client.put(
            httpx.URL(started.headers["Location"]).copy_merge_params({"digest": digest}),
            content=content,
            headers={"Content-Type": "application/octet-stream"},
        )
        answer.raise_for_status()
    return {"size": len(content), "digest": digest}


@asynccontextmanager
async def _lock(path: Path, kind: int) -> AsyncIterator[IO[str]]:
    """Hold a lock between processes."""
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, kind | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(0.1)
        yield file


@dataclass(frozen=True)
class _Running:
    """What is written down about a cluster that runs, for those who join it."""

    folder: Path
    pid: int
    """Of the process that runs it, and is in its network."""


async def _running(locks: Path, nodes: int) -> _Running:
    """The cluster that runs, or one that is started now."""
    told = locks / "running.json"
    if told.exists():
        known = json.loads(told.read_text())
        running = _Running(Path(known["folder"]), known["pid"])
        if (running.folder / "ready").exists() and Path(f"/proc/{running.pid}").exists():
            return running
    found = programs()
    if found is None:
        raise RuntimeError("Kubernetes was not built")
    # Sockets are in it, so its name must be short.
    folder = Path(tempfile.mkdtemp(prefix="botpool-k8s-"))
    written = locks / "log"
    with written.open("wb") as log:
        # It may outlive the process that starts it, so it is nobody's child.
        subprocess.run(  # noqa: S603
            [
                *("setsid", "--fork", "sh", "-c", 'echo $$ > "$0"; exec "$@"', folder / "pid"),
                *("unshare", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc"),
                *(sys.executable, "-m", "testbed.kubernetes.holding"),
                *(folder, found, locks / "users", str(nodes)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            check=True,
        )
    while not (pid := _number_in(folder / "pid")):
        await asyncio.sleep(0.01)
    while not (folder / "ready").exists():
        if not psutil.pid_exists(pid):
            raise RuntimeError(f"no cluster: {written.read_text()}")
        await asyncio.sleep(0.1)
    [first] = psutil.Process(pid).children()
    told.write_text(json.dumps({"folder": str(folder), "pid": first.pid}))
    return _Running(folder, first.pid)


def _number_in(path: Path) -> int | None:
    return int(path.read_text() or 0) if path.exists() else None


async def _run(*command: str) -> None:
    process = await asyncio.create_subprocess_exec(*command)
    if await process.wait():
        raise RuntimeError(f"{' '.join(command)} failed")


@asynccontextmanager
async def _cable(pid: int, number: int) -> AsyncIterator[str]:
    """Join this process's network with the cluster's. Its address there."""
    far, address = f"guest{number}", addresses.of_guest(number)
    await _run("ip", "link", "add", _LINK, "type", "veth", "peer", "name", far, "netns", str(pid))
    try:
        hub = ("nsenter", "--target", str(pid), "--net", "ip")
        await _run(*hub, "link", "set", far, "master", addresses.BRIDGE, "up")
        await _run("ip", "address", "add", f"{address}/16", "dev", _LINK)
        await _run("ip", "link", "set", _LINK, "up")
        yield address
    finally:
        await _run("ip", "link", "delete", _LINK)


async def _place(locks: Path, stack: AsyncExitStack) -> int:
    """The first number that no other process has."""
    for number in count():
        file = stack.enter_context((locks / f"guest-{number}").open("w"))
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return number
    raise AssertionError


@asynccontextmanager
async def joined(locks: Path, *, nodes: int = 2) -> AsyncIterator[Cluster]:
    """A cluster with that many nodes, shared by all who name the same folder for its locks.

    The process must have left the machine's network, as `testbed.network` says. The first one
    starts the cluster; it ends with the last.
    """
    need()
    locks.mkdir(parents=True, exist_ok=True)
    async with AsyncExitStack() as stack:
        number = await _place(locks, stack)
        users = stack.enter_context((locks / "users").open("w"))
        async with _lock(locks / "starting", fcntl.LOCK_EX):
            # While a cluster ends, this waits.
            while True:
                with suppress(BlockingIOError):
                    fcntl.flock(users, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    break
                await asyncio.sleep(0.1)
            running = await _running(locks, nodes)
        try:
            async with _cable(running.pid, number) as address:
                keys = running.folder / "keys"
                trust = ssl.create_default_context(cafile=str(keys / "ca.crt"))
                trust.load_cert_chain(keys / "admin.crt", keys / "admin.key")
                base = f"https://{addresses.HUB}:{addresses.API_PORT}"
                async with httpx.AsyncClient(
                    base_url=base, verify=trust, trust_env=False, timeout=60
                ) as api:
                    cluster = Cluster(running.folder, locks, address, api)
                    for node in range(nodes):
                        await cluster.ready(f"n{node + 1}")
                    yield cluster
        finally:
            await _leave(running, locks, users)


async def _leave(running: _Running, locks: Path, users: IO[str]) -> None:
    """End the cluster if this process is the last one in it."""
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    (locks / "running.json").unlink()
    reader, writer = await asyncio.open_unix_connection(running.folder / "control.sock")
    writer.write(b'{"do": "end", "with": []}\n')
    await reader.readline()
    writer.close()
    with suppress(psutil.NoSuchProcess):
        await asyncio.to_thread(psutil.Process(running.pid).wait)
