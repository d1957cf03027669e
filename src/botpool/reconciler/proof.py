"""What proves that nothing of a slot's container runs, and when that is not waited for any longer.

On hosts that are clusters of nodes, a container that was started and is gone proves nothing: its
node may be cut off, and run it on. Such a slot is never made idle. It is given up, which deletes it
and its token: at once if nobody will ever tell more, else when its container should have been over
for `BOTPOOL_LOST_AFTER_MS`. Its container is removed without a slot when its node is back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from botpool.engines.base import STOPPED, ContainerState

if TYPE_CHECKING:
    from botpool.engines.base import Observation
    from botpool.models.slots import Slot
    from botpool.reconciler.context import Context

_ABSENT = frozenset({ContainerState.CREATED, ContainerState.MISSING})


class GivenUp(Exception):
    """It is not proved that a container has stopped, and that is not waited for any longer."""


def lost(context: Context, slot: Slot, observation: Observation) -> bool:
    """Whether a container was started, and is gone without anybody having seen its end."""
    if not context.engine(slot).traits.has_nodes or observation.state not in _ABSENT:
        return False
    return slot.deployment_ref is not None or slot.node is not None


def proved_stopped(context: Context, slot: Slot, observation: Observation) -> bool:
    """Whether nothing of a slot's container runs, nor will by any earlier start.

    Raises `GivenUp` if that is not proved, and not waited for any longer.
    """
    if observation.state in STOPPED and not lost(context, slot, observation):
        return True
    if (why := _why_given_up(context, slot, observation)) is not None:
        raise GivenUp(why)
    return False


def _why_given_up(context: Context, slot: Slot, observation: Observation) -> str | None:
    """Why a proof is not waited for any longer; None if it is."""
    on = f" on the node {slot.node}" if slot.node else ""
    if lost(context, slot, observation):
        return (
            f"given up, not proved stopped: its container{on} is gone, and nobody has seen it end;"
            " somebody has deleted it together with what keeps it until then"
        )
    if not context.engine(slot).traits.has_nodes or observation.over_at is None:
        return None
    late = (slot.read_at - observation.over_at).total_seconds()
    if late * 1000 < context.settings.lost_after_ms:
        return None
    return (
        f"given up, not proved stopped: its container{on} should have been over {late:.0f} s ago,"
        " and its node has not said so"
    )
