"""A real Kubernetes on this machine, for tests and measurements.

    async with joined(locks) as cluster:
        await cluster.push(busybox_image(folder / "bot.tar", "bot:1"), "bot:1")
        async with cluster.namespace() as namespace: ...

`build` makes its programs, once a machine. `parts` runs them: `etcd`, the API server, controllers,
scheduler, a registry, and nodes with containerd and a kubelet, in the namespaces of `holding`.
`joining` lets the processes of a test run share one: the first starts it, and it ends with the
last. By hand: `python -m testbed.kubernetes`.
"""

from __future__ import annotations

from testbed.kubernetes.joining import Cluster, joined, need

__all__ = ["Cluster", "joined", "need"]
