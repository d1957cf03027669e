"""botpool puts meeting bots into calls fast: a pool of slots whose image is already there."""

__version__ = "0.1.0"
