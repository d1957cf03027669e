"""Moving over from a pool that exists already, in virtual time on an imitated Coolify."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from botpool.importing import Orders, Outcome, import_slots
from botpool.states import BotStatus, SlotStatus
from tests.fakes.coolify import Rules
from tests.fakes.coolify.site import IMAGE, coolify_site
from tests.support.virtual_time import virtual

if TYPE_CHECKING:
    from botpool.importing import ImportedApplication
    from tests.fakes.coolify.site import CoolifySite

RULES = Rules(pull_seconds=60, check_seconds=5, stop_seconds=2, delete_seconds=2)


def made_elsewhere(site: CoolifySite, name: str, **more: Any) -> str:
    """An application that another pool has made; its uuid."""
    image, _, tag = IMAGE.partition(":")
    fields = {
        "name": name,
        "description": "[IDLE] Available - Last used: 2025-12-16T20:15:00Z",
        "docker_registry_image_name": image,
        "docker_registry_image_tag": tag,
        **more,
    }
    return site.coolify.create_application(site.coolify.rules.servers[0], fields, fields).uuid


def outcomes(told: list[ImportedApplication]) -> dict[str, Outcome]:
    return {application.container_ref: application.outcome for application in told}


@virtual
async def test_applications_of_another_pool_become_slots_and_serve_bots(database_url: str) -> None:
    async with coolify_site(database_url, RULES) as site:
        first = made_elsewhere(site, "meeboter-pool-google-meet-001")
        second = made_elsewhere(site, "pool-google-meet-002")
        made_elsewhere(site, "a-web-shop")
        told = await import_slots(site.store, site.pool, site.engine, Orders())
        assert outcomes(told) == {first: Outcome.IMPORTED, second: Outcome.IMPORTED}
        await site.until_idle(within=60)
        slots = {slot.slot_name: slot.container_ref for slot in await site.store.slots.all()}
        assert slots == {"pool-google-meet-001": first, "pool-google-meet-002": second}
        bots = await site.until_ended(await site.ask_for(2, stay=10), within=600)
        assert {bot.status for bot in bots} == {BotStatus.DONE}
        assert {claim[0] for claim in site.bots.claims} == {first, second}
        assert len(site.coolify.applications) == 3
        again = await import_slots(site.store, site.pool, site.engine, Orders())
        assert {*outcomes(again).values()} == {Outcome.KNOWN}
        site.check()


@virtual
async def test_what_runs_is_left_unless_it_may_be_stopped(database_url: str) -> None:
    async with coolify_site(database_url, RULES) as site:
        runs = made_elsewhere(site, "pool-google-meet-001")
        await site.coolify.start_by_hand(runs)
        await site.coolify.idle()
        (told,) = await import_slots(site.store, site.pool, site.engine, Orders())
        assert (told.outcome, told.why.partition(":")[0]) == (Outcome.LEFT, "it is running")
        assert await site.store.slots.all() == []
        (told,) = await import_slots(site.store, site.pool, site.engine, Orders(stop=True))
        assert told.outcome is Outcome.IMPORTED
        assert [slot.status for slot in await site.store.slots.all()] == [SlotStatus.RELEASING]
        await site.until_idle(within=60)
        assert site.coolify.running() == []
        site.check()


@virtual
async def test_duplicate_names_are_told_and_only_removed_when_asked(database_url: str) -> None:
    async with coolify_site(database_url, RULES) as site:
        twins = {made_elsewhere(site, "pool-google-meet-001") for _ in range(8)}
        told = await import_slots(site.store, site.pool, site.engine, Orders(dry_run=True))
        assert sorted(outcomes(told).values()) == [Outcome.IMPORTED] + [Outcome.LEFT] * 7
        assert await site.store.slots.all() == []
        told = await import_slots(site.store, site.pool, site.engine, Orders())
        assert {*site.coolify.applications} == twins
        told = await import_slots(
            site.store, site.pool, site.engine, Orders(remove_duplicates=True)
        )
        assert sorted(outcomes(told).values()) == [Outcome.KNOWN] + [Outcome.REMOVED] * 7
        await asyncio.sleep(60)
        (slot,) = await site.store.slots.all()
        assert [*site.coolify.applications] == [slot.container_ref]
        site.check()


@virtual
async def test_a_pool_that_is_not_imported_is_left_alone(database_url: str) -> None:
    async with coolify_site(database_url, RULES) as site:
        foreign = {made_elsewhere(site, f"pool-google-meet-00{number}") for number in (1, 2)}
        bots = await site.until_ended(await site.ask_for(1, stay=10), within=600)
        assert {bot.status for bot in bots} == {BotStatus.DONE}
        await asyncio.sleep(300)
        assert foreign < {*site.coolify.applications}
        assert {claim[0] for claim in site.bots.claims}.isdisjoint(foreign)


@virtual
async def test_more_than_the_pool_may_have_are_left(database_url: str) -> None:
    async with coolify_site(database_url, RULES, max_pool_size=1) as site:
        for number in (1, 2):
            made_elsewhere(site, f"pool-google-meet-00{number}")
        told = await import_slots(site.store, site.pool, site.engine, Orders())
        assert [each.outcome for each in told] == [Outcome.IMPORTED, Outcome.LEFT]
        assert "BOTPOOL_MAX_POOL_SIZE" in told[1].why


@virtual
async def test_an_import_takes_no_name_that_a_slot_has(database_url: str) -> None:
    async with coolify_site(database_url, RULES) as site:
        await site.until_ended(await site.ask_for(1, stay=10), within=600)
        made_elsewhere(site, "pool-google-meet-001")
        told = await import_slots(site.store, site.pool, site.engine, Orders())
        assert sorted(each.outcome for each in told) == [Outcome.KNOWN, Outcome.LEFT]
