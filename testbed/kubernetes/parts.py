"""What a cluster consists of, run by one process that is alone in its namespaces.

The process that runs this is the first of a process namespace, so that everything ends with it,
however that ends. Its network is apart from the machine's, and nobody else sees its mounts: its
folder, and a control group for each node, are all that it can leave behind.
"""

# ruff: noqa: ASYNC221, ASYNC240 - it does nothing else meanwhile

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import ssl
import subprocess
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from testbed.docker import busybox_image, registry
from testbed.kubernetes import addresses

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from testbed.docker import Registry

CGROUPS = Path("/sys/fs/cgroup")
_CONTROLLERS = (
    "cpu",
    "cpuacct",
    "cpuset",
    "memory",
    "devices",
    "freezer",
    "blkio",
    "pids",
    "systemd",
)
_END_SECONDS = 10
_READY_SECONDS = 300

KERNEL_SETTINGS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
"""What a kubelet sets for the whole machine when it starts, unless it reads that it is so."""

_USERS = {
    "admin": ("admin", "system:masters"),
    "controllers": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
    "proxy": ("system:kube-proxy", ""),
}


def _run(*command: str | Path) -> None:
    done = subprocess.run(  # noqa: S603
        [str(part) for part in command], check=False, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{command} failed: {done.stderr}")


class Program:
    """A server of the cluster, with its log in a file."""

    def __init__(self, folder: Path, name: str, *command: str | Path) -> None:
        self._log = folder / "logs" / f"{name}.log"
        self._log.parent.mkdir(exist_ok=True)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603
                [str(part) for part in ("nice", "-n", "5", *command)],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def pid(self) -> int:
        """Its process id, here."""
        return self._process.pid

    def check(self) -> None:
        """Raise with its last lines if it has ended."""
        if self._process.poll() is not None:
            lines = self._log.read_text(errors="replace").splitlines()[-20:]
            raise RuntimeError("\n".join([f"{self._log.name}: it ended", *lines]))

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Stop it by its process id."""
        if self._process.poll() is not None:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@dataclass
class Node:
    """A machine of the cluster: a process that holds its namespaces, and what runs in them."""

    number: int
    name: str
    folder: Path
    holder: Program
    programs: dict[str, Program] = field(default_factory=dict)

    @property
    def link(self) -> str:
        """Its end of the cable, on the side of the bridge."""
        return f"node{self.number}"

    def inside(self, *command: str | Path) -> Sequence[str | Path]:
        """The command, in the node's namespaces."""
        return (
            *("nsenter", "--target", str(self.holder.pid), "--net", "--mount", "--uts", "--"),
            *command,
        )


class Parts:
    """Everything that runs. Each public coroutine is also what `Cluster` may ask for."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self._folder = folder
        self._programs = programs
        self._group = folder.name
        self._control: dict[str, Program] = {}
        self._nodes: dict[str, Node] = {}
        self._registry = AsyncExitStack()
        self._store: Registry | None = None

    # The whole

    async def start(self, nodes: int) -> None:
        """Return when the API server is ready. Nodes are then about to be."""
        self._hide_kernel_settings()
        self._lay_bridge()
        self._make_keys()
        await self.start_registry()
        self._start_control("etcd", *self._etcd())
        await self.start_api()
        self._start_control(
            "controllers", self._programs / "kube-controller-manager", *self._controllers()
        )
        self._start_control("scheduler", self._programs / "kube-scheduler", *self._scheduler())
        for _ in range(nodes):
            await self.add_node()

    async def end(self) -> None:
        """Stop everything, and remove what would outlive the processes: the control groups."""
        while self._nodes:
            self._end_node(self._nodes.popitem()[1])
        for program in reversed(list(self._control.values())):
            program.end()
        await self._registry.aclose()

    def _hide_kernel_settings(self) -> None:
        """Show kubelets files that read as they want them: they leave the machine's alone."""
        for name, value in KERNEL_SETTINGS.items():
            shown = self._folder / "settings" / name.replace("/", ".")
            shown.parent.mkdir(exist_ok=True)
            shown.write_text(f"{value}\n")
            _run("mount", "--bind", shown, Path("/proc/sys") / name)

    def _lay_bridge(self) -> None:
        # Otherwise it is the lowest of its cables', and another one when a process joins or leaves:
        # then those that know the one from before reach nobody for a while.
        own = ("address", addresses.BRIDGE_HARDWARE)
        _run("ip", "link", "add", addresses.BRIDGE, *own, "type", "bridge")
        _run("ip", "address", "add", f"{addresses.HUB}/16", "dev", addresses.BRIDGE)
        _run("ip", "link", "set", addresses.BRIDGE, "up")

    # Keys

    def _make_keys(self) -> None:
        keys = self._folder / "keys"
        keys.mkdir()
        _run("openssl", "genrsa", "-out", keys / "accounts.key", "2048")
        self._openssl_request("ca", "/CN=cluster", "-x509", "-days", "30")
        self._sign(
            "api",
            "/CN=api",
            f"subjectAltName=IP:{addresses.HUB},IP:{addresses.API_SERVICE},DNS:kubernetes.default.svc",
        )
        for user, (name, group) in _USERS.items():
            self._make_user(user, name, group)

    def _openssl_request(self, name: str, subject: str, *options: str) -> None:
        keys = self._folder / "keys"
        _run(
            *("openssl", "req", "-newkey", "rsa:2048", "-nodes", "-subj", subject, *options),
            *("-keyout", keys / f"{name}.key", "-out", keys / f"{name}.crt"),
        )

    def _sign(self, name: str, subject: str, extension: str) -> None:
        """A key, and a certificate of the cluster's authority for it."""
        keys = self._folder / "keys"
        self._openssl_request(name, subject)
        (keys / "extension").write_text(extension)
        _run(
            *("openssl", "x509", "-req", "-in", keys / f"{name}.crt", "-days", "30"),
            *("-CA", keys / "ca.crt", "-CAkey", keys / "ca.key", "-CAcreateserial"),
            *("-extfile", keys / "extension", "-out", keys / f"{name}.crt"),
        )

    def _make_user(self, user: str, name: str, group: str) -> Path:
        """The kubeconfig of someone who shows a certificate."""
        keys = self._folder / "keys"
        self._sign(
            user, f"/O={group}/CN={name}" if group else f"/CN={name}", "extendedKeyUsage=clientAuth"
        )
        path = self._folder / f"{user}.kubeconfig"
        cluster = {"server": self.api_url, "certificate-authority": str(keys / "ca.crt")}
        shown = {
            "client-certificate": str(keys / f"{user}.crt"),
            "client-key": str(keys / f"{user}.key"),
        }
        config: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": user, "user": shown}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
            "current-context": "test",
        }
        path.write_text(json.dumps(config))  # JSON is YAML
        return path

    # The control plane

    @property
    def api_url(self) -> str:
        """Where the API server listens."""
        return f"https://{addresses.HUB}:{addresses.API_PORT}"

    def _start_control(self, name: str, *command: str | Path) -> None:
        self._control[name] = Program(self._folder, name, *command)

    def _etcd(self) -> Sequence[str | Path]:
        client, peer = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
        return (
            *("etcd", "--data-dir", self._folder / "etcd", "--unsafe-no-fsync"),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"default={peer}"),
        )

    def _api(self) -> Sequence[str]:
        keys = self._folder / "keys"
        return (
            "--etcd-servers=http://127.0.0.1:2379",
            f"--bind-address={addresses.HUB}",
            f"--advertise-address={addresses.HUB}",
            f"--secure-port={addresses.API_PORT}",
            f"--client-ca-file={keys}/ca.crt",
            f"--tls-cert-file={keys}/api.crt",
            f"--tls-private-key-file={keys}/api.key",
            "--authorization-mode=Node,RBAC",
            f"--service-account-key-file={keys}/accounts.key",
            f"--service-account-signing-key-file={keys}/accounts.key",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-cluster-ip-range={addresses.SERVICES}",
            "--kubelet-preferred-address-types=InternalIP",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            # Pods of a lost node are to be deleted while a test looks on.
            "--default-not-ready-toleration-seconds=10",
            "--default-unreachable-toleration-seconds=10",
        )

    def _controllers(self) -> Sequence[str]:
        keys = self._folder / "keys"
        return (
            f"--kubeconfig={self._folder}/controllers.kubeconfig",
            "--use-service-account-credentials",
            f"--service-account-private-key-file={keys}/accounts.key",
            f"--root-ca-file={keys}/ca.crt",
            *("--bind-address=127.0.0.1", "--port=0", "--leader-elect=false"),
            f"--cert-dir={keys}/controllers",
            "--node-monitor-grace-period=10s",
            "--node-monitor-period=2s",
        )

    def _scheduler(self) -> Sequence[str]:
        return (
            f"--kubeconfig={self._folder}/scheduler.kubeconfig",
            *("--bind-address=127.0.0.1", "--port=0", "--leader-elect=false"),
            f"--cert-dir={self._folder}/keys/scheduler",
        )

    async def start_api(self) -> None:
        """Return when the API server says that it is ready."""
        self._start_control("api", self._programs / "kube-apiserver", *self._api())
        keys = self._folder / "keys"
        trust = ssl.create_default_context(cafile=str(keys / "ca.crt"))
        trust.load_cert_chain(keys / "admin.crt", keys / "admin.key")
        deadline = time.monotonic() + _READY_SECONDS
        async with httpx.AsyncClient(verify=trust, trust_env=False) as client:
            while time.monotonic() < deadline:
                self._control["api"].check()
                with suppress(httpx.TransportError):
                    if (await client.get(f"{self.api_url}/readyz")).status_code == httpx.codes.OK:
                        return
                await asyncio.sleep(0.1)
        raise TimeoutError("the API server isn't ready")

    async def stop_api(self) -> None:
        """Let it be away, at once."""
        self._control["api"].end(signal.SIGKILL)

    # The registry

    async def start_registry(self) -> None:
        """Return when it listens. What was pushed before is there."""
        self._store = await self._registry.enter_async_context(
            registry(self._folder / "registry", addresses.REGISTRY_PORT, host=addresses.HUB)
        )

    async def stop_registry(self) -> None:
        """Let it be away. What it was asked is forgotten."""
        await self._registry.aclose()

    async def requests(self) -> Sequence[Mapping[str, Any]]:
        """What the registry was asked since its start, in order."""
        if self._store is None:
            return []
        return [vars(request) for request in await self._store.requests()]

    # Nodes

    async def add_node(self) -> str:
        """The name of a new node, which is ready some seconds later."""
        number = 1 + max((node.number for node in self._nodes.values()), default=0)
        name = f"n{number}"
        folder = self._folder / name
        for part in ("kubelet", "log", "cni"):
            (folder / part).mkdir(parents=True)
        self._make_user(name, f"system:node:{name}", "system:nodes")
        holder = Program(
            self._folder,
            f"{name}-holder",
            *("unshare", "--net", "--mount", "--uts", "--propagation", "private"),
            *("sh", "-c", f"touch {folder}/held; exec sleep infinity"),
        )
        while not (folder / "held").exists():
            holder.check()
            await asyncio.sleep(0.01)
        node = Node(number, name, folder, holder)
        self._nodes[name] = node
        self._make_groups(node)
        self._cable(node)
        for other in self._nodes.values():
            if other is not node:
                self._lead(node, other)
                self._lead(other, node)
        self._configure(node)
        await self._start_containerd(node)
        self._start_kubelet(node)
        node.programs["proxy"] = Program(
            self._folder,
            f"{name}-proxy",
            *node.inside(self._programs / "kube-proxy", f"--config={folder}/proxy.json"),
        )
        return name

    async def remove_node(self, name: str) -> None:
        """Let a machine be gone, with all that ran on it. Its object stays."""
        self._end_node(self._nodes.pop(name))

    async def cut(self, name: str) -> None:
        """Take a node's link down: what runs there goes on."""
        _run("ip", "link", "set", self._nodes[name].link, "down")

    async def mend(self, name: str) -> None:
        """Let a node that was cut off be reached again."""
        _run("ip", "link", "set", self._nodes[name].link, "up")

    async def restart_kubelet(self, name: str) -> None:
        """Begin anew, as a kubelet must whose node's object was deleted. Containers run on."""
        node = self._nodes[name]
        node.programs["kubelet"].end()
        self._start_kubelet(node)

    def _group_of(self, node: Node) -> str:
        return f"{self._group}-{node.name}"

    def _make_groups(self, node: Node) -> None:
        for controller in _CONTROLLERS:
            group = CGROUPS / controller / self._group_of(node)
            group.mkdir(exist_ok=True)
            if controller == "cpuset":
                for name in ("cpuset.cpus", "cpuset.mems"):
                    (group / name).write_text((group.parent / name).read_text())

    def _cable(self, node: Node) -> None:
        pid = str(node.holder.pid)
        _run("ip", "link", "add", node.link, "type", "veth", "peer", "name", "eth0", "netns", pid)
        _run("ip", "link", "set", node.link, "master", addresses.BRIDGE, "up")
        inside = ("nsenter", "--target", pid, "--net", "ip")
        _run(*inside, "address", "add", f"{addresses.of_node(node.number)}/16", "dev", "eth0")
        _run(*inside, "link", "set", "lo", "up")
        _run(*inside, "link", "set", "eth0", "up")
        _run(*inside, "route", "add", "default", "via", addresses.HUB)

    def _lead(self, node: Node, other: Node) -> None:
        """Let one node's pods reach those of another."""
        network, way = addresses.of_pods(other.number), addresses.of_node(other.number)
        _run(*node.inside("ip", "route", "replace", network, "via", way))

    def _configure(self, node: Node) -> None:
        folder, address = node.folder, addresses.of_node(node.number)
        criplugin = 'plugins."io.containerd.grpc.v1.cri"'
        (folder / "containerd.toml").write_text(
            f'version = 2\nroot = "{folder}/containerd"\nstate = "{folder}/state"\n'
            f'[grpc]\naddress = "{folder}/containerd.sock"\n'
            f'[{criplugin}]\nsandbox_image = "{addresses.PAUSE_IMAGE}"\n'
            "restrict_oom_score_adj = true\ndisable_tcp_service = true\n"
            f'[{criplugin}.cni]\nbin_dir = "/usr/lib/cni"\nconf_dir = "{folder}/cni"\n'
            f'[{criplugin}.registry.mirrors."{addresses.REGISTRY}"]\n'
            f'endpoint = ["http://{addresses.REGISTRY}"]\n'
            f'[{criplugin}.containerd]\nsnapshotter = "overlayfs"\n'
        )
        ipam = {
            "type": "host-local",
            "dataDir": f"{folder}/ipam",
            "ranges": [[{"subnet": addresses.of_pods(node.number)}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        bridge = {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "ipMasq": True,
            "ipam": ipam,
        }
        network = {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]}
        (folder / "cni" / "10-pods.conflist").write_text(json.dumps(network))
        kubelet = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": address,
            "healthzPort": 0,
            "readOnlyPort": 0,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupRoot": f"/{self._group_of(node)}",
            "cgroupDriver": "cgroupfs",
            "failSwapOn": False,
            "resolvConf": "/etc/resolv.conf",
            "nodeStatusUpdateFrequency": "2s",
            "nodeLeaseDurationSeconds": 10,
            "evictionHard": {"memory.available": "100Mi"},
            # A pod that writes too much is evicted while a test looks on.
            "volumeStatsAggPeriod": "5s",
        }
        (folder / "kubelet.json").write_text(json.dumps(kubelet))
        unlimited = {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        }
        proxy = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": f"{self._folder}/proxy.kubeconfig"},
            "mode": "iptables",
            "clusterCIDR": "10.214.0.0/16",
            "hostnameOverride": node.name,
            "conntrack": unlimited,  # what it would set is the whole machine's
            "healthzBindAddress": "",
            "metricsBindAddress": "127.0.0.1:10249",
        }
        (folder / "proxy.json").write_text(json.dumps(proxy))

    async def _start_containerd(self, node: Node) -> None:
        folder = node.folder
        for path in ("/var/lib/kubelet", "/var/log/pods", "/var/log/containers"):
            Path(path).mkdir(parents=True, exist_ok=True)
        _run(*node.inside("mount", "--bind", folder / "kubelet", "/var/lib/kubelet"))
        _run(*node.inside("mount", "--bind", folder / "log", "/var/log"))
        _run(*node.inside("mount", "-t", "tmpfs", "tmpfs", "/run"))
        _run(*node.inside("hostname", node.name))
        node.programs["containerd"] = Program(
            self._folder,
            f"{node.name}-containerd",
            *node.inside("containerd", "--config", folder / "containerd.toml"),
        )
        pause = self._folder / "pause.tar"
        if not pause.exists():
            busybox_image(pause, addresses.PAUSE_IMAGE, script="#!/bin/sh\nexec sleep 2147483647\n")
        ctr = ("ctr", "--address", folder / "containerd.sock", "--namespace", "k8s.io")
        while subprocess.run([*ctr, "version"], capture_output=True, check=False).returncode:  # noqa: S603
            node.programs["containerd"].check()
            await asyncio.sleep(0.1)
        _run(*node.inside(*ctr, "images", "import", pause))

    def _start_kubelet(self, node: Node) -> None:
        node.programs["kubelet"] = Program(
            self._folder,
            f"{node.name}-kubelet",
            *node.inside(
                self._programs / "kubelet",
                f"--config={node.folder}/kubelet.json",
                f"--kubeconfig={self._folder}/{node.name}.kubeconfig",
                "--root-dir=/var/lib/kubelet",
                "--container-runtime=remote",
                f"--container-runtime-endpoint=unix://{node.folder}/containerd.sock",
                f"--hostname-override={node.name}",
                f"--node-ip={addresses.of_node(node.number)}",
                f"--cert-dir={node.folder}/keys",
                f"--runtime-cgroups=/{self._group_of(node)}",
            ),
        )

    def _end_node(self, node: Node) -> None:
        """End its programs, then what they have started, then its namespaces."""
        for program in reversed(list(node.programs.values())):
            program.end(signal.SIGKILL)
        # A container that was just about to start may come to light later.
        deadline = time.monotonic() + _END_SECONDS
        while not (self._killed(node) and _removed(self._group_of(node))):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{node.name} doesn't end")
            time.sleep(0.05)
        node.holder.end(signal.SIGKILL)
        with suppress(RuntimeError):  # it may have gone with its other end
            _run("ip", "link", "delete", node.link)

    def _killed(self, node: Node) -> bool:
        """Kill what its programs have left. Whether there was nothing."""
        nothing = True
        for path in Path("/proc").iterdir():
            if path.name.isdigit() and path.name != str(os.getpid()) and self._belongs(path, node):
                nothing = False
                with suppress(ProcessLookupError, ChildProcessError):
                    os.kill(int(path.name), signal.SIGKILL)
                    os.waitpid(int(path.name), os.WNOHANG)  # its parent is gone: it is ours
        return nothing

    def _belongs(self, process: Path, node: Node) -> bool:
        """Whether it is a container of the node, or holds one."""
        try:
            return (
                str(node.folder) in (process / "cmdline").read_text(errors="replace")
                or f"/{self._group_of(node)}/" in (process / "cgroup").read_text()
            )
        except OSError:
            return False


def _removed(name: str) -> bool:
    """Remove a control group from every hierarchy, unless something runs in it."""
    try:
        for top in CGROUPS.glob(f"*/{name}"):
            for group, _, _ in os.walk(top, topdown=False):
                Path(group).rmdir()
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True
