"""The pages for browsers: whole by themselves, and closed to what comes from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import re
from typing import TYPE_CHECKING
from urllib.parse import urljoin

import httpx
import pytest

from botpool.access.keys import Keys
from botpool.api import create_app
from botpool.pool import Pool
from botpool.settings import Settings
from botpool.store import Store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from botpool.store import Database


@pytest.fixture
async def http(database: Database) -> AsyncIterator[httpx.AsyncClient]:
    store, settings = Store(database), Settings()
    app = create_app(store, Pool(store, settings), settings, Keys(store, settings))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://botpool") as client:
        yield client


@pytest.mark.parametrize("path", ["/", "/docs"])
async def test_a_page_names_all_that_it_may_load_and_nothing_of_elsewhere(
    http: httpx.AsyncClient, path: str
) -> None:
    page = await http.get(path)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(
        part.strip().split(" ", 1) for part in page.headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    sources = {source for allowed in policy.values() for source in allowed.split()}
    hashes = {source for source in sources if source.startswith("'sha256-")}
    assert sources - hashes <= {"'none'", "'self'", "data:"}
    assert "data:" not in policy["script-src"]
    for kind in ("script", "style"):
        for text in re.findall(rf"<{kind}>(.*?)</{kind}>", page.text, re.DOTALL):
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            assert f"'sha256-{digest}'" in policy[f"{kind}-src"]


async def test_the_docs_are_made_of_what_we_serve(http: httpx.AsyncClient) -> None:
    page = (await http.get("/docs")).text
    loaded = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert len(loaded) == 4
    for name in loaded:
        assert "//" not in name
        answer = await http.get(urljoin("http://botpool/docs", name))
        assert answer.status_code == 200
        assert answer.content
    start = (await http.get("/docs/start.js")).text
    (document,) = re.findall(r'url: "([^"]+)"', start)
    described = await http.get(urljoin("http://botpool/docs", document))
    assert "/api/v1/bots" in described.json()["paths"]


async def test_what_the_docs_don_t_have_is_a_problem(http: httpx.AsyncClient) -> None:
    answer = await http.get("/docs/assets/nothing.js")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
