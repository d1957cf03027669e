"""Replicas: the running botpools on one database."""

from __future__ import annotations

import os
import platform
import secrets
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime


class ReplicaRole(StrEnum):
    """What a replica does: it answers callers and bots, it works on slots, or both."""

    ALL = "all"
    API = "api"
    WORKER = "worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One running botpool."""

    name: str
    role: ReplicaRole
    version: str
    host: str
    started_at: datetime
    last_seen_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaCounts:
    """How many replicas answer, and how many work; one with both roles counts twice."""

    api: int
    worker: int


def new_replica_name() -> str:
    """A name that no other replica has: its machine, its process, and chance."""
    return f"{machine_name()}/{os.getpid()}/{secrets.token_hex(4)}"


def machine_name() -> str:
    """What this machine calls itself."""
    return platform.node()
