"""What an operator wants to know of a container that failed its bot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botpool.errors import EngineError
from botpool.texts import storable

if TYPE_CHECKING:
    from botpool.engines.base import Container, Observation
    from botpool.models import Slot
    from botpool.reconciler.context import Context

_LAST_LINES = 5
_LONGEST = 4000


async def evidence(
    context: Context, slot: Slot, container: Container, observation: Observation
) -> str:
    """How a container stands or ended, of which deployment it is, and what it said last."""
    code = "" if observation.exit_code is None else f" with code {observation.exit_code}"
    detail = f" ({observation.detail})" if observation.detail else ""
    deployment = f", deployment {slot.deployment_ref}" if slot.deployment_ref else ""
    try:
        lines = await context.engine(slot).logs(container, _LAST_LINES)
    except EngineError as error:
        lines = [f"(no logs: {error})"]
    said = "; it said last:\n" + "\n".join(lines) if lines else ""
    return storable(f"container {observation.state}{code}{detail}{deployment}{said}", _LONGEST)
