"""Hosts: which of them get new work. If a host gets room, waiting bots get it at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botpool.errors import HostNotFound, InvalidRequest
from botpool.states import Platform
from botpool.store.installation import ASKED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from botpool.models.hosts import Host, HostReport
    from botpool.models.pulls import PullKey
    from botpool.models.slots import Slot
    from botpool.models.transitions import Transition
    from botpool.pool.publisher import Publisher
    from botpool.settings import Settings
    from botpool.store import Store


class Hosts:
    """Decides which hosts get new work."""

    def __init__(self, store: Store, settings: Settings, publisher: Publisher) -> None:
        self._store = store
        self._settings = settings
        self._publisher = publisher

    async def report(self, engine: str, hosts: Sequence[HostReport]) -> list[Transition]:
        """Note whether hosts answer and how many slots each may have. Bots that wait get room."""
        return await self._publisher.publish(self._store.hosts.report(engine, hosts))

    async def keep(self, hosts: Sequence[tuple[str, str]], every_ms: int) -> list[Transition]:
        """Note that a replica keeps these hosts, and says so every `every_ms`.

        A host of which nobody says so for long is given up.
        """
        return await self._publisher.publish(self._store.hosts.keep(hosts, every_ms))

    async def drain(self, engine: str, host: str, *, drain: bool = True) -> Host:
        """Drain a host, so that it gets no new work, or undrain it. Its bots stay.

        Raises `HostNotFound`.
        """
        await self._get(engine, host)
        await self._publisher.publish(self._store.hosts.drain(engine, host, drain=drain))
        return await self._get(engine, host)

    async def ask_pull(self, engine: str, host: str, image: str | None, *, by: str) -> Host:
        """Have an image brought to a host at once, or without one those of all platforms.

        An image that is there is not fetched again. The outcome is told as a note of the host.
        Raises `HostNotFound`, and `InvalidRequest` if no platform has an image.
        """
        found = await self._get(engine, host)
        of_platforms = {self._settings.image(platform) for platform in Platform}
        images = sorted(each for each in ({image} if image else of_platforms) if each)
        if not images:
            raise InvalidRequest("No platform has an image: say which one to pull.")
        await self._store.pulls.ask(engine, host, images, by)
        self._publisher.wake(ASKED)
        return found

    async def answer_pull(self, key: PullKey) -> list[Transition]:
        """Tell whoever asked for an image on a host that it is there, or why not."""
        return await self._publisher.publish(self._store.pulls.answer(key))

    async def tell_failed_pull(
        self, key: PullKey, error: str, attempt: int, slot: Slot | None = None
    ) -> list[Transition]:
        """Tell the slots that wait for an image, or one of them, why its pull failed.

        Each slot, and its bot, is told once until the error is another.
        """
        reason = f"pull {attempt} of {key.image} failed: {error}"
        return await self._publisher.publish(
            self._store.slots.tell_pull_error(key, error, reason, attempt, slot)
        )

    async def settle_pulls(self, engine: str, host: str) -> list[PullKey]:
        """End the pulls on a host whose starts are over, and make the slots due that waited."""
        ended = await self._store.pulls.settle(engine, host)
        self._publisher.tell_pulls(ended)
        for pull in await self._store.pulls.all() if ended else []:
            if pull.key in ended and pull.error is not None:
                await self.tell_failed_pull(pull.key, pull.error, pull.attempts)
        for key in ended:
            await self._store.pulls.wake(key, 0)
        return ended

    async def note_healthy(self, engine: str, host: str, *, answers_only: bool = False) -> None:
        """Let a host on which something failed get work again; waiting bots get its slots.

        With `answers_only`, only a host that was unhealthy because it didn't answer.
        """
        await self._publisher.publish(
            self._store.hosts.note_success(engine, host, answers_only=answers_only)
        )

    async def start_ahead(self, engine: str, host: str, again_ms: int) -> list[Transition]:
        """Let a slot of a host be started without a bot, if its start brings a missing image."""
        return await self._publisher.publish(
            self._store.pulls.start_ahead(
                engine, host, limit_ms=self._settings.deployment_limit_ms, again_ms=again_ms
            )
        )

    async def probe(self) -> list[Transition]:
        """Let one slot of each unhealthy host get a bot, if the host is due for a probe."""
        return await self._publisher.publish(self._store.hosts.probe())

    async def _get(self, engine: str, host: str) -> Host:
        for known in await self._store.hosts.all():
            if (known.engine, known.host) == (engine, host):
                return known
        raise HostNotFound(f"There is no host {host} of the engine {engine}.")
