"""A meeting of the test, and a bot in a container that goes there."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import Callable

BOT = r"""#!/bin/sh
# A bot: it claims, goes into the meeting, and stays until that is over. What it asks of botpool it
# asks until there is an answer, or until there was none for as long as botpool has said. Asked to
# end, it ends without a word.
go() { wget -q -O - "MEETING/$1" & wait $!; }
now() { busybox date +%s; }
ask() {
  since=$(now)
  until answer=$(busybox timeout 5 wget -q -O - \
    --header "Authorization: Bearer $BOTPOOL_SLOT_TOKEN" \
    --header 'Content-Type: application/json' --post-data "$2" \
    "$BOTPOOL_URL/api/v1/runtime/$1" 2>&1)
  do
    case "$answer" in *"HTTP/1.1 4"*) echo "over"; exit 0 ;; esac
    if [ $(($(now) - since)) -ge $most ]; then echo "botpool is out of reach"; kill $$; exit 0; fi
    sleep 0.2
  done
}
say() { ask status "{\"lease\":$lease,\"status\":\"$1\"}"; echo "$1"; }
field() { rest=${answer#*\"$1\":}; echo "${rest%%[,\}]*}"; }
heartbeats() { while :; do ask heartbeat "{\"lease\":$lease}"; sleep 0.5; done; }
trap 'exit 143' TERM
most=3600
go "started/$POOL_SLOT_UUID"
ask claim '{}'
bot=$(field botId) lease=$(field lease) most=$(($(field maxSilenceMs) / 1000)) orders=$answer
echo "bot $bot, lease $lease"
case "$orders" in *'"do":"ignore SIGTERM"'*) trap '' TERM ;; esac
heartbeats &
go "join/$bot/$lease"
say IN_CALL
case "$orders" in
  *'"do":"fill /dev/shm"'*) cat /dev/zero > /dev/shm/recording || exit 1 ;;
  *'"do":"fill its disk"'*) cat /dev/zero > /recording || exit 1 ;;
  *'"do":"write too much"'*) head -c 20000000 /dev/zero > /recordings/call ;;
  *'"do":"use memory"'*) exec tail /dev/zero ;;
  *'"do":"refuse to end"'*) trap 'echo "not yet"' TERM; while :; do sleep 9 & wait $!; done ;;
esac
go "stay/$bot/$lease"
say DONE
# Nothing else ends it, if Docker was restarted in the midst of its start and knows nothing of it.
sleep 10 & wait $!
"""


class Meeting:
    """Where bots in containers go, over HTTP, and what it has seen of them.

    No bot gets in while the `lobby` is closed, and all stay until it is `over`.
    """

    def __init__(self) -> None:
        self.lobby, self.over = asyncio.Event(), asyncio.Event()
        self.lobby.set()
        self.over.set()
        self.starts: Counter[str] = Counter()
        """How often each container was started."""
        self.arrived: Counter[int] = Counter()
        self.joined: Counter[int] = Counter()
        """How often each bot came, and how often it was let in."""
        self.present: Counter[int] = Counter()
        self.twice: set[int] = set()
        """The bots that were there twice at a time."""
        self._news = asyncio.Condition()

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/started/{container}", self._started)
        app.router.add_get("/join/{bot}/{lease}", self._join)
        app.router.add_get("/stay/{bot}/{lease}", self._stay)
        return app

    async def until(self, seen: Callable[[], bool]) -> None:
        async with self._news:
            await self._news.wait_for(seen)

    async def until_joined(self, bots: int) -> None:
        """Wait until so many have been let in, each counted once."""
        await self.until(lambda: len(self.joined) >= bots)

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()

    async def _started(self, request: web.Request) -> web.Response:
        self.starts[request.match_info["container"]] += 1
        await self._tell()
        return web.Response()

    async def _join(self, request: web.Request) -> web.Response:
        bot = int(request.match_info["bot"])
        self.arrived[bot] += 1
        await self._tell()
        await self.lobby.wait()
        self.joined[bot] += 1
        await self._tell()
        return web.Response()

    async def _stay(self, request: web.Request) -> web.Response:
        bot = int(request.match_info["bot"])
        self.present[bot] += 1
        if self.present[bot] > 1:
            self.twice.add(bot)
        try:
            await self._tell()
            await self.over.wait()
        finally:
            # A bot that hangs up is not there any more.
            self.present[bot] -= 1
        return web.Response()
