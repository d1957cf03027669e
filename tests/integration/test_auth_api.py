"""Callers: keys in headers, browsers that signed in, and how fast they may call."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from http.cookies import SimpleCookie
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from botpool.access.keys import FRESH_SECONDS, Keys
from botpool.access.limits import RateLimits, WrongKeys
from botpool.api import create_app
from botpool.api.auth import TheAdmin, TheCaller  # noqa: TC001 - FastAPI reads the annotations
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

SESSIONS = "/api/v1/sessions"
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
    app.state.wrong_keys = WrongKeys(clock=clock)

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
    assert (await http.get(await link_of(http, key))).status_code == 303
    return created, key


async def link_of(http: httpx.AsyncClient, key: str) -> str:
    """A link that signs in with a key."""
    answer = await http.post(SESSIONS, headers=bearer(key))
    assert answer.status_code == 201
    url: str = answer.json()["url"]
    return url


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
    assert problem(await http.post(SESSIONS, headers=bearer(key))) == (401, "unauthorized")


# Browsers


@pytest.mark.parametrize(("scheme", "secure"), [("http", ""), ("https", True)])
async def test_a_browser_that_signs_in_gets_a_strict_cookie_that_is_not_the_key(
    http: httpx.AsyncClient, keys: Keys, scheme: str, secure: bool | str
) -> None:
    _, key = await keys.create("notes", Role.CLIENT)
    link = await link_of(http, key)
    response = await http.get(link.replace("http:", f"{scheme}:"))
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
    assert key not in link
    assert link.rpartition("=")[2] not in str(response.headers)


async def test_a_link_signs_in_once_and_says_how_long_it_lasts(
    scene: Scene, http: httpx.AsyncClient, keys: Keys
) -> None:
    key = await keys.ensure_admin_key()
    answer = await http.post(SESSIONS, headers=bearer(key))
    told = answer.json()
    assert set(told) == {"url", "expiresAt"}
    assert told["url"].startswith("http://botpool/sign-in?code=")
    expires_at = await scene.store.installation.now() + timedelta(minutes=10)
    assert datetime.fromisoformat(told["expiresAt"]) == expires_at
    assert (await http.get(told["url"])).status_code == 303
    assert (await http.get("/admins")).json() == "admin"
    again = await http.get(told["url"])
    assert problem(again) == (401, "unauthorized")
    assert "run `botpool sign-in`" in again.json()["detail"].replace("Run", "run")


@pytest.mark.parametrize("query", ["", "?code=", "?code=wrong", "?code=%ff%00", "?key={key}"])
async def test_a_browser_without_a_code_is_not_signed_in_and_told_how_to(
    http: httpx.AsyncClient, keys: Keys, query: str
) -> None:
    _, key = await keys.create("notes", Role.ADMIN)
    path = f"/sign-in{query.format(key=key)}"
    response = await http.get(path)
    assert problem(response) == (401, "unauthorized")
    assert "set-cookie" not in response.headers
    page = await http.get(path, headers={"Accept": "text/html,*/*;q=0.8"})
    assert (page.status_code, page.headers["content-type"]) == (401, "text/html; charset=utf-8")
    assert "<code>botpool sign-in</code>" in page.text
    assert page.headers["cache-control"] == "no-store"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "set-cookie" not in page.headers
    assert key not in response.text + page.text


async def test_a_browser_can_not_stay_signed_in_for_ever_by_links_of_its_own(
    http: httpx.AsyncClient, keys: Keys
) -> None:
    _, key = await signed_in(http, keys, Role.ADMIN)
    answer = await http.post(SESSIONS, headers={"X-Botpool": "1"})
    assert problem(answer) == (403, "forbidden")
    assert (await http.post(SESSIONS, headers=bearer(key))).status_code == 201


async def test_sessions_are_listed_and_ended_over_http(http: httpx.AsyncClient, keys: Keys) -> None:
    created, key = await signed_in(http, keys)
    _, other = await keys.create("other", Role.CLIENT)
    _, admin = await keys.create("boss", Role.ADMIN)
    kept = {"Cookie": f"botpool={http.cookies['botpool']}", "X-Botpool": "1"}
    http.cookies.clear()
    (mine,) = (await http.get(SESSIONS, headers=kept)).json()["sessions"]
    assert set(mine) == {"id", "keyId", "keyName", "createdAt", "expiresAt", "current"}
    assert (mine["keyId"], mine["keyName"], mine["current"]) == (created.id, "notes", True)
    shown = [(await http.get(SESSIONS, headers=bearer(each))).json() for each in (key, admin)]
    assert shown == [{"sessions": [{**mine, "current": False}]}] * 2
    assert (await http.get(SESSIONS, headers=bearer(other))).json() == {"sessions": []}
    path = f"{SESSIONS}/{mine['id']}"
    refused = await http.delete(path, headers=bearer(other))
    assert problem(refused) == (404, "session_not_found")
    assert (await http.get("/callers", headers=kept)).status_code == 200
    assert (await http.delete(path, headers=bearer(admin))).status_code == 204
    assert problem(await http.get("/callers", headers=kept)) == (401, "unauthorized")
    assert problem(await http.delete(path, headers=bearer(admin))) == (404, "session_not_found")


async def test_a_browser_that_signs_out_keeps_nothing_that_opens_anything(
    http: httpx.AsyncClient, keys: Keys
) -> None:
    await signed_in(http, keys)
    kept = {"Cookie": f"botpool={http.cookies['botpool']}"}
    response = await http.post("/sign-out", headers={"X-Botpool": "1"})
    assert (response.status_code, response.headers["location"]) == (303, "/")
    assert "botpool" not in http.cookies
    assert problem(await http.get("/callers")) == (401, "unauthorized")
    assert problem(await http.get("/callers", headers=kept)) == (401, "unauthorized")


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


async def test_links_count_too(http: httpx.AsyncClient, keys: Keys) -> None:
    _, key = await keys.create("notes", Role.CLIENT)
    answers = [await http.post(SESSIONS, headers=bearer(key)) for _ in range(5)]
    assert [answer.status_code for answer in answers] == [201] * 4 + [429]


WRONG: list[tuple[str, str, dict[str, str]]] = [
    ("GET", "/callers", bearer("wrong")),
    ("GET", "/callers", {"Cookie": "botpool=wrong"}),
    ("POST", "/api/v1/runtime/claim", bearer("wrong")),
    ("GET", "/sign-in?code=wrong", {}),
]


@pytest.mark.parametrize(("method", "path", "headers"), WRONG, ids=str)
async def test_an_address_that_sends_many_wrong_keys_has_to_wait_but_no_valid_key_does(
    app: FastAPI,
    keys: Keys,
    clock: Clock,
    method: str,
    path: str,
    headers: dict[str, str],
) -> None:
    _, key = await keys.create("notes", Role.CLIENT)
    async with at(app, "192.0.2.1") as here, at(app, "192.0.2.2") as there:
        answers = [await here.request(method, path, headers=headers) for _ in range(30)]
        assert [answer.status_code for answer in answers] == [401] * 20 + [429] * 10
        assert problem(answers[-1]) == (429, "too_many_wrong_keys")
        assert answers[-1].headers["retry-after"] == "1"
        assert (await here.get("/callers", headers=bearer(key))).status_code == 200
        assert (await here.get(await link_of(here, key))).status_code == 303
        assert (await there.request(method, path, headers=headers)).status_code == 401
        clock.now += 1
        assert (await here.request(method, path, headers=headers)).status_code == 401


async def test_a_request_without_any_key_is_no_guess(app: FastAPI) -> None:
    async with at(app, "192.0.2.1") as here:
        answers = [await here.get("/callers") for _ in range(30)]
    assert {answer.status_code for answer in answers} == {401}


# Proxies


def at(app: FastAPI, address: str) -> httpx.AsyncClient:
    """A client with this address."""
    transport = httpx.ASGITransport(app, client=(address, 1234))
    return httpx.AsyncClient(transport=transport, base_url="http://botpool")


@pytest.mark.parametrize(
    ("proxy", "trusted"),
    [("10.1.2.3", True), ("192.0.2.9", True), ("192.0.2.8", False), ("127.0.0.1", False)],
)
async def test_only_a_trusted_proxy_says_where_a_request_comes_from_and_how(
    scene: Scene, keys: Keys, proxy: str, trusted: bool
) -> None:
    settings = Settings(trusted_proxies="10.0.0.0/8, 192.0.2.9", rate_limit_per_second=1000)
    app = create_app(scene.store, scene.pool, settings, keys)
    _, key = await keys.create("notes", Role.CLIENT)
    async with at(app, proxy) as http:
        wrong = bearer("wrong")
        for _ in range(25):
            # What the client itself claims comes first; what the proxy adds comes last.
            claimed = {"X-Forwarded-For": "198.51.100.7, 203.0.113.1"}
            last = await http.get(SESSIONS, headers={**wrong, **claimed})
        assert last.status_code == 429
        others = {"X-Forwarded-For": "198.51.100.7, 203.0.113.2"}
        answer = await http.get(SESSIONS, headers={**wrong, **others})
        assert answer.status_code == (401 if trusted else 429)
        signed = await http.get(
            await link_of(http, key), headers={"X-Forwarded-Proto": "https", **others}
        )
        assert signed.status_code == 303
        assert ("Secure" in signed.headers["set-cookie"]) is trusted


async def test_by_default_no_proxy_is_trusted(app: FastAPI, keys: Keys) -> None:
    _, key = await keys.create("notes", Role.CLIENT)
    async with at(app, "127.0.0.1") as http:
        signed = await http.get(await link_of(http, key), headers={"X-Forwarded-Proto": "https"})
        assert "Secure" not in signed.headers["set-cookie"]


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
            link = await link_of(http, key)
            code = link.rpartition("=")[2]
            await http.get(link)
            kept = http.cookies["botpool"]
            wrong = f"{key}x"
            answers = [
                await http.get("/sign-in", params={"code": f"{code}x"}),
                await http.get("/sign-in", params={"key": wrong}),
                await http.get(link, headers={"Accept": "text/html"}),
                await http.get("/callers", headers=bearer(wrong)),
                await http.get("/admins"),
                await http.post("/callers"),
                *[await http.get("/callers", headers=bearer(key)) for _ in range(5)],
            ]

            async def fail(*_: object) -> None:
                raise DatabaseUnreachable("gone")

            monkeypatch.setattr(scene.store.sessions, "sign_in", fail)
            answers.append(await http.get(link))
    assert {answer.status_code for answer in answers} == {200, 401, 403, 429, 503}
    told = "".join(answer.text for answer in answers) + str(lines) + caplog.text
    # What uvicorn writes down of a request, once it is answered.
    told += str([(scope["path"], scope["query_string"]) for scope in scopes])
    assert {"key_id": created.id, "event": "browser signed in"}.items() <= lines[0].items()
    for secret in (key.removeprefix(created.prefix), kept, code):
        assert secret not in told


async def test_the_openapi_document_tells_how_to_call(app: FastAPI) -> None:
    document = app.openapi()
    security = document["paths"]["/callers"]["get"]["security"]
    assert security == [{"apiKey": []}, {"browser": []}]
    assert "/sign-in" not in document["paths"]
