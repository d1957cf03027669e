"""What Coolify's limit of requests carries, in virtual time: the speed of the machine is no matter.

The same is measured in real time, on real processes, by `python -m bench coolify`.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import pytest

from botpool.states import BotStatus
from tests.fakes.coolify import Rules
from tests.fakes.coolify.site import coolify_site
from tests.support.virtual_time import virtual

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.fakes.coolify import Request
    from tests.fakes.coolify.site import CoolifySite

BOTS = 20
PULL_SECONDS, START_SECONDS, AT_A_TIME = 6.0, 0.5, 4
WARM_SECONDS = START_SECONDS * BOTS / AT_A_TIME
"""What Coolify takes for so many starts."""


def strict(version: str = "4.3.11") -> Rules:
    return Rules(
        version=version,
        pull_seconds=PULL_SECONDS,
        start_seconds=START_SECONDS,
        concurrent_builds=AT_A_TIME,
        list_seconds=0.01,
        latency_seconds=0.01,
    )


async def burst(site: CoolifySite) -> tuple[list[int], float]:
    """Ask for bots at once. Returns them, and the seconds until the last of them has claimed."""
    began = asyncio.get_running_loop().time()
    bots = await site.ask_for(BOTS, stay=8)
    async with asyncio.timeout(600):
        while not {*bots} <= {bot for _, bot, _ in site.bots.claims}:
            await asyncio.sleep(0.05)
    return bots, asyncio.get_running_loop().time() - began


async def until_shown_idle(site: CoolifySite, within: float) -> None:
    await site.until_idle(within)
    async with asyncio.timeout(within):
        while not all(
            (one.description or "").startswith("[IDLE]")
            for one in site.coolify.applications.values()
        ):
            await asyncio.sleep(0.5)


def shown(requests: Sequence[Request]) -> tuple[set[int], set[int]]:
    """The bots that were shown as busy, and those after which their slot was shown as idle."""
    busy: dict[str, int] = {}
    seen: set[int] = set()
    freed: set[int] = set()
    for one in requests:
        text = one.body.get("description") or ""
        if one.method == "PATCH" and one.status == 200:
            if found := re.match(r"\[BUSY\] Bot #(\d+)", text):
                busy[one.path] = int(found[1])
                seen.add(int(found[1]))
            elif text.startswith("[IDLE]") and one.path in busy:
                freed.add(busy.pop(one.path))
    return seen, freed


@pytest.mark.parametrize(("version", "most"), [("4.3.11", 6), ("4.3.2", 8)])
@virtual
async def test_bursts_are_as_fast_as_coolify_and_each_bot_costs_few_requests(
    database_url: str, version: str, most: int
) -> None:
    async with coolify_site(
        database_url, strict(version), poll_interval_ms=100, pull_ahead=False
    ) as site:
        _, cold = await burst(site)
        assert cold <= 1.3 * (PULL_SECONDS + WARM_SECONDS)
        await until_shown_idle(site, within=300)
        await asyncio.sleep(60)
        for _ in range(3):
            before = len(site.coolify.requests)
            bots, warm = await burst(site)
            assert warm <= 1.3 * WARM_SECONDS
            await until_shown_idle(site, within=300)
            sent = site.coolify.requests[before:]
            assert len(sent) <= most * BOTS
            assert {429} & {one.status for one in sent} == set()
            assert shown(sent) == ({*bots}, {*bots})
            await asyncio.sleep(40 if most == 6 else 60)
        site.check()


@virtual
async def test_200_requests_carry_thirty_bots_a_minute_and_every_status_is_shown(
    database_url: str,
) -> None:
    rules = strict()
    async with coolify_site(database_url, rules, poll_interval_ms=1000, pull_ahead=False) as site:
        await burst(site)
        await until_shown_idle(site, within=300)
        # In the minute of the burst, what is short is the descriptions.
        await asyncio.sleep(60)
        before = len(site.coolify.requests)
        bots = []
        for _ in range(31 * 10):
            bots += await site.ask_for(1, stay=8)
            await asyncio.sleep(60 / 31)
        ended = await site.until_ended(bots, within=60)
        assert {bot.status for bot in ended} == {BotStatus.DONE}
        await until_shown_idle(site, within=60)
        sent = site.coolify.requests[before:]
        assert {429} & {one.status for one in sent} == set()
        assert shown(sent) == ({*bots}, {*bots})
        site.check()
