"""The command line. It holds no logic: it opens the database, calls the pool and prints."""

from botpool.cli.app import main

__all__ = ["main"]
