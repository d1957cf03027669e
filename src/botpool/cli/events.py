"""The events of the stream, one after the other, also across a cut connection and a restart."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from botpool.cli.exits import CommandFailed, Exit
from botpool.cli.output import hint
from botpool.cli.patience import Patience

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from botpool.cli.api import Api

Event = dict[str, Any]

_CUT = "The connection was closed."


class Events:
    """Follows the stream. Each event comes once, and none is left out without a word."""

    def __init__(self, api: Api, **parameters: object) -> None:
        self._api = api
        self._parameters = parameters
        self._patience = Patience(api)
        self._position: str | None = None
        self._began = False

    async def follow(self) -> AsyncIterator[Event]:
        """Every event from now on. Raises `CommandFailed` if there is no going on."""
        while True:
            try:
                async for event in self._read():
                    yield event
                error = CommandFailed(_CUT, Exit.NO_ANSWER)
            except CommandFailed as failed:
                error = failed
            if error.code is Exit.FAILED and self._position is not None:
                # It was away for longer than its stream goes back, or is on another database.
                hint(f"botpool: {error} Some events are left out.")
                self._position = None
            else:
                await self._patience.bear(error)

    async def _read(self) -> AsyncIterator[Event]:
        async with self._api.stream(self._position, **self._parameters) as lines:
            data: list[str] = []
            position = None
            async for line in lines:
                name, _, value = line.partition(":")
                if name == "id":
                    position = value.removeprefix(" ")
                    self._patience.passed()
                    if not self._began:
                        self._began = True
                        hint("Watching … Ctrl-C ends it.")
                elif name == "data":
                    data.append(value.removeprefix(" "))
                elif not line:
                    # Only now is it whole: a connection that is cut may end in the middle of it.
                    self._position = position or self._position
                    if data:
                        yield json.loads("\n".join(data))
                    data, position = [], None
