"""botpool on Coolify as it behaves: real pool, reconciler and PostgreSQL, in virtual time."""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from typing import TYPE_CHECKING, Any
from unittest.mock import AsyncMock, patch

import pytest

from botpool.errors import EngineUnavailable
from botpool.states import BotStatus, FailureCause, SlotStatus
from tests.fakes.coolify import DeploymentStatus, Faults, Rules
from tests.fakes.coolify.site import IMAGE, coolify_site
from tests.support.virtual_time import virtual

if TYPE_CHECKING:
    from pathlib import Path

    from botpool.models.bots import Bot
    from tests.fakes.coolify.site import CoolifySite

USUAL = Rules(pull_seconds=300, check_seconds=10, stop_seconds=3, delete_seconds=3)


def outcomes(bots: list[Bot]) -> Counter[tuple[BotStatus, str | None]]:
    return Counter((bot.status, bot.failure_reason) for bot in bots)


def applications_of(site: CoolifySite) -> dict[str, str]:
    return {uuid: application.name for uuid, application in site.coolify.applications.items()}


async def description_of(site: CoolifySite, tag: str, within: float = 30) -> str:
    """The description of the only application, as soon as it begins with this tag."""
    async with asyncio.timeout(within):
        while True:
            found = [app.description or "" for app in site.coolify.applications.values()]
            if len(found) == 1 and found[0].startswith(tag):
                return found[0]
            await asyncio.sleep(1)


@virtual
async def test_a_wave_pulls_once_on_each_server_and_the_next_one_not_at_all(
    database_url: str,
) -> None:
    rules = Rules(servers=("a", "b"), pull_seconds=400, check_seconds=10, stop_seconds=3)
    async with coolify_site(database_url, rules, replicas=2) as site:
        for wave in (1, 2):
            bots = await site.until_ended(await site.ask_for(20), within=1500)
            assert outcomes(bots) == {(BotStatus.DONE, None): 20}
            assert site.coolify.pulls == {("a", IMAGE): 1, ("b", IMAGE): 1}
            assert [*site.coolify.most_pulls.values()] == [1, 1]
            await site.until_idle(within=200)
            assert {*site.coolify.started.values()} == {wave}
        servers = Counter(app.server_uuid for app in site.coolify.applications.values())
        assert servers == {"a": 10, "b": 10}
        site.check()


@virtual
async def test_the_description_of_an_application_says_what_its_slot_does(database_url: str) -> None:
    async with coolify_site(database_url, USUAL, max_pool_size=1, max_launch_attempts=1) as site:
        (bot,) = await site.ask_for(1, stay=100)
        deploying = await description_of(site, "[DEPLOYING] Bot", within=60)
        assert deploying.startswith(f"[DEPLOYING] Bot #{bot} - 2026-01-01T08:0")
        busy = await description_of(site, "[BUSY]", within=600)
        assert busy.startswith(f"[BUSY] Bot #{bot} - 2026-01-01T08:0")
        await site.until_ended([bot], within=600)
        idle = await description_of(site, "[IDLE]")
        assert idle.startswith("[IDLE] Available - Last used: 2026-01-01T08:0")
        site.coolify.unknown_images.add(IMAGE)
        with patch.object(site.engine, "stop", AsyncMock(side_effect=EngineUnavailable("busy"))):
            (bot,) = await site.ask_for(1)
            error = await description_of(site, "[ERROR]", within=60)
        assert error.startswith("[ERROR] deployment ")
        site.check()


def texts_of(site: CoolifySite) -> list[str]:
    """The descriptions that were sent, without their times."""
    return [
        request.body["description"].rpartition(" - ")[0]
        for request in site.coolify.requests
        if request.method == "PATCH" and request.body.keys() == {"description"}
    ]


@virtual
async def test_a_healthy_life_shows_two_things_each_at_once(database_url: str) -> None:
    rules = Rules(check_seconds=10, stop_seconds=3)
    async with coolify_site(database_url, rules, pull_ahead=False) as site:
        for _ in range(2):
            (bot,) = await site.ask_for(1, stay=20)
            async with asyncio.timeout(30):
                while not site.bots.claims or site.bots.claims[-1][1] != bot:
                    await asyncio.sleep(0.1)
            # Nobody worked on the slot when its bot claimed it.
            await description_of(site, f"[BUSY] Bot #{bot}", within=10)
            await site.until_idle(within=100)
            await description_of(site, "[IDLE]", within=10)
        shown = [f"[BUSY] Bot #{bot}" for bot in (1, 2)]
        assert texts_of(site) == [shown[0], "[IDLE] Available", shown[1], "[IDLE] Available"]
        site.check()


@virtual
async def test_a_description_that_could_not_be_sent_is_sent_later(database_url: str) -> None:
    async with coolify_site(database_url, Rules(check_seconds=5), pull_ahead=False) as site:
        (bot,) = await site.ask_for(1, stay=600)
        await site.until_status([bot], BotStatus.IN_CALL, within=100)
        await description_of(site, "[BUSY]")
        (application,) = site.coolify.applications.values()
        application.fields["description"] = "[IDLE] said somebody"
        await description_of(site, "[BUSY]", within=60)
        site.coolify.outage = 503
        await site.pool.assignments.stop_bot(bot, "enough")
        await asyncio.sleep(300)
        site.coolify.outage = None
        await site.until_idle(within=300)
        await description_of(site, "[IDLE]", within=200)
        site.check()


def launches_of(site: CoolifySite, since: int = 0) -> Counter[str]:
    """How often each call was made, without the uuids in their paths."""
    return Counter(
        "/".join([one.method, *(part for part in one.path.split("/") if 0 < len(part) < 24)])
        for one in site.coolify.requests[since:]
    )


@pytest.mark.parametrize(("version", "most"), [("4.3.11", 6), ("4.3.2", 8)])
@virtual
async def test_a_life_on_a_warm_slot_costs_few_requests(
    database_url: str, version: str, most: int
) -> None:
    rules = Rules(
        version=version, pull_seconds=60, check_seconds=0.5, stop_seconds=1, concurrent_builds=4
    )
    async with coolify_site(database_url, rules, pull_ahead=False) as site:
        await site.until_ended(await site.ask_for(20, stay=10), within=300)
        await site.until_idle(within=200)
        await asyncio.sleep(120)
        before = len(site.coolify.requests)
        bots = await site.until_ended(await site.ask_for(20, stay=10), within=100)
        assert outcomes(bots) == {(BotStatus.DONE, None): 20}
        await site.until_idle(within=200)
        async with asyncio.timeout(100):
            while {text[:6] for text in texts_of(site)[-20:]} != {"[IDLE]"}:
                await asyncio.sleep(1)
        made = launches_of(site, before)
        # What is its own: the rest is shared by all of them.
        assert made["PATCH/applications/envs/bulk"] == made["POST/applications/start"] == 20
        assert made["POST/applications/stop"] == 20
        assert made["PATCH/applications"] == 40
        assert made.total() <= 20 * most, made
        site.check()


@virtual
async def test_a_launch_on_a_warm_slot_is_two_requests_and_no_more(database_url: str) -> None:
    rules = Rules(check_seconds=2, stop_seconds=1)
    async with coolify_site(database_url, rules, pull_ahead=False) as site:
        await site.until_ended(await site.ask_for(1, stay=1), within=300)
        await site.until_idle(within=200)
        await description_of(site, "[IDLE]")
        before = len(site.coolify.requests)
        (bot,) = await site.ask_for(1, stay=30)
        await site.until_status([bot], BotStatus.IN_CALL, within=60)
        made = launches_of(site, before)
        compared = {"GET/applications", "GET/servers", "PATCH/applications"}
        assert {call: made[call] for call in made.keys() - compared} == {
            "PATCH/applications/envs/bulk": 1,
            "POST/applications/start": 1,
        }
        site.check()


@virtual
async def test_an_idle_application_that_somebody_started_gets_no_bot_of_ours(
    database_url: str,
) -> None:
    """Nobody looks before the start: its container has an old token, and the start replaces it."""
    rules = Rules(check_seconds=2, stop_seconds=1)
    async with coolify_site(database_url, rules, pull_ahead=False) as site:
        await site.until_ended(await site.ask_for(1, stay=1), within=300)
        await site.until_idle(within=200)
        (application,) = site.coolify.applications.values()
        await site.coolify.start_by_hand(application.uuid)
        await asyncio.sleep(1)
        (bot,) = await site.until_ended(await site.ask_for(1, stay=30), within=300)
        assert (bot.status, [claim[1] for claim in site.bots.claims]) == (BotStatus.DONE, [1, 2])
        await site.until_idle(within=200)
        assert site.coolify.running() == []
        site.found.clear()  # it was idle, and ran, for as long as the person wanted it


@virtual
async def test_applications_are_made_while_the_first_one_pulls(database_url: str) -> None:
    rules = Rules(pull_seconds=100, check_seconds=1, concurrent_builds=4)
    async with coolify_site(database_url, rules, pull_ahead=False, poll_interval_ms=100) as site:
        bots = await site.ask_for(20, stay=300)
        await asyncio.sleep(50)
        made = launches_of(site)
        assert made["POST/applications/dockerimage"] == 20
        assert made["POST/applications/start"] == 1
        assert made["GET/deployments/applications"] == made["GET/applications/logs"] == 0
        assert made["GET/deployments"] > 0
        async with asyncio.timeout(100):
            while len(site.bots.claims) < len(bots):
                await asyncio.sleep(0.1)
        assert site.coolify.now < 101 + 5 + 3  # the pull, 5 rounds of a second, and what polls add


@virtual
async def test_new_limits_and_a_new_image_reach_the_applications_that_are_there(
    database_url: str, tmp_path: Path
) -> None:
    rules = Rules(pull_seconds=5, check_seconds=1)
    file = tmp_path / "containers.toml"
    file.write_text("[all.docker]\nmemory = '2GiB'\nshm_size = '1GiB'\n")
    image = "registry.example/meet-bot:8"
    changed: dict[str, Any] = {
        "container_file": file,
        "image_google_meet": image,
        "pull_ahead": False,
    }
    async with coolify_site(database_url, rules, replicas=0) as none:
        async with coolify_site(database_url, before=none, pull_ahead=False) as site:
            await site.until_ended(await site.ask_for(1, stay=1), within=300)
            await site.until_idle(within=200)
        (made,) = none.coolify.applications.values()
        async with coolify_site(database_url, before=none, **changed) as site:
            (bot,) = await site.until_ended(await site.ask_for(1, stay=1), within=300)
            assert bot.status is BotStatus.DONE
            await site.until_idle(within=200)
        assert [*none.coolify.applications.values()] == [made]
        assert (made.image, made.fields["limits_memory"]) == (image, "2048m")
        assert made.fields["custom_docker_run_options"] == "--init --shm-size=1024m"
        assert none.coolify.pulls == {("server-a", IMAGE): 1, ("server-a", image): 1}
        none.coolify.environment_name = "staging"
        changed["coolify_environment_name"] = "staging"
        async with coolify_site(database_url, before=none, **changed) as site:
            await site.until_ended(await site.ask_for(1, stay=1), within=300)
            await none.coolify.idle()
        (again,) = none.coolify.applications.values()
        assert (again is made, again.created["environment_name"]) == (False, "staging")
        none.check()


@virtual
async def test_first_pulls_never_take_all_of_coolifys_workers(database_url: str) -> None:
    rules = Rules(servers=("a", "b", "c", "d", "e"), pull_seconds=300, check_seconds=1)
    async with coolify_site(database_url, rules) as site:
        bots = await site.ask_for(5, stay=30)
        most = 0
        async with asyncio.timeout(2000):
            while site.coolify.pulls.total() < 5:
                await asyncio.sleep(5)
                most = max(most, len(site.coolify.active))
        assert most == 3
        assert outcomes(await site.until_ended(bots, within=500)) == {(BotStatus.DONE, None): 5}
        site.check()


@virtual
async def test_a_hundred_slots_live_within_200_requests_a_minute(database_url: str) -> None:
    rules = Rules(
        servers=("a", "b"),
        pull_seconds=60,
        check_seconds=15,
        stop_seconds=3,
        concurrent_builds=4,
        status_lag_seconds=90,
    )
    async with coolify_site(database_url, rules) as site:
        bots = await site.until_ended(await site.ask_for(100), within=1500)
        assert outcomes(bots) == {(BotStatus.DONE, None): 100}
        await site.until_idle(within=600)
        assert not [request for request in site.coolify.requests if request.status == 429]
        site.check()


@virtual
async def test_whatever_fails_every_bot_ends_and_nothing_is_left_or_made_twice(
    database_url: str,
) -> None:
    rules = Rules(
        servers=("a", "b"),
        pull_seconds=60,
        check_seconds=5,
        stop_seconds=2,
        delete_seconds=2,
        concurrent_builds=4,
    )
    faults = Faults(too_many=0.1, error=0.1, times_out=0.1, reply_lost=0.1)
    async with coolify_site(
        database_url,
        rules,
        faults=faults,
        replicas=2,
        seed=1,
        max_pool_size=50,
        max_queue_timeout_ms=10**8,
    ) as site:
        ids = await site.ask_for(200, stay=20, queue_timeout_ms=10**8)
        bots = await site.until_ended(ids, within=40_000)
        assert outcomes(bots) == {(BotStatus.DONE, None): 200}
        await site.until_idle(within=4000)
        slots = await site.store.slots.all()
        assert {slot.container_ref for slot in slots} == {*site.coolify.applications}
        assert site.coolify.running() == []
        site.check()


@virtual
async def test_ten_minutes_of_errors_delete_nothing_and_fail_no_bot_that_is_heard(
    database_url: str,
) -> None:
    async with coolify_site(database_url, USUAL) as site:
        done = await site.ask_for(1, stay=10)
        await site.until_ended(done, within=900)
        await site.until_idle(within=100)
        live = await site.ask_for(3, stay=900)
        await site.until_status(live, BotStatus.IN_CALL, within=900)
        before = applications_of(site)
        for status in (500, 401, 503):
            site.coolify.outage = status
            waiting = await site.ask_for(1, stay=10)
            await asyncio.sleep(200)
            assert {(await site.store.bots.get(bot)).status for bot in live} == {BotStatus.IN_CALL}
            assert (await site.store.bots.get(waiting[0])).status is BotStatus.DEPLOYING
        assert applications_of(site) == before
        site.coolify.outage = None
        bots = await site.until_ended([*live, *waiting], within=2000)
        assert outcomes(bots) == {(BotStatus.DONE, None): 4}
        await site.until_idle(within=300)
        site.check()


@virtual
async def test_a_bot_that_ends_is_started_again_by_docker_and_does_not_rejoin(
    database_url: str,
) -> None:
    rules = Rules(check_seconds=5, stop_seconds=120)
    async with coolify_site(database_url, rules) as site:
        bots = await site.ask_for(1, stay=20)
        await site.until_ended(bots, within=100)
        (slot,) = await site.store.slots.all()
        await asyncio.sleep(100)
        # It runs again, was told that it is over, and its slot waits for the proof.
        assert site.coolify.running() == [slot.container_ref]
        assert site.bots.turned_away == 1
        assert (await site.store.slots.get(slot.id)).status is SlotStatus.RELEASING
        await site.until_idle(within=100)
        assert site.coolify.running() == []
        assert [claim[1] for claim in site.bots.claims] == bots
        assert launches_of(site)["GET/applications/logs"] == 0  # it has sent its lines itself
        site.check()


@virtual
async def test_the_output_of_a_bot_that_ends_badly_is_kept(database_url: str) -> None:
    async with coolify_site(database_url, Rules(check_seconds=5), pull_ahead=False) as site:
        (bot,) = await site.ask_for(1, stay=600)
        await site.until_status([bot], BotStatus.IN_CALL, within=100)
        (slot,) = await site.store.slots.all()
        await site.pool.assignments.advance(slot.id, slot.lease, BotStatus.FATAL, "it broke")
        await site.until_idle(within=200)
        assert await site.store.bots.container_logs(bot) == [f"bot {bot}"]


@pytest.mark.parametrize("version", ["4.3.11", "4.0.0-beta.430"])
@virtual
async def test_a_deployment_that_finishes_after_our_stop_is_caught(
    database_url: str, version: str
) -> None:
    """What is under way can't be cancelled without harm: it starts the container after the stop."""
    rules = Rules(version=version, pull_seconds=100, check_seconds=100, stop_seconds=1)
    async with coolify_site(database_url, rules, max_pool_size=1) as site:
        (bot,) = await site.ask_for(1)
        async with asyncio.timeout(60):
            while not any(
                d.status is DeploymentStatus.IN_PROGRESS for d in site.coolify.deployments.values()
            ):
                await asyncio.sleep(1)
        await site.pool.assignments.stop_bot(bot, "enough")
        (waiting,) = await site.ask_for(1)
        (ended,) = await site.until_ended([bot], within=10)
        assert ended.status is BotStatus.CANCELLED
        (done,) = await site.until_ended([waiting], within=2000)
        assert (done.status, done.launch_attempts) == (BotStatus.DONE, 1)
        assert [claim[1] for claim in site.bots.claims] == [waiting]
        assert sum(site.coolify.started.values()) == 2
        assert site.coolify.killed == []
        await site.until_idle(within=500)
        site.check()


@virtual
async def test_an_application_that_was_deleted_by_hand_is_made_again(database_url: str) -> None:
    async with coolify_site(database_url, USUAL) as site:
        await site.until_ended(await site.ask_for(1, stay=10), within=900)
        await site.until_idle(within=100)
        (slot,) = await site.store.slots.all()
        assert slot.container_ref is not None
        await site.coolify.remove_application(slot.container_ref)
        (bot,) = await site.until_ended(await site.ask_for(1, stay=10), within=900)
        assert bot.status is BotStatus.DONE
        (again,) = await site.store.slots.all()
        assert applications_of(site) == {again.container_ref: slot.slot_name}
        sql = (
            "SELECT details FROM transitions WHERE slot_id = $1 AND details ? 'attempt' ORDER BY id"
        )
        told = [row["details"] for row in await site.database.fetch(sql, slot.id)]
        assert told[-1]["oldContainerRef"] == slot.container_ref
        assert told[-1]["newContainerRef"] == again.container_ref
        site.check()


@virtual
async def test_a_server_that_is_unreachable_gets_no_slots_and_its_bots_live_on(
    database_url: str,
) -> None:
    rules = Rules(servers=("a", "b"), pull_seconds=30, check_seconds=5, stop_seconds=2)
    async with coolify_site(database_url, rules) as site:
        live = await site.ask_for(2, stay=1200)
        await site.until_status(live, BotStatus.IN_CALL, within=300)
        await site.coolify.set_reachable("a", reachable=False)
        await asyncio.sleep(60)
        bots = await site.until_ended(await site.ask_for(4, stay=10), within=900)
        assert outcomes(bots) == {(BotStatus.DONE, None): 4}
        hosts = Counter(slot.host for slot in await site.store.slots.all())
        assert hosts == {"a": 1, "b": 5}
        assert {(await site.store.bots.get(bot)).status for bot in live} == {BotStatus.IN_CALL}
        await site.coolify.set_reachable("a", reachable=True)
        assert outcomes(await site.until_ended(live, within=1300)) == {(BotStatus.DONE, None): 2}
        await site.until_idle(within=300)
        site.check()


@virtual
async def test_a_full_queue_that_names_deployments_it_never_made_delays_and_fails_no_bot(
    database_url: str,
) -> None:
    rules = Rules(
        check_seconds=20,
        pull_seconds=20,
        stop_seconds=1,
        concurrent_builds=1,
        deployment_queue_limit=1,
    )
    async with coolify_site(database_url, rules) as site:
        bots = await site.until_ended(await site.ask_for(10, stay=30), within=1500)
        assert outcomes(bots) == {(BotStatus.DONE, None): 10}
        assert {*site.coolify.started.values()} == {1}
        await site.until_idle(within=200)
        site.check()


@virtual
async def test_a_restart_of_coolify_fails_deployments_and_the_bots_are_launched_again(
    database_url: str,
) -> None:
    async with coolify_site(database_url, USUAL) as site:
        ids = await site.ask_for(3)
        await asyncio.sleep(100)
        await site.coolify.restart_coolify()
        bots = await site.until_ended(ids, within=3000)
        assert outcomes(bots) == {(BotStatus.DONE, None): 3}
        site.check()


@virtual
async def test_an_image_that_can_not_be_had_fails_its_bots_one_by_one(database_url: str) -> None:
    async with coolify_site(database_url, USUAL, max_launch_attempts=1) as site:
        site.coolify.unknown_images.add(IMAGE)
        bots = await site.until_ended(await site.ask_for(3), within=3000)
        assert {(bot.status, bot.failure_cause) for bot in bots} == {
            (BotStatus.FATAL, FailureCause.ENGINE)
        }
        assert all("deployment" in (bot.failure_reason or "") for bot in bots)
        assert site.coolify.most_pulls[site.coolify.rules.servers[0], IMAGE] <= 1
        await site.until_idle(within=1000)
        site.check()


@virtual
async def test_the_image_is_on_every_server_before_the_first_bot(database_url: str) -> None:
    rules = Rules(servers=("a", "b"), pull_seconds=300, check_seconds=5, stop_seconds=3)
    async with coolify_site(database_url, rules) as site:
        async with asyncio.timeout(600):
            while {pull.status for pull in await site.store.pulls.all()} != {"present"}:
                await asyncio.sleep(1)
        await site.until_idle(within=60)
        assert site.coolify.pulls == {("a", IMAGE): 1, ("b", IMAGE): 1}
        assert site.bots.turned_away == 2
        assert site.bots.claims == []
        assert site.coolify.running() == []
        for application in site.coolify.applications.values():
            assert base64.urlsafe_b64decode(application.environment["BOT_DATA"]) == b"{}"
        bots = await site.ask_for(2)
        await site.until_status(bots, BotStatus.IN_CALL, within=30)
        assert site.coolify.pulls.total() == 2
        await site.until_ended(bots, within=200)
        site.check()


@virtual
async def test_an_application_whose_deployments_always_fail_is_made_anew(
    database_url: str,
) -> None:
    rules = Rules(pull_seconds=60, check_seconds=5, stop_seconds=3, delete_seconds=3)
    async with coolify_site(database_url, rules, max_pool_size=3) as site:
        await site.until_ended(await site.ask_for(3, stay=10), within=600)
        await site.until_idle(within=100)
        ruined = next(iter(site.coolify.applications))
        site.coolify.ruined.add(ruined)
        for _ in range(4):
            ids = await site.ask_for(3, stay=10)
            bots = await site.until_ended(ids, within=600)
            assert outcomes(bots) == {(BotStatus.DONE, None): 3}  # on another slot, if need be
            await site.until_idle(within=100)
        failed = [
            deployment
            for deployment in site.coolify.deployments.values()
            if deployment.status is DeploymentStatus.FAILED
        ]
        assert len(failed) == 1  # its bot waited, and must not meet it again
        assert ruined not in site.coolify.applications
        assert len(site.coolify.applications) == 3
        (host,) = await site.store.hosts.all()
        assert host.healthy
        site.check()
