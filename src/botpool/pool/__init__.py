"""The decisions, in short transactions and without an engine: creation, queue, assignments."""

from botpool.pool.pool import Pool

__all__ = ["Pool"]
