"""What a pod is doing, and what proves that nothing of it runs, told in words for people.

These prove it: the pod was never bound to a node and is being deleted, so that it can't be bound
any more; or the kubelet of its node reports every container terminated. The phase proves nothing:
it may be set while containers run, by others than the kubelet, too, as by the collector of the pods
of deleted nodes. So a container of which the kubelet has last said that it runs does run, unless
the kubelet has said that it ends the pod: one of 1.20 may then say no more of its containers.

Of a pod that is deleted before its containers were started, a kubelet reports no end (1.20: never;
later ones: not if it has init containers). When it is done with such a pod, it takes the rest of
the grace away; but so does a person who forces a deletion. So then the kubelet itself is asked, and
has to say that the containers have not been started.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from botpool.engines.base import ContainerState, Observation
from botpool.engines.kubernetes.template import CONTAINER

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from botpool.engines.kubernetes.api import Object

PULLING = frozenset({"ErrImagePull", "ImagePullBackOff"})
_OF_IMAGE = PULLING | {"InvalidImageName", "ErrImageNeverPull"}
_NEVER_STARTS = {
    "InvalidImageName": "the name of its image is not valid",
    "ErrImageNeverPull": "its image is not on the node, and is never pulled",
    "CreateContainerConfigError": "its container can't be made as it is set up",
    "CreateContainerError": "its container can't be made",
    "RunContainerError": "its container can't be started",
}
_NOT_YET = "failed to sync "
"""So a kubelet begins to say that it has not read a Secret or ConfigMap yet. It tries again."""
_NOT_THERE = (
    "not found",
    "manifest unknown",
    "does not exist",
    "unauthorized",
    "denied",
    "forbidden",
    "authentication required",
    "no match for platform",
)
"""What runtimes say of an image that another try won't bring."""

_NODE_LOST = "NodeLost"
"""The one reason that a controller gives, of which the kubelet knows nothing."""
_ENDED_BY = {
    "Evicted": "it was evicted by its node",
    "DeadlineExceeded": "it ran longer than its activeDeadlineSeconds",
    _NODE_LOST: "its node does not answer",
    "Shutdown": "its node was shut down",
    "NodeShutdown": "its node was shut down",
    "Terminated": "its node was shut down",
    "Preempting": "it was preempted by a pod of a higher priority",
    "NodeAffinity": "its node doesn't fit it any more",
    "OutOfcpu": "its node had no room for it",
    "OutOfmemory": "its node had no room for it",
    "OutOfpods": "its node had no room for it",
    "UnexpectedAdmissionError": "its node didn't admit it",
    # Of the condition DisruptionTarget, which newer servers have.
    "PreemptionByScheduler": "it was preempted by a pod of a higher priority",
    "DeletionByTaintManager": "its node has a taint that it doesn't tolerate",
    "EvictionByEvictionAPI": "it was evicted by somebody, as a drain does",
    "DeletionByPodGC": "its node is gone",
    "TerminationByKubelet": "it was ended by its node",
}
_EVENTS = {
    "Preempted": "it was preempted by a pod of a higher priority",
    "TaintManagerEviction": "its node doesn't answer or has a taint that it doesn't tolerate",
}

_LATE = timedelta(minutes=1)
"""Much more than clocks differ, and than a kubelet takes to tell of an end."""


def node_of(pod: Object) -> str | None:
    """The node that a pod is bound to, if it is."""
    return pod["spec"].get("nodeName") or None


def proved_stopped(pod: Object) -> bool:
    """Whether nothing of a pod runs, nor ever will."""
    if node_of(pod) is None:
        # The server binds no pod that is being deleted.
        return over_at(pod) is not None
    states = dict(_states(pod))
    names = {each["name"] for list_ in _LISTS for each in pod["spec"].get(list_) or ()}
    return names <= states.keys() and all("terminated" in state for state in states.values())


def never_started(pod: Object) -> list[str] | None:
    """The containers of which the kubelet must say now that they have not been started.

    None if that can't be so, or if the kubelet may not be done with the pod.
    """
    if over_at(pod) is None or pod["metadata"].get("deletionGracePeriodSeconds") != 0:
        return None
    states = dict(_states(pod))
    names = {each["name"] for list_ in _LISTS for each in pod["spec"].get(list_) or ()}
    waiting = [name for name, state in states.items() if "waiting" in state]
    known = all("waiting" in state or "terminated" in state for state in states.values())
    return waiting if waiting and known and names <= states.keys() else None


_LISTS = ("containers", "initContainers", "ephemeralContainers")


def _states(pod: Object) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """What the kubelet reports of each container."""
    status = pod.get("status") or {}
    for list_ in ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"):
        for each in status.get(list_) or ():
            state, last = each.get("state") or {}, each.get("lastState") or {}
            # Nothing of ours is started a second time. So this is how kubelets report the end of a
            # container that they found to be gone.
            over = list_ == "containerStatuses" and "waiting" in state and "terminated" in last
            yield each["name"], last if over else state


def over_at(pod: Object) -> datetime | None:
    """When a pod whose deletion was asked for, by whomever, should be over: after its grace."""
    text = pod["metadata"].get("deletionTimestamp")
    return None if text is None else datetime.fromisoformat(text)


def is_overdue(pod: Object) -> bool:
    """Whether a pod should be over by this machine's clock, and had more than a second for it."""
    due = over_at(pod)
    grace = pod["metadata"].get("deletionGracePeriodSeconds") or 0
    return due is not None and grace > 1 and datetime.now(UTC) > due


def is_late(pod: Object) -> bool:
    """Whether a pod should have been over long ago: its node doesn't answer."""
    due = over_at(pod)
    return due is not None and datetime.now(UTC) > due + _LATE


def observation(
    pod: Object, events: list[Object] | None = None, *, proved: bool | None = None
) -> Observation:
    """What a pod is doing. `events` are its own, if they were read: they say more.

    `proved`: whether nothing of it runs, if more is known of that than the pod itself says.
    """
    bot = dict(_states(pod)).get(CONTAINER) or {}
    node, words = node_of(pod), [*_words(pod, events or [])]
    terminated = bot.get("terminated")
    exit_code = None
    image_failed = False
    if proved_stopped(pod) if proved is None else proved:
        state = ContainerState.EXITED
        if node is None:
            words.append("it was deleted before it got a node")
        elif terminated is not None and terminated.get("reason"):
            exit_code = terminated.get("exitCode")
    elif "running" in bot and not _is_ended_by_kubelet(pod):
        state = ContainerState.RUNNING
    elif terminated is not None or _phase(pod) in {"Failed", "Succeeded"}:
        # The bot has ended, but something beside it may run, or its node hasn't said that it ended.
        state = ContainerState.FAILED
        words.append("it is not proved that all of it has ended")
    elif (why := _never_starts(bot, events or [])) is not None:
        state = ContainerState.FAILED
        image_failed = (bot.get("waiting") or {}).get("reason") in _OF_IMAGE
        words.append(why)
    else:
        state = ContainerState.STARTING
        image_failed = (bot.get("waiting") or {}).get("reason") in PULLING
        words += _waiting(pod, bot, events or [])
    if terminated is not None and terminated.get("reason") == "OOMKilled":
        words.insert(0, "it used more memory than it may have: OOMKilled")
    elif terminated is not None and (message := terminated.get("message")):
        words.append(message)
    return Observation(
        state=state,
        exit_code=exit_code,
        detail="; ".join(dict.fromkeys(words)),
        deployment=pod["metadata"]["uid"],
        node=node,
        over_at=over_at(pod),
        image_failed=image_failed,
    )


def wants_events(pod: Object) -> bool:
    """Whether the events of a pod say more about it than the pod itself."""
    bot = dict(_states(pod)).get(CONTAINER) or {}
    waits_for = (bot.get("waiting") or {}).get("reason")
    return waits_for == "ImagePullBackOff" or over_at(pod) is not None


def _phase(pod: Object) -> str:
    return str((pod.get("status") or {}).get("phase", ""))


def _is_ended_by_kubelet(pod: Object) -> bool:
    """Whether the kubelet itself has failed a pod. Then it says why, as others don't."""
    reason = (pod.get("status") or {}).get("reason")
    return _phase(pod) == "Failed" and reason not in {None, "", _NODE_LOST}


def _words(pod: Object, events: list[Object]) -> Iterator[str]:
    """Why a pod is not what it should be, as far as it or its events say."""
    status = pod.get("status") or {}
    told = False
    if reason := status.get("reason"):
        message = status.get("message")
        yield _sentence(_ENDED_BY.get(reason, reason), message)
        told = True
    for condition in status.get("conditions") or ():
        if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
            reason = condition.get("reason", "")
            yield _sentence(_ENDED_BY.get(reason, reason), condition.get("message"))
            told = True
    for event in events:
        if said := _EVENTS.get(event.get("reason", "")):
            yield _sentence(said, event.get("message"))
            told = True
    if over_at(pod) is not None and not told:
        yield "its pod was deleted, as a person, a drain or an eviction does it"


def _never_starts(bot: Mapping[str, Any], events: list[Object]) -> str | None:
    """Why a container that waits will never start, if that is so."""
    waiting = bot.get("waiting") or {}
    reason, message = waiting.get("reason", ""), waiting.get("message") or ""
    if reason in _NEVER_STARTS and not message.startswith(_NOT_YET):
        return _sentence(_NEVER_STARTS[reason], message)
    if reason in PULLING:
        said = _pull_error(reason, message, events)
        if any(each in said.lower() for each in _NOT_THERE):
            return _sentence("its image can't be pulled", said)
    return None


def _pull_error(reason: str, message: str, events: list[Object]) -> str:
    """Why a pull failed. While the kubelet waits to try again, only an event says."""
    if reason == "ErrImagePull":
        return message
    failed = [
        event.get("message", "")
        for event in events
        if event.get("reason") == "Failed" and "pull" in event.get("message", "")
    ]
    return failed[-1] if failed else message


def _waiting(pod: Object, bot: Mapping[str, Any], events: list[Object]) -> Iterator[str]:
    """What a pod that has not started waits for."""
    waiting = bot.get("waiting") or {}
    reason, message = waiting.get("reason", ""), waiting.get("message") or ""
    if reason in PULLING:
        yield _sentence("its image can't be pulled yet", _pull_error(reason, message, events))
    elif reason:
        yield _sentence(reason, message)
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            yield _sentence("no node has room for it", condition.get("message"))


def _sentence(what: str, message: object) -> str:
    return f"{what}: {message}" if message else what
