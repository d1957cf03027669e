"""The only caller of engines: it makes them match what the database says."""

from botpool.reconciler.checkpoints import Checkpoint
from botpool.reconciler.decisions import Decision, Outcome, counted
from botpool.reconciler.loop import Reconciler

__all__ = ["Checkpoint", "Decision", "Outcome", "Reconciler", "counted"]
