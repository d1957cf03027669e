"""The page at `/`: what runs here, and where to read more."""

from collections.abc import Mapping
from dataclasses import dataclass

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, Response

from botpool import __version__
from botpool.api.policy import of_text, policy

router = APIRouter(include_in_schema=False)

_STYLE = """
  body { font: 16px/1.6 system-ui, sans-serif; max-width: 40rem; margin: 4rem auto;
    padding: 0 1rem; color: #1c2430; background: #fbfbfa; }
  code { background: #eceff1; padding: .1em .3em; border-radius: 4px; }
  a { color: #0b57d0; }
  @media (prefers-color-scheme: dark) {
    body { color: #e6e8ea; background: #14181d; } code { background: #242b33; }
    a { color: #8ab4f8; }
  }
"""

_SCRIPT = 'document.getElementById("here").textContent = location.origin'


@dataclass(frozen=True)
class Page:
    """A page, and the headers that it is sent with."""

    html: str
    headers: Mapping[str, str]


def page(title: str, body: str) -> Page:
    """A short page. Where it has an element `here`, that shows this botpool's address."""
    return Page(
        f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>botpool</title>
<style>{_STYLE}</style>
<h1>{title}</h1>
{body}<script>{_SCRIPT}</script>
""",
        {"Content-Security-Policy": policy(script=of_text(_SCRIPT), style=of_text(_STYLE))},
    )


_HOME = page(
    "botpool",
    f"""<p>botpool {__version__} is running. It puts meeting bots into calls.</p>
<ul>
  <li><a href="/docs">The API documentation</a>, where you can try each call, and the
    <a href="/openapi.json">OpenAPI document</a></li>
  <li><a href="/healthz">/healthz</a> says whether this process is alive,
    <a href="/readyz">/readyz</a> whether it is ready for work</li>
</ul>
<p>To sign this browser in, run <code>botpool sign-in</code> where botpool runs, and open the link
that it prints.</p>
<p>Create a bot:</p>
<pre><code>curl -H "Authorization: Bearer $KEY" -H "Content-Type: application/json" \\
  -d '{{"meetingUrl": "https://meet.google.com/abc-defg-hij"}}' \\
  <span id="here"></span>/api/v1/bots</code></pre>
""",
)


@router.get("/", response_class=HTMLResponse)
async def home(response: Response) -> str:
    """A short page."""
    response.headers.update(_HOME.headers)
    return _HOME.html
