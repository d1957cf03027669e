"""The only caller of engines: brings about what the database says should be."""

from botpool.reconciler.loop import Reconciler
from botpool.reconciler.points import Point
from botpool.reconciler.recovery import SILENT, Decision, Outcome, counted

__all__ = ["SILENT", "Decision", "Outcome", "Point", "Reconciler", "counted"]
