"""Whether a pod of a cluster reaches botpool: only a pod there can tell."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING

from botpool.engines.kubernetes.api import Kind
from botpool.engines.kubernetes.template import CONTAINER

if TYPE_CHECKING:
    from botpool.doctor.findings import Check, Report
    from botpool.engines.kubernetes.api import KubernetesApi, Object
    from botpool.settings import Settings

_SECONDS = 180.0
_LOOK_SECONDS = 0.5
_DEADLINE_SECONDS = 150
_NO_PROGRAM = 127
_PROGRAMS = """
if command -v curl >/dev/null; then curl --max-time 10 -fsS "$1"
elif command -v python3 >/dev/null; then
  python3 -c 'import sys, urllib.request as r; print(r.urlopen(sys.argv[1], None, 10).read())' "$1"
elif command -v wget >/dev/null; then wget -q -O - "$1"
else exit 127
fi > /dev/termination-log 2>&1
"""
"""What the pod runs: the first program of the bot's image that can call a URL."""


async def examine_way_back(
    report: Report, settings: Settings, api: KubernetesApi, made: Object
) -> None:
    """Start a pod like a bot's that calls botpool, see what comes of it, and delete it."""
    url = f"{settings.runtime_url.rstrip('/')}/healthz"
    async with report.check(
        "way to botpool", "Look at the pod's events.", seconds=_SECONDS
    ) as check:
        pod = await api.create(Kind.POD, _probe(made, url))
        try:
            _tell(check, f"A pod of {api.host}", url, await _ended(api, pod))
        finally:
            await api.delete(Kind.POD, pod, grace_seconds=0)


def _probe(made: Object, url: str) -> Object:
    """A bot's pod, without what only a bot has, that calls a URL and ends."""
    (bot,) = [each for each in made["spec"]["containers"] if each["name"] == CONTAINER]
    bot = {key: value for key, value in bot.items() if key not in {"envFrom", "args"}}
    bot["command"] = ["sh", "-c", _PROGRAMS, "sh", url]
    metadata = {key: value for key, value in made["metadata"].items() if key != "finalizers"}
    return {
        **made,
        "metadata": {**metadata, "name": f"botpool-doctor-{secrets.token_hex(4)}"},
        "spec": {
            **made["spec"],
            "containers": [bot],
            "activeDeadlineSeconds": _DEADLINE_SECONDS,
        },
    }


async def _ended(api: KubernetesApi, pod: Object) -> Object:
    """How the pod's container ended. Raises `TimeoutError` by the check's own clock."""
    while True:
        found = await api.find(Kind.POD, pod["metadata"]["name"]) or {}
        whole = found.get("status") or {}
        if whole.get("reason") == "DeadlineExceeded":
            return {"terminated": {"exitCode": 1, "message": "no answer in time"}}
        for status in whole.get("containerStatuses") or ():
            state: Object = status.get("state") or {}
            if "terminated" in state or (state.get("waiting") or {}).get("message"):
                return state
        await asyncio.sleep(_LOOK_SECONDS)


def _tell(check: Check, pod: str, url: str, state: Object) -> None:
    mend = "Let BOTPOOL_PUBLIC_URL be where pods reach botpool, and network policies allow it."
    ended = state.get("terminated")
    if ended is None:
        check.problem(f"{pod} can't start: {state['waiting']['message']}", "Correct the image.")
    elif ended["exitCode"] == 0:
        check.ok(f"{pod} reaches {url}")
    elif ended["exitCode"] == _NO_PROGRAM:
        check.not_checked(f"{pod}: the image has no wget, curl or python3 to call {url} with")
    else:
        check.problem(f"{pod} can't reach {url}: {ended.get('message', '').strip()}", mend)
