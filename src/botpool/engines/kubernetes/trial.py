"""Whether a cluster would make a pod as it is: the server itself tries, and makes nothing.

A server drops fields that it doesn't know without a word. So what it answers is held against what
it was sent. It and its webhooks may add what they like, in any order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from botpool.engines.kubernetes.api import Kind
from botpool.errors import EngineRefused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from botpool.engines.kubernetes.api import KubernetesApi, Object


async def try_out(api: KubernetesApi, pod: Object) -> None:
    """Have a pod tried. Raises `EngineRefused` if the server refuses it or drops a part of it."""
    answered = await api.create(Kind.POD, pod, dry_run=True)
    if dropped := [*_left_out(pod, answered)]:
        raise EngineRefused(f"The cluster {api.host} doesn't know {', '.join(dropped)}")


def _left_out(sent: object, answered: object, path: str = "") -> Iterator[str]:
    """The paths of what was sent and is not in the answer."""
    if isinstance(sent, dict):
        found = answered if isinstance(answered, dict) else {}
        for key, value in sent.items():
            if value and found.get(key) is None:
                yield f"{path}{key}"
            elif value:
                yield from _left_out(value, found[key], f"{path}{key}.")
    elif isinstance(sent, list) and isinstance(answered, list):
        for each in sent:
            name = _name(each)
            alike = (other for other in answered if name is None or _name(other) == name)
            lacking = ([*_left_out(each, other, path)] for other in alike)
            # Names need not be unique: a volume may be mounted twice.
            yield from min(lacking, key=len, default=[f"{path}{name or ''}".rstrip(".")])


def _name(item: object) -> object:
    return item.get("name") if isinstance(item, dict) else None
