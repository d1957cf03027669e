"""What `botpool doctor` finds on an imitated Coolify, each fault made there."""

from __future__ import annotations

import dataclasses
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from aiohttp import web

from botpool.doctor import Result, diagnose
from botpool.doctor.coolify import examine_coolify
from botpool.doctor.database import Known
from botpool.doctor.findings import Report
from botpool.settings import Settings
from tests.fakes.coolify import Coolify, Faults, Rules
from tests.integration.test_doctor import mute, of, only
from tests.support.docker_scene import web_server
from tests.support.virtual_time import virtual

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from botpool.doctor import Finding

IMAGE = "registry.example/meet-bot:7"
NO_SLOTS = Known(slots=(), used=frozenset())
FITTING = Rules(servers=("a", "b"), concurrent_builds=4)


@asynccontextmanager
async def imitated(rules: Rules = FITTING, **options: Any) -> AsyncIterator[Coolify]:
    coolify = Coolify(rules, **options)
    yield coolify
    await coolify.close()


def settings_for(coolify: Coolify, **changes: Any) -> Settings:
    return Settings(
        **{
            "engine": "coolify",
            "image_google_meet": IMAGE,
            "public_url": "http://host.docker.internal",
            "coolify_api_url": "http://coolify.test",
            "coolify_api_token": coolify.token,
            "coolify_project_uuid": coolify.project_uuid,
            "coolify_server_uuid": ",".join(coolify.servers),
            **changes,
        }
    )


async def examine(
    coolify: Coolify, known: Known | None = NO_SLOTS, **changes: Any
) -> list[Finding]:
    """What is found, of which nothing shows the token, and after which all is as it was."""
    report = Report("coolify")
    before = {uuid: dict(one.fields) for uuid, one in coolify.applications.items()}
    transport = httpx.ASGITransport(app=coolify.app)
    await examine_coolify(report, settings_for(coolify, **changes), known, transport)
    assert coolify.token.partition("|")[2] not in str(report.findings)
    assert {uuid: one.fields for uuid, one in coolify.applications.items()} == before
    assert coolify.deployments == {}
    return report.findings


def the(findings: Sequence[Finding], check: str) -> Finding:
    return only(findings, check, "coolify")


def bad(findings: Sequence[Finding]) -> dict[str, Result]:
    """The checks that found a problem or a warning."""
    wrong = {Result.PROBLEM, Result.WARNING}
    return {each.check: each.result for each in findings if each.result in wrong}


async def test_a_coolify_that_is_set_up_well_has_neither_problem_nor_warning() -> None:
    async with imitated() as coolify:
        findings = await examine(coolify)
        assert bad(findings) == {}
        assert [each.check for each in findings if each.result is Result.OK] == [
            *("access", "abilities", "rate limit", "version", "project", "environment"),
            *("server", "server"),
            *("deployments at a time", "deployment queue", "image clean-up") * 2,
            "applications",
        ]
        unknown = {each.check for each in findings if each.result is Result.NOT_CHECKED}
        assert unknown == {"destination", "workers"}
        changing = [one for one in coolify.requests if one.method != "GET"]
        assert [(one.method, one.path, one.status) for one in changing] == [
            ("PATCH", "/applications/botpool-doctor", 400),
            ("POST", "/applications/botpool-doctor/stop", 404),
        ]


# Access


async def access_to(coolify: Coolify, **changes: Any) -> Finding:
    """The one finding of a Coolify that does not open, after which nothing else is looked at."""
    findings = await examine(coolify, **changes)
    assert [each.check for each in findings] == ["access"]
    assert findings[0].result is Result.PROBLEM
    return findings[0]


async def test_an_api_that_is_off_is_told_from_the_rest() -> None:
    async with imitated(dataclasses.replace(FITTING, api_enabled=False)) as coolify:
        found = await access_to(coolify)
    assert found.found == "Coolify's API is turned off"
    assert "API Access" in found.mend


async def test_an_address_that_is_not_allowed_is_told_from_the_rest() -> None:
    async with imitated(dataclasses.replace(FITTING, address_allowed=False)) as coolify:
        assert "allowed IPs" in (await access_to(coolify)).mend


@pytest.mark.parametrize("token", [None, "2|mistyped", "mistyped"])
async def test_a_token_that_is_expired_or_mistyped_is_a_problem(token: str | None) -> None:
    async with imitated() as coolify:
        coolify.token_expired = token is None
        found = await access_to(coolify, coolify_api_token=token or coolify.token)
    assert "expired" in found.found
    assert "BOTPOOL_COOLIFY_API_TOKEN" in found.mend


async def test_blanks_around_a_token_do_no_harm_and_within_it_are_a_problem() -> None:
    async with imitated() as coolify:
        assert bad(await examine(coolify, coolify_api_token=f" {coolify.token}\n")) == {}
        inner = coolify.token.partition("|")[2]
        found = await access_to(coolify, coolify_api_token=f"1| {inner}")
    assert "must look like" in found.found


@pytest.mark.parametrize("lacking", ["read", "write", "deploy"])
async def test_each_ability_that_a_token_lacks_is_a_problem(lacking: str) -> None:
    abilities = {"read", "write", "deploy"} - {lacking}
    async with imitated(dataclasses.replace(FITTING, abilities=abilities)) as coolify:
        findings = await examine(coolify)
    assert bad(findings) == {"abilities": Result.PROBLEM}
    assert the(findings, "abilities").found == f"The token may not {lacking}"
    # What can't be read is not guessed.
    assert bool(of(findings, "project", "coolify")) == (lacking != "read")


@pytest.mark.parametrize("changes", [{"abilities": ()}, {"admin": False}])
async def test_a_token_that_may_do_nothing_may_be_of_a_member_who_is_no_admin(
    changes: dict[str, Any],
) -> None:
    async with imitated(dataclasses.replace(FITTING, **changes)) as coolify:
        found = the(await examine(coolify), "abilities")
    assert found.result is Result.PROBLEM
    assert "no admin" in found.found
    assert found.mend.startswith("Sign in to Coolify as an admin")


async def test_a_coolify_that_is_down_is_a_problem() -> None:
    async with imitated() as coolify:
        coolify.outage = 503
        assert "503" in (await access_to(coolify)).found


async def test_a_limit_that_is_used_up_is_a_warning_and_ends_the_checks() -> None:
    async with imitated(dataclasses.replace(FITTING, requests_per_minute=0)) as coolify:
        findings = await examine(coolify)
    assert [(each.check, each.result) for each in findings] == [("access", Result.WARNING)]


async def found_at(url: str, **changes: Any) -> Finding:
    """What is found about access where no Coolify is."""
    token = "1|do-not-show-me"  # noqa: S105 - of no Coolify
    given = {"coolify_api_url": url, "coolify_api_token": token, "coolify_server_uuid": "a"}
    report = Report("coolify")
    await examine_coolify(report, Settings(**{**given, **changes}), None)
    assert "do-not-show-me" not in str(report.findings)
    assert [each.check for each in report.findings] == ["access"]
    assert report.findings[0].result is Result.PROBLEM
    return report.findings[0]


async def test_an_address_where_no_coolify_is_is_a_problem_that_says_what_is_there() -> None:
    async def page(_: web.Request) -> web.Response:
        return web.Response(text="<h1>It works!</h1>", content_type="text/html")

    async def elsewhere(_: web.Request) -> web.Response:
        raise web.HTTPMovedPermanently("https://coolify.example/login?next=1")

    app = web.Application()
    app.router.add_get("/api/v1/version", page)
    app.router.add_get("/moved/api/v1/version", elsewhere)
    async with web_server(app) as url:
        assert "is not Coolify's API" in (await found_at(url)).found
        assert "is not Coolify's API" in (await found_at(f"{url}/dashboard")).found
        assert (await found_at(f"{url}/moved")).found.endswith(
            " redirects to https://coolify.example/login"
        )
        tls = await found_at(url.replace("http://", "https://me:hunter22@"))
        assert "TLS error" in tls.found
        assert "hunter22" not in tls.found
    assert "refused" in (await found_at(url)).found
    assert "can't be resolved" in (await found_at("https://coolify.invalid")).found


async def test_a_coolify_that_is_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("botpool.doctor.coolify_access._ANSWER_SECONDS", 0.2)
    async with mute() as port:
        assert "no answer in time" in (await found_at(f"http://127.0.0.1:{port}")).found


@virtual
async def test_a_coolify_that_answers_nothing_more_is_given_up_in_bounded_time(
    tmp_path: Path,
) -> None:
    async with imitated(faults=Faults(times_out=1.0)) as coolify:
        settings = settings_for(coolify, data_dir=tmp_path)
        transport = httpx.ASGITransport(app=coolify.app)
        began = coolify.now
        findings = await diagnose(settings, coolify_transport=transport)
        assert coolify.now - began < 120
    assert the(findings, "version").result is Result.OK
    assert bad(findings)["project"] is Result.PROBLEM
    assert coolify.token not in str(findings)


@pytest.mark.parametrize(
    "changes",
    [
        {"coolify_api_url": None},
        {"coolify_api_token": None},
        {"coolify_api_url": "coolify.example"},
    ],
)
async def test_a_setting_that_is_missing_is_named(changes: dict[str, Any]) -> None:
    found = await found_at("http://coolify.test", **changes)
    assert "BOTPOOL_COOLIFY_API" in found.found


# Version and limits

LACKS = ["build", "cancelled", "deletes", "domain", "keep", "nightly", "shown late or never"]


@pytest.mark.parametrize(
    ("version", "result", "lacks"),
    [
        ("4.0.0-beta.428", Result.PROBLEM, LACKS),
        ("4.0.0-beta.435", Result.PROBLEM, LACKS[1:]),
        ("4.0.0-beta.452", Result.PROBLEM, LACKS[2:]),
        ("4.0.0-beta.453", Result.WARNING, LACKS[3:]),
        ("4.0.0-beta.466", Result.WARNING, LACKS[4:]),
        ("4.0.0-beta.467", Result.WARNING, LACKS[5:]),
        ("4.1.9", Result.WARNING, LACKS[5:]),
        ("4.2.0", Result.WARNING, LACKS[6:]),
        ("4.3.2", Result.WARNING, LACKS[6:]),
        ("4.3.3", Result.OK, []),
        ("4.3.11", Result.OK, []),
        ("5.0.0", Result.WARNING, []),
    ],
)
async def test_an_old_version_is_told_what_it_lacks(
    version: str, result: Result, lacks: list[str]
) -> None:
    async with imitated(dataclasses.replace(FITTING, version=version)) as coolify:
        found = the(await examine(coolify), "version")
    assert found.result is result
    assert [word for word in LACKS if word in found.found] == lacks
    assert version in found.found


async def test_a_limit_below_our_budget_is_a_warning() -> None:
    async with imitated(dataclasses.replace(FITTING, requests_per_minute=100)) as coolify:
        found = the(await examine(coolify, coolify_requests_per_minute=200), "rate limit")
        assert found.result is Result.WARNING
        assert "BOTPOOL_COOLIFY_REQUESTS_PER_MINUTE=200" in found.found
        assert "API_RATE_LIMIT" in found.mend
        for ours in (100, None):
            assert bad(await examine(coolify, coolify_requests_per_minute=ours)) == {}


@pytest.mark.parametrize(
    ("version", "limit", "ours", "bots"),
    [
        ("4.3.11", 200, None, 33),
        ("4.3.2", 200, None, 25),
        ("4.3.11", 600, None, 100),
        ("4.3.11", 600, 60, 10),
    ],
)
async def test_a_limit_is_told_in_bots_and_how_to_raise_it(
    version: str, limit: int, ours: int | None, bots: int
) -> None:
    rules = dataclasses.replace(FITTING, version=version, requests_per_minute=limit)
    async with imitated(rules) as coolify:
        found = the(await examine(coolify, coolify_requests_per_minute=ours), "rate limit")
    assert found.result is Result.OK
    assert f"about {bots} bots a minute" in found.found
    assert "API_RATE_LIMIT" in found.found
