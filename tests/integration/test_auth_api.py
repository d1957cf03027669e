"""Callers: keys in headers, browsers that signed in, and how fast they may call."""

from __future__ import annotations

import logging
from http.cookies import SimpleCookie
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from botpool.access.keys import FRESH_SECONDS, Keys
from botpool.access.limits import RateLimits
from botpool.api import create_app
from botpool.api.auth import TheAdmin, TheCaller, sign_in_path
from botpool.errors import DatabaseUnreachable
from botpool.settings import Settings
from botpool.states import Role
from tests.unit.test_limits import Clock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fastapi import FastAPI
    from starlette.types import Receive, Scope, Send

    from botpool.models.keys import ApiKey
    from tests.support.scene import Scene

GIVEN = "s3cret&key=with#signs+of%20URLs?"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def keys(scene: Scene, clock: Clock) -> Keys:
    return Keys(scene.store, Settings(admin_key=SecretStr(GIVEN)), clock=clock)


@pytest.fixture
def app(scene: Scene, keys: Keys, clock: Clock) -> FastAPI:
    """The app, and routes that tell the name of the caller's key."""
    settings = Settings(rate_limit_per_second=2)
    app = create_app(scene.store, scene.pool, settings, keys)
    app.state.limits = RateLimits(settings.rate_limit_per_second, clock=clock)

    for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"):

        @app.api_route("/callers", methods=[method], operation_id=f"{method} callers")
        async def callers(key: TheCaller) -> str:
            return key.name

    @app.get("/admins")
    async def admins(key: TheAdmin) -> str:
        return key.name

    return app


@pytest.fixture
async def http(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app, raise_app_exceptions=False), base_url="http://botpool"
    ) as client:
        yield client


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def problem(response: httpx.Response) -> tuple[int, str]:
    """The status and code of a problem."""
    assert response.headers["content-type"] == "application/problem+json"
    told: dict[str, Any] = response.json()
    assert told["status"] == response.status_code
    return response.status_code, told["code"]


async def signed_in(
    http: httpx.AsyncClient, keys: Keys, role: Role = Role.CLIENT
) -> tuple[ApiKey, str]:
    """Sign the client in as a browser, with a key of its own."""
    created, key = await keys.create("notes", role)
    response = await http.get("/sign-in", params={"key": key})
    assert response.status_code == 303
    return created, key


# Keys


@pytest.mark.parametrize(
    ("role", "path", "answer"),
    [
        (Role.ADMIN, "/callers", 200),
        (Role.ADMIN, "/admins", 200),
        (Role.CLIENT, "/callers", 200),
        (Role.CLIENT, "/admins", 403),
    ],
)
@pytest.mark.parametrize("by", ["header", "cookie"])
async def test_a_key_opens_what_its_role_may(
    http: httpx.AsyncClient, keys: Keys, role: Role, path: str, answer: int, by: str
) -> None:
    if by == "cookie":
        await signed_in(http, keys, role)
        response = await http.get(path)
    else:
        _, key = await keys.create("notes", role)
        response = await http.get(path, headers=bearer(key))
    assert response.status_code == answer
    if answer == 403:
        assert problem(response) == (403, "forbidden")
    else:
        assert response.json() == "notes"


@pytest.mark.parametrize("path", ["/callers", "/admins"])
@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({}, id="none"),
        pytest.param(bearer(""), id="empty"),
        pytest.param(bearer("of-another"), id="unknown"),
        pytest.param({"Authorization": "Basic b2YtYW5vdGhlcg=="}, id="another scheme"),
        pytest.param({"Cookie": "botpool=of-another"}, id="another cookie"),
        pytest.param({"Cookie": "botpool=1.99999999999.of-another"}, id="a forged cookie"),
    ],
)
async def test_nothing_is_open_without_a_key(
    http: httpx.AsyncClient, keys: Keys, path: str, headers: dict[str, str]
) -> None:
    await keys.create("notes", Role.ADMIN)
    response = await http.get(path, headers=headers)
    assert problem(response) == (401, "unauthorized")
    assert response.headers["www-authenticate"] == "Bearer"
    assert "of-another" not in response.text


async def test_a_wrong_key_is_not_made_good_by_a_cookie(
    http: httpx.AsyncClient, keys: Keys
) -> None:
    await signed_in(http, keys)
    assert problem(await http.get("/callers", headers=bearer("wrong"))) == (401, "unauthorized")


async def test_a_slots_token_is_no_key(scene: Scene, http: httpx.AsyncClient) -> None:
    await scene.running()
    digest = "sha256('token')"
    await scene.database.execute(f"UPDATE bot_pool_slots SET token_hash = {digest}")
    assert problem(await http.get("/callers", headers=bearer("token"))) == (401, "unauthorized")


@pytest.mark.parametrize("by", ["header", "cookie"])
async def test_a_revoked_key_opens_nothing_within_seconds(
    scene: Scene, http: httpx.AsyncClient, keys: Keys, clock: Clock, by: str
) -> None:
    created, key = await signed_in(http, keys)
    if by == "header":
        http.cookies.clear()
        http.headers.update(bearer(key))
    assert (await http.get("/callers")).status_code == 200
    await Keys(scene.store, Settings()).revoke(created.id)
    clock.now += FRESH_SECONDS
    assert problem(await http.get("/callers")) == (401, "unauthorized")
    assert problem(await http.get("/sign-in", params={"key": key})) == (401, "unauthorized")


# Browsers


@pytest.mark.parametrize(("scheme", "secure"), [("http", ""), ("https", True)])
async def test_a_browser_that_signs_in_gets_a_strict_cookie_that_is_not_the_key(
    http: httpx.AsyncClient, keys: Keys, scheme: str, secure: bool | str
) -> None:
    _, key = await keys.create("notes", Role.CLIENT)
    response = await http.get(f"{scheme}://botpool/sign-in", params={"key": key})
    assert (response.status_code, response.headers["location"]) == (303, "/")
    assert response.headers["cache-control"] == "no-store"
    assert response.headers["referrer-policy"] == "no-referrer"
    cookie = SimpleCookie(response.headers["set-cookie"])["botpool"]
    flags = {name: cookie[name] for name in ("httponly", "samesite", "path", "max-age", "domain")}
    assert flags == {
        "httponly": True,
        "samesite": "strict",
        "path": "/",
        "max-age": str(7 * 24 * 3600),
        "domain": "",
    }
    assert cookie["secure"] == secure
    assert key not in str(response.headers)


async def test_the_path_that_signs_in_carries_any_key(http: httpx.AsyncClient, keys: Keys) -> None:
    key = await keys.ensure_admin_key()
    assert key == GIVEN
    assert (await http.get(sign_in_path(key))).status_code == 303
    assert (await http.get("/admins")).json() == "admin"


@pytest.mark.parametrize("query", ["", "?key=", "?key=wrong", "?key=%ff%00", "?token=x"])
async def test_a_browser_without_a_key_is_not_signed_in(
    http: httpx.AsyncClient, query: str
) -> None:
    response = await http.get(f"/sign-in{query}")
    assert problem(response) == (401, "unauthorized")
    assert "set-cookie" not in response.headers


async def test_a_browser_is_signed_out_after_a_week(
    scene: Scene, http: httpx.AsyncClient, keys: Keys, clock: Clock
) -> None:
    await signed_in(http, keys)
    kept = {"Cookie": f"botpool={http.cookies['botpool']}"}
    http.cookies.clear()
    await scene.pass_time(days=7, seconds=-2)
    clock.now += FRESH_SECONDS
    assert (await http.get("/callers", headers=kept)).status_code == 200
    await scene.pass_time(seconds=2)
    clock.now += FRESH_SECONDS
    assert problem(await http.get("/callers", headers=kept)) == (401, "unauthorized")


async def test_a_cookie_that_was_changed_opens_nothing(http: httpx.AsyncClient, keys: Keys) -> None:
    admin, _ = await keys.create("boss", Role.ADMIN)
    await signed_in(http, keys)
    key_id, expires, seal = http.cookies["botpool"].split(".")
    http.cookies.clear()
    for changed in (f"{admin.id}.{expires}.{seal}", f"{key_id}.{int(expires) + 9}.{seal}"):
        response = await http.get("/callers", headers={"Cookie": f"botpool={changed}"})
        assert problem(response) == (401, "unauthorized")


async def test_a_browser_that_signs_out_keeps_nothing(http: httpx.AsyncClient, keys: Keys) -> None:
    await signed_in(http, keys)
    response = await http.post("/sign-out", headers={"X-Botpool": "1"})
    assert (response.status_code, response.headers["location"]) == (303, "/")
    assert "botpool" not in http.cookies
    assert problem(await http.get("/callers")) == (401, "unauthorized")


# Forgery

OURS = [
    {"X-Botpool": "1"},
    {"Origin": "http://botpool"},
    {"Sec-Fetch-Site": "same-origin"},
]
THEIRS = [
    {},
    {"X-Botpool": "0"},
    {"Origin": "null"},
    {"Origin": "http://elsewhere"},
    {"Origin": "https://botpool"},
    {"Origin": "http://botpool:81"},
    {"Origin": "http://botpool.elsewhere"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "none"},
]


@pytest.mark.parametrize("headers", OURS, ids=str)
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
async def test_a_browser_changes_something_from_our_own_pages(
    http: httpx.AsyncClient, keys: Keys, method: str, headers: dict[str, str]
) -> None:
    await signed_in(http, keys)
    assert (await http.request(method, "/callers", headers=headers)).status_code == 200


@pytest.mark.parametrize("headers", THEIRS, ids=str)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/callers"),
        ("PUT", "/callers"),
        ("PATCH", "/callers"),
        ("DELETE", "/callers"),
        ("POST", "/sign-out"),
    ],
)
async def test_another_sites_page_can_not_make_a_browser_change_anything(
    http: httpx.AsyncClient, keys: Keys, method: str, path: str, headers: dict[str, str]
) -> None:
    await signed_in(http, keys)
    response = await http.request(method, path, headers=headers)
    assert problem(response) == (403, "forbidden")
    assert "botpool" in http.cookies


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_request_that_changes_nothing_need_not_show_where_it_comes_from(
    http: httpx.AsyncClient, keys: Keys, method: str
) -> None:
    await signed_in(http, keys)
    assert (await http.request(method, "/callers")).status_code == 200


async def test_a_caller_that_sends_a_key_is_no_browser(http: httpx.AsyncClient, keys: Keys) -> None:
    _, key = await signed_in(http, keys)
    headers = {**bearer(key), "Origin": "http://elsewhere"}
    assert (await http.post("/callers", headers=headers)).status_code == 200


async def test_a_forged_request_uses_nothing_up(http: httpx.AsyncClient, keys: Keys) -> None:
    await signed_in(http, keys)
    for _ in range(20):
        assert problem(await http.post("/callers")) == (403, "forbidden")
    assert (await http.get("/callers")).status_code == 200


# Limits


@pytest.mark.parametrize(("role", "burst"), [(Role.CLIENT, 4), (Role.ADMIN, 40)])
async def test_a_key_that_is_used_too_fast_has_to_wait(
    http: httpx.AsyncClient, keys: Keys, clock: Clock, role: Role, burst: int
) -> None:
    _, key = await keys.create("notes", role)
    _, another = await keys.create("other", Role.CLIENT)
    answers = [await http.get("/callers", headers=bearer(key)) for _ in range(burst + 1)]
    assert [answer.status_code for answer in answers] == [200] * burst + [429]
    assert problem(answers[-1]) == (429, "too_many_requests")
    assert answers[-1].headers["retry-after"] == "1"
    assert (await http.get("/callers", headers=bearer(another))).status_code == 200
    clock.now += 2 / burst
    again = [await http.get("/callers", headers=bearer(key)) for _ in range(2)]
    assert [answer.status_code for answer in again] == [200, 429]


async def test_signing_in_counts_too(http: httpx.AsyncClient, keys: Keys) -> None:
    _, key = await keys.create("notes", Role.CLIENT)
    answers = [await http.get("/sign-in", params={"key": key}) for _ in range(5)]
    assert [answer.status_code for answer in answers] == [303] * 4 + [429]


# Secrets


async def test_no_secret_is_in_a_log_an_error_or_the_servers_own_log_of_requests(
    scene: Scene,
    app: FastAPI,
    keys: Keys,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # the client's, which knows its own URLs
    scopes: list[Scope] = []

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        scopes.append(scope)
        await app(scope, receive, send)

    created, key = await keys.create("notes", Role.CLIENT)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(served, raise_app_exceptions=False), base_url="http://botpool"
    ) as http:
        with capture_logs() as lines:
            await http.get("/sign-in", params={"key": key})
            kept = http.cookies["botpool"]
            wrong = f"{key}x"
            answers = [
                await http.get("/sign-in", params={"key": wrong}),
                await http.get("/callers", headers=bearer(wrong)),
                await http.get("/admins"),
                await http.post("/callers"),
                *[await http.get("/callers", headers=bearer(key)) for _ in range(5)],
            ]

            async def fail(*_: object) -> None:
                raise DatabaseUnreachable("gone")

            monkeypatch.setattr(scene.store.keys, "find", fail)
            answers.append(await http.get("/sign-in", params={"key": wrong}))
    assert {answer.status_code for answer in answers} == {200, 401, 403, 429, 503}
    told = "".join(answer.text for answer in answers) + str(lines) + caplog.text
    # What uvicorn writes down of a request, once it is answered.
    told += str([(scope["path"], scope["query_string"]) for scope in scopes])
    assert {"key_id": created.id, "event": "browser signed in"}.items() <= lines[0].items()
    for secret in (key.removeprefix(created.prefix), kept, kept.split(".")[2]):
        assert secret not in told


async def test_the_openapi_document_tells_how_to_call(app: FastAPI) -> None:
    document = app.openapi()
    security = document["paths"]["/callers"]["get"]["security"]
    assert security == [{"apiKey": []}, {"browser": []}]
    assert "/sign-in" not in document["paths"]
