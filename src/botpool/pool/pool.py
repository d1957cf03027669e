"""The pool: which bot gets which slot, and when the slot is free again.

Every operation is one short transaction in the database and touches nothing else. Each logs the
transitions that it wrote, and returns them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from botpool.pool.assignments import Assignments
from botpool.pool.container_logs import ContainerLogs
from botpool.pool.creation import Creation
from botpool.pool.diagnoses import Diagnoses
from botpool.pool.hosts import Hosts
from botpool.pool.lease_check import LeaseCheck
from botpool.pool.listening import Listening
from botpool.pool.publisher import Publisher
from botpool.pool.queue import Queue
from botpool.pool.relaunch import Relaunch
from botpool.pool.retention import Retention
from botpool.pool.slots import Slots

if TYPE_CHECKING:
    from botpool.pool.publisher import Listener
    from botpool.settings import Settings
    from botpool.store import Store


class Pool:
    """Makes the decisions. Safe to share between tasks; any number may work on one database.

    Callers that only read use the store. The listener hears of what this pool has written.
    """

    def __init__(self, store: Store, settings: Settings, listener: Listener | None = None) -> None:
        publisher, leases = Publisher(store, listener), LeaseCheck(store)
        self.creation = Creation(store, settings, publisher)
        self.queue = Queue(store, settings, publisher)
        self.assignments = Assignments(store, settings, publisher, leases)
        self.relaunch = Relaunch(store, settings, publisher, self.assignments)
        self.slots = Slots(store, publisher, leases)
        self.container_logs = ContainerLogs(store, publisher)
        self.diagnoses = Diagnoses(store, publisher)
        self.hosts = Hosts(store, settings, publisher)
        self.listening = Listening(store, settings)
        self.retention = Retention(store, settings)
