"""Replicas: the running botpools on one database."""

from __future__ import annotations

import os
import platform
import secrets
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Sequence
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

    @classmethod
    def of(cls, replicas: Sequence[Replica]) -> Self:
        """Count these."""
        return cls.of_roles([replica.role for replica in replicas])

    @classmethod
    def of_roles(cls, roles: Sequence[ReplicaRole]) -> Self:
        """Count replicas by their roles."""
        return cls(
            api=sum(role is not ReplicaRole.WORKER for role in roles),
            worker=sum(role is not ReplicaRole.API for role in roles),
        )

    @property
    def lacking(self) -> Lacking | None:
        """What no replica does, if there is such a thing."""
        if not self.api and not self.worker:
            return Lacking(
                found="No botpool runs on this database: bots can't be created, and none is started"
                " or stopped",
                mend="Run `botpool serve`.",
            )
        if not self.worker:
            return Lacking(
                found="No worker runs: bots are taken and wait, and none is started or stopped",
                mend="Run `botpool serve --role worker`, or `botpool serve` in place of an API.",
            )
        if not self.api:
            return Lacking(
                found="No API runs: bots can't be created, and those in calls can't be heard",
                mend="Run `botpool serve --role api`, or `botpool serve` in place of a worker.",
            )
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lacking:
    """What is missing for botpool to do its work, and what to do about it."""

    found: str
    mend: str


def new_replica_name() -> str:
    """A name that no other replica has: its machine, its process, and chance."""
    return f"{machine_name()}/{os.getpid()}/{secrets.token_hex(4)}"


def machine_name() -> str:
    """What this machine calls itself."""
    return platform.node()
