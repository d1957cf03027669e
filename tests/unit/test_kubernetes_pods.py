"""What a pod is doing, and what proves that nothing of it runs."""

from __future__ import annotations

from typing import Any

import pytest

from botpool.engines.base import ContainerState
from botpool.engines.kubernetes.pods import never_started, observation, proved_stopped

RUNNING = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
ENDED = {"terminated": {"exitCode": 0, "reason": "Completed"}}
OVER = "2026-01-01T00:00:10Z"


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


def pod(
    state: dict[str, Any] | None,
    *,
    node: str | None = "n1",
    deleted: bool = False,
    grace: int = 5,
    containers: tuple[str, ...] = ("bot",),
    **status: Any,
) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": "p", "uid": "u"}
    if deleted:
        metadata |= {"deletionTimestamp": OVER, "deletionGracePeriodSeconds": grace}
    spec: dict[str, Any] = {"containers": [{"name": name} for name in containers]}
    if node:
        spec["nodeName"] = node
    statuses = [] if state is None else [{"name": name, "state": state} for name in containers]
    return {"metadata": metadata, "spec": spec, "status": {"containerStatuses": statuses, **status}}


@pytest.mark.parametrize(
    ("found", "proved"),
    [
        (pod(ENDED), True),
        (pod(ENDED, phase="Running"), True),
        (pod(RUNNING, phase="Failed", reason="DeadlineExceeded"), False),
        (pod(RUNNING, phase="Succeeded"), False),
        (pod(RUNNING, deleted=True), False),
        (pod(RUNNING, deleted=True, grace=0), False),  # somebody forced it
        (pod(None, phase="Failed", reason="Evicted"), False),
        (pod(None, deleted=True, grace=0), False),
        (pod(None, phase="Failed", reason="OutOfcpu", deleted=True, grace=0), False),
        (pod(None, node=None), False),  # it may be bound in a moment
        (pod(None, node=None, deleted=True), True),
        (pod(waiting("ContainerCreating"), deleted=True, grace=0), False),
    ],
)
def test_only_the_kubelets_word_or_that_it_never_had_a_node_proves_it(
    found: dict[str, Any], proved: bool
) -> None:
    assert proved_stopped(found) is proved


def test_a_container_that_its_kubelet_found_gone_has_ended() -> None:
    gone = pod(waiting("ContainerCreating"), deleted=True, grace=0)
    (status,) = gone["status"]["containerStatuses"]
    status["lastState"] = {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}}
    assert proved_stopped(gone)
    # Containers beside the bot's may start again, if they are init containers that do so.
    gone["status"]["initContainerStatuses"] = [{**status, "name": "beside"}]
    assert not proved_stopped(gone)


def test_every_container_of_a_pod_must_have_ended() -> None:
    two = pod(ENDED, containers=("bot", "beside"))
    assert proved_stopped(two)
    two["status"]["containerStatuses"][1]["state"] = RUNNING
    assert not proved_stopped(two)
    assert observation(two).state is ContainerState.FAILED
    del two["status"]["containerStatuses"][1]
    assert not proved_stopped(two)
    debugged = pod(ENDED)
    debugged["status"]["ephemeralContainerStatuses"] = [{"name": "debugger", "state": RUNNING}]
    assert not proved_stopped(debugged)


@pytest.mark.parametrize(
    ("found", "asked"),
    [
        (pod(waiting("ContainerCreating"), deleted=True, grace=0), ["bot"]),
        (pod(waiting("ContainerCreating"), deleted=True), None),  # its kubelet is not done
        (pod(waiting("ContainerCreating")), None),
        (pod(RUNNING, deleted=True, grace=0), None),
        (pod(None, deleted=True, grace=0), None),  # its kubelet never said anything
    ],
)
def test_a_kubelet_is_asked_only_of_a_pod_that_it_is_done_with(
    found: dict[str, Any], asked: list[str] | None
) -> None:
    assert never_started(found) == asked


NOT_FOUND = 'failed to resolve reference "r/none:1": r/none:1: not found'
NO_ROUTE = 'failed to do request: Head "https://r/v2/": dial tcp: no route to host'
UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/2 nodes are available: 2 Insufficient cpu.",
}

OF_A_DELETED_NODE = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "DeletionByPodGC",
    "message": "PodGC: node no longer exists",
}


@pytest.mark.parametrize(
    ("found", "state", "said"),
    [
        (pod(RUNNING), "running", ""),
        (pod(waiting("ContainerCreating")), "starting", "ContainerCreating"),
        (pod(None, node=None, conditions=[UNSCHEDULABLE]), "starting", "no node has room for it"),
        (pod(waiting("ErrImagePull", NOT_FOUND)), "failed", "its image can't be pulled: failed"),
        (pod(waiting("ErrImagePull", NO_ROUTE)), "starting", "can't be pulled yet: failed"),
        (pod(waiting("InvalidImageName", "no")), "failed", "the name of its image is not valid"),
        (
            pod(waiting("CreateContainerConfigError", "x")),
            "failed",
            "can't be made as it is set up",
        ),
        (
            pod(
                waiting(
                    "CreateContainerConfigError",
                    "failed to sync secret cache: timed out waiting for the condition",
                )
            ),
            "starting",
            "failed to sync secret cache",
        ),
        (
            pod({"terminated": {"exitCode": 137, "reason": "OOMKilled"}}),
            "exited",
            "it used more memory than it may have",
        ),
        (
            pod(None, phase="Failed", reason="Evicted", message="The node was low on memory."),
            "failed",
            "it was evicted by its node: The node was low on memory.",
        ),
        (pod(RUNNING, deleted=True), "running", "its pod was deleted, as a person, a drain"),
        # Its node is deleted, while it may only be cut off.
        (
            pod(RUNNING, deleted=True, phase="Failed", conditions=[OF_A_DELETED_NODE]),
            "running",
            "its node is gone: PodGC: node no longer exists",
        ),
        (pod(RUNNING, phase="Failed"), "running", ""),
        (pod(RUNNING, phase="Failed", reason="NodeLost"), "running", "its node does not answer"),
        # Its kubelet ends it, and may say no more.
        (
            pod(RUNNING, phase="Failed", reason="DeadlineExceeded"),
            "failed",
            "it ran longer than its activeDeadlineSeconds",
        ),
        (
            pod(
                {"terminated": {"exitCode": 137, "reason": "Error"}},
                phase="Failed",
                reason="DeadlineExceeded",
            ),
            "exited",
            "it ran longer than its activeDeadlineSeconds",
        ),
        (
            pod(None, phase="Failed", reason="OutOfcpu", message="Node didn't have enough cpu"),
            "failed",
            "its node had no room for it: Node didn't have enough cpu",
        ),
        (pod(None, node=None, deleted=True), "exited", "deleted before it got a node"),
        (
            pod(
                ENDED,
                deleted=True,
                conditions=[
                    {
                        "type": "DisruptionTarget",
                        "status": "True",
                        "reason": "EvictionByEvictionAPI",
                        "message": "Eviction API: evicting",
                    }
                ],
            ),
            "exited",
            "it was evicted by somebody, as a drain does",
        ),
    ],
)
def test_a_pod_is_told_in_words_that_a_person_understands(
    found: dict[str, Any], state: str, said: str
) -> None:
    told = observation(found)
    assert told.state == state
    assert said in told.detail


def test_a_pull_that_may_still_come_is_told_from_other_preparations() -> None:
    failing = observation(pod(waiting("ErrImagePull", NO_ROUTE)))
    assert (failing.state, failing.image_failed) == (ContainerState.STARTING, True)
    assert not observation(pod(waiting("ContainerCreating"))).image_failed


def test_events_say_why_a_pull_failed_and_who_took_a_node_away() -> None:
    backing_off = pod(waiting("ImagePullBackOff", 'Back-off pulling image "r/none:1"'))
    assert observation(backing_off).state is ContainerState.STARTING
    events = [{"reason": "Failed", "message": f"Failed to pull image: {NOT_FOUND}"}]
    told = observation(backing_off, events)
    assert (told.state, told.image_failed) == (ContainerState.FAILED, True)
    preempted = [{"reason": "Preempted", "message": "Preempted by default/urgent on node n1"}]
    assert "preempted by a pod of a higher priority: Preempted by default/urgent" in (
        observation(pod(RUNNING, deleted=True), preempted).detail
    )


def test_an_exit_code_is_only_told_if_a_container_really_ended_with_it() -> None:
    assert observation(pod({"terminated": {"exitCode": 3, "reason": "Error"}})).exit_code == 3
    assert observation(pod({"terminated": {"exitCode": 0}}, deleted=True)).exit_code is None
