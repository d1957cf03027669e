"""The only caller of engines: brings about what the database says should be."""

from botpool.reconciler.loop import Reconciler
from botpool.reconciler.points import Point

__all__ = ["Point", "Reconciler"]
