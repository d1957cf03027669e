"""The store: one part for each noun, each with its queries in a file of the same name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botpool.store.attention import Attention
from botpool.store.bots import Bots
from botpool.store.diagnoses import Diagnoses
from botpool.store.events import Events
from botpool.store.gauges import Gauges
from botpool.store.hosts import Hosts
from botpool.store.insights import InsightsQueries
from botpool.store.installation import Installation
from botpool.store.keys import Keys
from botpool.store.launches import Launches
from botpool.store.listening import Listening
from botpool.store.pools import Pools
from botpool.store.projects import Projects
from botpool.store.pulls import Pulls
from botpool.store.queue import Queue
from botpool.store.replicas import Replicas
from botpool.store.reservations import Reservations
from botpool.store.server import Server
from botpool.store.sessions import Sessions
from botpool.store.slots import Slots
from botpool.store.transitions import Transitions
from botpool.store.webhooks import Webhooks

if TYPE_CHECKING:
    from botpool.store.postgres.database import Database


class Store:
    """Everything that botpool stores. Each part has one method for each query, and decides nothing.

    A method that changes the state of a slot or a bot returns the transitions that it wrote.
    """

    def __init__(self, database: Database) -> None:
        self.attention = Attention(database)
        self.bots = Bots(database)
        self.diagnoses = Diagnoses(database)
        self.events = Events(database)
        self.hosts = Hosts(database)
        self.insights = InsightsQueries(database)
        self.installation = Installation(database)
        self.keys = Keys(database)
        self.launches = Launches(database)
        self.listening = Listening(database)
        self.pools = Pools(database)
        self.projects = Projects(database)
        self.pulls = Pulls(database)
        self.queue = Queue(database)
        self.replicas = Replicas(database)
        self.gauges = Gauges(database, self.replicas)
        self.reservations = Reservations(database)
        self.server = Server(database)
        self.sessions = Sessions(database)
        self.slots = Slots(database)
        self.transitions = Transitions(database)
        self.webhooks = Webhooks(database)
