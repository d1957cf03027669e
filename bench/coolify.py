"""botpool on Coolify, against what Coolify can do at all."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import socket
import sys
import time
from collections import Counter, defaultdict
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import httpx
import uvicorn

from bench.report import Measure, Part
from botpool.serving import tcp_socket

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from starlette.types import Receive, Scope, Send

ROOT = Path(__file__).parents[1]
MEET = "https://meet.google.com/abc-defg-hij"
IMAGE = "registry.example/meet-bot:7"
BOTS = 20
PULL_SECONDS = 6.0
START_SECONDS = 0.5
AT_A_TIME = 4
LIST_SECONDS = 0.01
STAY_SECONDS = 8
LIMIT = 200
NO_LIMIT = 1_000_000
COLD_ROUNDS = 3
WARM_ROUNDS = 3
APART_SECONDS = 40
PATIENCE_SECONDS = 150
SINGLES = 10
NEWEST, OLDER = "4.3.11", "4.3.2"
LONG_SECONDS = 600
BOTS_A_MINUTE = 30

SETUP = f"""The imitation of Coolify that the tests use, in a process of its own: a pull takes
{PULL_SECONDS:.0f} s, a start {START_SECONDS} s, {AT_A_TIME} at a time, a list
{LIST_SECONDS * 1000:.0f} ms for each application. `botpool serve` is another process. Bots are
coroutines in the imitation that claim, send heartbeats and statuses over plain HTTP, and stay for
{STAY_SECONDS} s, so their boot takes nothing."""

TEXT = f"""{SETUP}

- Warm: {BOTS} bots at once on as many idle slots, from the first `POST` to the last claim.
  {WARM_ROUNDS} rounds; at {LIMIT} requests a minute, {APART_SECONDS} s from one to the next:
  {BOTS * 60 // APART_SECONDS} bots a minute.
- Cold: {BOTS} bots at once on an empty pool and server. {COLD_ROUNDS} rounds, each with a Coolify
  and a database of its own.
- The limit of both is the same applications, made and started by a client that only calls Coolify,
  without Coolify's limit, until the last container has called.
- Requests: all that botpool sent from the first `POST` until every slot was idle and shown so,
  shared lists included, for each bot. Their limit is what the design allows.
- One warm bot: from its `POST` to the arrival of the start call at Coolify, the median of
  {SINGLES}, against 50 ms.
- Shown: how long after its claim a bot was shown as `[BUSY]`, the median of a burst."""

LONG_TEXT = f"""{SETUP} For {LONG_SECONDS // 60} minutes, with Coolify's own limit of {LIMIT}
requests a minute.

- Carried: one bot every {60 / (BOTS_A_MINUTE + 1):.1f} s. Those that claimed within 5 s, and were
  shown as `[BUSY]` with their number and then as `[IDLE]`, a minute.
- Requests: what botpool sent, for each bot, at that rate and with 100 bots over the same time."""

KINDS = (
    (r"GET /applications", "list of applications"),
    (r"GET /deployments", "list of deployments"),
    (r"GET /deployments/applications/.*", "deployments of one"),
    (r"GET /deployments/.*", "one deployment"),
    (r"GET /applications/[^/]+", "one application"),
    (r"GET /applications/[^/]+/logs", "logs"),
    (r"PATCH /applications/[^/]+/envs/bulk", "environment"),
    (r"POST /applications/[^/]+/start", "start"),
    (r"POST /applications/[^/]+/stop", "stop"),
    (r"PATCH /applications/[^/]+", "description"),
    (r"POST /applications/dockerimage", "creation"),
)
SHOWN = re.compile(r"\[(BUSY|IDLE)\] (?:Bot #(\d+))?")


@dataclass(frozen=True)
class Sent:
    """A request that Coolify got."""

    method: str
    path: str
    description: str | None
    at: float
    status: int | None

    @property
    def kind(self) -> str:
        call = f"{self.method} {self.path}"
        return next((kind for pattern, kind in KINDS if re.fullmatch(pattern, call)), "other")

    @property
    def application(self) -> str:
        return self.path.split("/")[2]


@dataclass
class Imitation:
    """A Coolify in a process of its own, and the settings of a botpool that uses it."""

    settings: Mapping[str, str]
    client: httpx.AsyncClient

    async def told(self, since: int = 0) -> tuple[list[Sent], dict[int, float]]:
        """What it was asked, and when which bot's claim was answered."""
        told = (await self.client.get(f"/imitation?{since}")).json()
        claims = {int(bot): at for bot, at in told["claims"].items()}
        return [Sent(**one) for one in told["requests"]], claims

    async def count(self) -> int:
        return len((await self.told())[0])

    async def claims(self, bots: Sequence[int]) -> list[float]:
        """When each of the bots claimed, once all have."""
        while True:
            _, claims = await self.told(NO_LIMIT)
            if {*bots} <= claims.keys():
                return [claims[bot] for bot in bots]
            await asyncio.sleep(0.1)


@asynccontextmanager
async def process(*command: str, **options: Any) -> AsyncIterator[Callable[[], Awaitable[str]]]:
    """What reads the lines of a process, which at the end is asked to end, and then killed."""
    running = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, **options
    )

    async def line() -> str:
        read = await running.stdout.readline() if running.stdout else b""
        if not read:
            raise RuntimeError(f"{command[0]} has ended.")
        return read.decode()

    try:
        yield line
    finally:
        running.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(running.communicate(), 20)
        except TimeoutError:
            running.kill()
            await running.wait()


@asynccontextmanager
async def imitation(limit: int, version: str = NEWEST) -> AsyncIterator[Imitation]:
    rules = {
        "version": version,
        "requests-per-minute": limit,
        "pull-seconds": PULL_SECONDS,
        "start-seconds": START_SECONDS,
        "concurrent-builds": AT_A_TIME,
        "list-seconds": LIST_SECONDS,
    }
    options = [f"--{name}={value}" for name, value in rules.items()]
    command = (sys.executable, "-m", "tests.fakes.coolify", "--port=0", "--light", *options)
    async with process(*command, cwd=ROOT) as line:
        lines = [await line() for _ in range(6)]
        settings = dict(shlex.split(each)[0].split("=", 1) for each in lines)
        async with httpx.AsyncClient(base_url=settings["COOLIFY_API_URL"], timeout=30) as client:
            yield Imitation(settings, client)


@dataclass
class Site:
    """A botpool, and its Coolify."""

    coolify: Imitation
    client: httpx.AsyncClient

    async def ask(self, count: int = 1, stay: float = STAY_SECONDS) -> list[int]:
        """Ask for bots at once, and return their numbers."""
        body = {"meetingUrl": MEET, "config": {"stay": stay}}
        asked = [self.client.post("/api/v1/bots", json=body) for _ in range(count)]
        return [answer.json()["bot"]["id"] for answer in await asyncio.gather(*asked)]

    async def burst(self) -> tuple[float, list[int], float]:
        """Ask for all bots. Returns when, which, and the milliseconds until the last claim."""
        began = time.time()
        bots = await self.ask(BOTS)
        return began, bots, (max(await self.coolify.claims(bots)) - began) * 1000

    async def until_clean(self) -> bool:
        """Whether every slot is idle and Coolify shows it so, for which this waits."""
        until = time.time() + PATIENCE_SECONDS
        while time.time() < until:
            pools = (await self.client.get("/api/v1/pool")).json()["platforms"]
            if all(pool["idle"] == pool["total"] for pool in pools):
                last: dict[str, str] = {}
                for one in (await self.coolify.told())[0]:
                    if one.description and one.method == "PATCH" and one.status == 200:
                        last[one.application] = one.description
                if all(text.startswith("[IDLE]") for text in last.values()):
                    return True
            await asyncio.sleep(0.2)
        return False


@asynccontextmanager
async def site(folder: Path, coolify: Imitation, limit: int = LIMIT) -> AsyncIterator[Site]:
    folder.mkdir()  # noqa: ASYNC240
    environment = {
        "PATH": os.environ["PATH"],
        "BOTPOOL_ENGINE": "coolify",
        "BOTPOOL_DATA_DIR": str(folder),
        "BOTPOOL_PORT": "0",
        "BOTPOOL_IMAGE_GOOGLE_MEET": IMAGE,
        "BOTPOOL_PULL_AHEAD": "false",
        "BOTPOOL_MAX_CONCURRENT_DEPLOYMENTS": str(AT_A_TIME),
        "BOTPOOL_DEFAULT_QUEUE_TIMEOUT_MS": "600000",
        "BOTPOOL_COOLIFY_REQUESTS_PER_MINUTE": str(limit),
        **coolify.settings,
    }
    botpool = str(Path(sys.executable).parent / "botpool")
    with (folder / "log").open("wb") as log:
        async with process(botpool, "serve", env=environment, stderr=log) as line:
            while not (said := await line()).startswith("the API:"):
                pass
            url = said.removeprefix("the API:").strip().removesuffix("/docs")
            key = (folder / "admin.key").read_text().strip()
            headers = {"Authorization": f"Bearer {key}"}
            async with httpx.AsyncClient(base_url=url, headers=headers, timeout=30) as client:
                yield Site(coolify, client)


class Arrivals:
    """Where containers call that are in no pool: each is turned away."""

    def __init__(self) -> None:
        self.count = 0
        self.more = asyncio.Condition()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b""})
        async with self.more:
            self.count += 1
            self.more.notify_all()

    async def until(self, count: int) -> None:
        async with self.more:
            await self.more.wait_for(lambda: self.count >= count)


async def bare() -> tuple[float, float]:
    """The milliseconds for the same applications without a pool: empty, and then warm."""
    listening = tcp_socket(socket.create_server(("127.0.0.1", 0)))
    arrivals = Arrivals()
    config = uvicorn.Config(arrivals, interface="asgi3", lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    async with imitation(NO_LIMIT) as coolify:
        said = coolify.settings
        client = coolify.client
        client.headers["authorization"] = f"Bearer {said['COOLIFY_API_TOKEN']}"
        client.headers["accept"] = "application/json"
        name, tag = IMAGE.split(":")
        body = {
            "project_uuid": said["COOLIFY_PROJECT_UUID"],
            "environment_name": said["COOLIFY_ENVIRONMENT_NAME"],
            "server_uuid": said["COOLIFY_SERVER_UUID"],
            "docker_registry_image_name": name,
            "docker_registry_image_tag": tag,
        }
        variables = {"BOTPOOL_URL": url, "BOTPOOL_SLOT_TOKEN": "bare"}
        data = [{"key": key, "value": value} for key, value in variables.items()]

        async def start(uuid: str) -> None:
            await client.patch(f"/api/v1/applications/{uuid}/envs/bulk", json={"data": data})
            await client.post(f"/api/v1/applications/{uuid}/start")

        async def make() -> str:
            made = await client.post("/api/v1/applications/dockerimage", json=body)
            uuid: str = made.json()["uuid"]
            await start(uuid)
            return uuid

        began = time.perf_counter()
        uuids = await asyncio.gather(*(make() for _ in range(BOTS)))
        await arrivals.until(BOTS)
        cold = time.perf_counter() - began
        for uuid in uuids:
            await client.post(f"/api/v1/applications/{uuid}/stop", params={"docker_cleanup": "0"})
        while any(
            not one["status"].startswith("exited")
            for one in (await client.get("/api/v1/applications")).json()
        ):
            await asyncio.sleep(0.1)
        began = time.perf_counter()
        await asyncio.gather(*(start(uuid) for uuid in uuids))
        await arrivals.until(2 * BOTS)
        warm = time.perf_counter() - began
    server.should_exit = True
    await serving
    return cold * 1000, warm * 1000


@dataclass
class Found:
    """What was seen at one Coolify."""

    cold: list[float]
    warm: list[float]
    requests: list[float]
    kinds: Counter[str]
    shown: list[float]
    singles: list[float]


async def bursts(folder: Path, limit: int, version: str, rounds: int) -> Found:
    """One cold burst and some warm ones, then single bots."""
    found = Found([], [], [], Counter(), [], [])
    async with imitation(limit, version) as coolify, site(folder, coolify, limit) as here:
        found.cold.append((await here.burst())[2])
        await here.until_clean()
        await asyncio.sleep(60 if limit == LIMIT else 0)
        for _ in range(rounds):
            seen = await coolify.count()
            began, bots, took = await here.burst()
            found.warm.append(took)
            clean = await here.until_clean()
            sent, claims = await coolify.told(seen)
            found.requests.append(len(sent) / BOTS if clean else float("inf"))
            found.kinds.update(one.kind for one in sent)
            late = [at - claims[bot] for bot, at in busy(sent).items() if bot in bots]
            found.shown.append(median(late) * 1000 if late else float("inf"))
            if limit == LIMIT:
                await asyncio.sleep(max(0.0, began + APART_SECONDS - time.time()))
        if limit == LIMIT and version == NEWEST:
            await asyncio.sleep(60)
            found.singles = await singles(here)
    return found


async def singles(here: Site) -> list[float]:
    """The milliseconds from `POST` to start call of one bot after the other."""
    times = []
    for _ in range(SINGLES):
        seen = await here.coolify.count()
        began = time.time()
        await here.coolify.claims(await here.ask(stay=1))
        sent, _ = await here.coolify.told(seen)
        started = [one.at for one in sent if one.kind == "start" and one.at > began]
        times.append((min(started) - began) * 1000)
    return times


def busy(sent: Sequence[Sent]) -> dict[int, float]:
    """When each bot was first shown in its slot."""
    shown: dict[int, float] = {}
    for one in sent:
        match = SHOWN.match(one.description or "")
        if match and match[2] and one.status == 200:
            shown.setdefault(int(match[2]), one.at)
    return shown


def freed(sent: Sequence[Sent]) -> set[int]:
    """The bots whose slots were shown as idle after them."""
    last: dict[str, set[int]] = defaultdict(set)
    done: set[int] = set()
    for one in sent:
        match = SHOWN.match(one.description or "")
        if match and one.status == 200:
            if match[2]:
                last[one.application] = {int(match[2])}
            else:
                done |= last.pop(one.application, set())
    return done


def listed(kinds: Counter[str], bots: int) -> str:
    """How many requests of each kind a bot needed."""
    return ", ".join(f"{kind} {count / bots:.2f}" for kind, count in kinds.most_common())


async def run(folder: Path, say: Callable[[str], None]) -> Part:
    """Measure everything of this part."""
    folder = folder / "coolify"
    folder.mkdir()
    cold_limit, warm_limit = [], []
    for number in range(COLD_ROUNDS):
        say(f"Coolify without a pool, round {number + 1}")
        cold, warm = await bare()
        cold_limit.append(cold)
        warm_limit.append(warm)
    colds = []
    for number in range(COLD_ROUNDS - 1):
        say(f"an empty Coolify with its limit, round {number + 1}")
        async with imitation(LIMIT) as coolify, site(folder / f"c{number}", coolify) as here:
            colds.append((await here.burst())[2])
    say("bursts at Coolify with its limit")
    limited = await bursts(folder / "limited", LIMIT, NEWEST, WARM_ROUNDS)
    say("bursts at Coolify without its limit")
    free = await bursts(folder / "free", NO_LIMIT, NEWEST, WARM_ROUNDS)
    say(f"bursts at Coolify {OLDER}")
    older = await bursts(folder / "older", NO_LIMIT, OLDER, 1)
    colds += limited.cold
    at = f"at {LIMIT} requests a minute"
    per_bot = "requests a bot's life, warm"
    measures = [
        Measure(f"{BOTS} warm ÷ bare, {at}", "ms", limited.warm, warm_limit, at_most=1.3),
        Measure(f"{BOTS} warm ÷ bare, no limit", "ms", free.warm, warm_limit),
        Measure(f"{BOTS} cold ÷ bare, {at}", "ms", colds, cold_limit, at_most=1.3),
        Measure(f"{BOTS} cold ÷ bare, no limit", "ms", free.cold, cold_limit[:1]),
        Measure(
            f"{per_bot}, {at} ÷ 6", "requests", limited.requests, [6.0] * WARM_ROUNDS, at_most=1
        ),
        Measure(f"{per_bot}, no limit ÷ 6", "requests", free.requests, [6.0] * WARM_ROUNDS),
        Measure(f"{per_bot}, Coolify {OLDER} ÷ 8", "requests", older.requests, [8.0], at_most=1),
        Measure(
            "one warm bot: POST → start call ÷ 50 ms",
            "ms",
            [median(limited.singles)],
            [50.0],
            at_most=1,
        ),
        Measure(f"claim → shown as busy, {at} ÷ 1 s", "ms", limited.shown, [1000.0] * WARM_ROUNDS),
    ]
    kinds = f"""Requests a bot by kind, {at}: {listed(limited.kinds, BOTS * WARM_ROUNDS)}.
Without the limit: {listed(free.kinds, BOTS * WARM_ROUNDS)}.
Coolify {OLDER}: {listed(older.kinds, BOTS)}."""
    say(kinds)
    return Part("Coolify", f"{TEXT}\n\n{kinds}", measures)


async def steadily(folder: Path, count: int) -> tuple[float, float, Counter[str]]:
    """So many bots over the time. Returns those carried, the requests of each, and their kinds."""
    async with imitation(LIMIT) as coolify, site(folder, coolify) as here:
        await here.burst()
        await here.until_clean()
        seen = await coolify.count()
        began = time.time()
        asked: dict[int, float] = {}

        async def ask() -> None:
            at = time.time()
            asked[(await here.ask())[0]] = at

        async with asyncio.TaskGroup() as group:
            for number in range(count):
                await asyncio.sleep(began + number * LONG_SECONDS / count - time.time())
                group.create_task(ask())
        claims = dict(zip(asked, await coolify.claims([*asked]), strict=True))
        await here.until_clean()
        sent, _ = await coolify.told(seen)
    prompt = {bot for bot, at in claims.items() if at - asked[bot] <= 5}
    carried = prompt & busy(sent).keys() & freed(sent)
    return len(carried), len(sent) / count, Counter(one.kind for one in sent)


async def run_long(folder: Path, say: Callable[[str], None]) -> Part:
    """Measure ten minutes of it."""
    many, few = (BOTS_A_MINUTE + 1) * LONG_SECONDS // 60, 100
    minutes = LONG_SECONDS / 60
    say(f"{many} and {few} bots over {minutes:.0f} minutes")
    folder = folder / "long"
    folder.mkdir()
    (carried, requests, kinds), (shown, each, kinds_of_few) = await asyncio.gather(
        steadily(folder / "many", many), steadily(folder / "few", few)
    )
    measures = [
        Measure(
            f"bots carried a minute at {LIMIT} requests ÷ {BOTS_A_MINUTE}",
            "bots",
            [carried / minutes],
            [float(BOTS_A_MINUTE)],
            at_least=1,
        ),
        Measure(f"of {few} bots over the same time, carried", "bots", [shown], [float(few)]),
        Measure(f"requests a bot, {BOTS_A_MINUTE + 1} a minute ÷ 6", "requests", [requests], [6.0]),
        Measure(f"requests a bot, {few} in all ÷ 6", "requests", [each], [6.0]),
    ]
    text = f"""Requests a bot by kind at {BOTS_A_MINUTE + 1} a minute: {listed(kinds, many)}. With
{few} bots: {listed(kinds_of_few, few)}."""
    say(text)
    return Part("Coolify for ten minutes", f"{LONG_TEXT}\n\n{text}", measures)
