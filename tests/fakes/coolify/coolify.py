"""The whole imitation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.fakes.coolify.app import App
from tests.fakes.coolify.containers import TaskContainers, wait_for_stop
from tests.fakes.coolify.model import Model
from tests.fakes.coolify.rules import Faults, Rules

if TYPE_CHECKING:
    from tests.fakes.coolify.containers import Containers


class Coolify(Model):
    """A Coolify in memory, with its API as an ASGI application.

    Without `containers`, what runs in one does nothing until it is stopped. `rules` and `faults`
    may be replaced at any time. `close` it at the end.
    """

    def __init__(
        self,
        rules: Rules | None = None,
        *,
        containers: Containers | None = None,
        faults: Faults | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(rules or Rules(), containers or TaskContainers(wait_for_stop), seed)
        self.faults = faults or Faults()
        self.users: dict[str, int] = {}
        """Each token's user."""
        self.token = self.new_token(user=1)
        self.token_expired = False
        self.outage: int | None = None
        """While set, the status of every answer."""
        self.app = App(self, seed)

    def new_token(self, user: int) -> str:
        """A token of a user: all of one user's count together for the rate limit."""
        token = f"{len(self.users) + 1}|{self.new_uuid()}"
        self.users[token] = user
        return token
