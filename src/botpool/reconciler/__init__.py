"""The only caller of engines: it makes them match what the database says."""

from botpool.reconciler.checkpoints import Checkpoint
from botpool.reconciler.loop import Reconciler
from botpool.reconciler.recovery import (
    Decision,
    Outcome,
    counted,
)

__all__ = ["Checkpoint", "Decision", "Outcome", "Reconciler", "counted"]
