"""Where things are in the cluster's own network, in which there is nothing else."""

from __future__ import annotations

HUB = "10.213.0.1"
"""The machine's side of the bridge that joins nodes and processes of tests."""
API_PORT = 6443
REGISTRY_PORT = 5000
REGISTRY = f"{HUB}:{REGISTRY_PORT}"
BRIDGE = "kube"
BRIDGE_HARDWARE = "02:00:00:00:00:01"
SERVICES = "10.215.0.0/24"
API_SERVICE = "10.215.0.1"
PAUSE_IMAGE = "localhost/pause:1"


def of_node(number: int) -> str:
    """The address of a node."""
    return f"10.213.0.{10 + number}"


def of_pods(number: int) -> str:
    """The network of a node's pods."""
    return f"10.214.{number}.0/24"


def of_guest(number: int) -> str:
    """The address of a process that has joined, as pods see it."""
    return f"10.213.1.{1 + number}"
