"""Replicas: the running botpools on one database."""

from __future__ import annotations

import os
import platform
import secrets


def new_replica_name() -> str:
    """A name that no other replica has: its machine, its process, and random characters."""
    return f"{platform.node()}/{os.getpid()}/{secrets.token_hex(4)}"
