"""The base of botpool's image, and the packages that go into it, without a network outside.

    await base_image(daemon, folder)
    async with package_index(WHEELS) as index:
        await docker(daemon, "build", "--build-arg", f"PIP_INDEX_URL={index}", …)

The base is made of the machine's own Debian packages: Python, a shell, and what they depend on.
"""

# ruff: noqa: ASYNC240 - its files are on this machine

from __future__ import annotations

import asyncio
import html
import io
import os
import re
import tarfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from testbed.docker import Daemon

ROOT = Path(__file__).parents[1]
BASE_IMAGE = "botpool-test/base:1"

WHEELS = Path(
    os.environ.get("BOTPOOL_TEST_WHEELS")
    or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "botpool-test-wheels"
)
"""Where tests/deploy/fetch has put the packages of requirements/run.txt."""

_PACKAGES = ("python3-venv", "coreutils", "dash")
_ONLY_DEPENDS = tuple(
    f"--no-{kind}"
    for kind in ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")
)
_LINKS = ("bin", "lib", "lib64", "sbin")


def need_packages() -> None:
    """Skip the test if the packages were not fetched, or can't be: in CI a skip is a failure."""
    if not Path("/var/lib/dpkg/info/python3-venv.list").exists():
        pytest.skip("needs Debian, with its Python: apt-get install python3-venv")
    if not (WHEELS / "fetched").exists():
        pytest.skip("needs botpool's dependencies as files: run tests/deploy/fetch")


async def docker(daemon: Daemon, *command: str, **environment: str) -> str:
    """What Docker's own command line prints. Raises if it fails."""
    return await run(
        "docker", *command, DOCKER_HOST=daemon.address, DOCKER_BUILDKIT="0", **environment
    )


async def run(*command: str, **environment: str) -> str:
    """What a program prints. Raises if it fails."""
    process = await asyncio.create_subprocess_exec(
        *command,
        env={**os.environ, **environment},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, error = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}: {output.decode()}{error.decode()}")
    return output.decode()


async def base_image(daemon: Daemon, folder: Path) -> None:
    """Make BASE_IMAGE on a host."""
    archive = folder / "base.tar"
    with tarfile.open(archive, "w") as whole:
        for name in _LINKS:
            _link(whole, name, f"usr/{name}")
        for name, text in {
            "etc/passwd": "root:x:0:0:root:/root:/bin/sh\n",
            "etc/group": "root:x:0:\n",
            "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
        }.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            whole.addfile(entry, io.BytesIO(text.encode()))
        temporary = tarfile.TarInfo("tmp")
        temporary.type, temporary.mode = tarfile.DIRTYPE, 0o1777
        whole.addfile(temporary)
        for path in await _files():
            whole.add(path, recursive=False)
    await docker(daemon, "import", str(archive), BASE_IMAGE)
    archive.unlink()


async def botpool_image(daemon: Daemon, folder: Path, tag: str) -> None:
    """Build botpool's image on a host, as deploy/Dockerfile says, on a base made here."""
    await base_image(daemon, folder)
    async with package_index(WHEELS) as index:
        await docker(
            *(daemon, "build", "--network", "host", "--tag", tag),
            *("--build-arg", f"BASE={BASE_IMAGE}", "--build-arg", f"PIP_INDEX_URL={index}"),
            *("--file", str(ROOT / "deploy" / "Dockerfile"), str(ROOT)),
        )


def _link(archive: tarfile.TarFile, name: str, target: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = tarfile.SYMTYPE, target
    archive.addfile(entry)


async def _files() -> list[Path]:
    """Every file of the packages, where it really is: `/lib` is only a link to `/usr/lib`."""
    depends = await run(
        *("apt-cache", "depends", "--recurse", "--installed", *_ONLY_DEPENDS, *_PACKAGES)
    )
    depended = set(re.findall(r"^[a-z0-9][\w.+:-]*$", depends, re.MULTILINE))
    # Of alternatives, apt names also those that are not there.
    packages = sorted(name for name in depended if _is_installed(name))
    listed = (await run("dpkg", "--listfiles", *packages)).splitlines()
    named = {Path(line) for line in listed if line.startswith("/")}
    real = {path.parent.resolve() / path.name for path in named}
    unneeded = (Path("/usr/share/doc"), Path("/usr/share/man"), Path("/usr/share/locale"))
    return sorted(
        path
        for path in real
        if (path.is_symlink() or path.exists())
        and path.is_relative_to("/usr")
        and not any(path.is_relative_to(folder) for folder in unneeded)
    )


def _is_installed(package: str) -> bool:
    lists = Path("/var/lib/dpkg/info")
    return (lists / f"{package}.list").exists() or any(lists.glob(f"{package}:*.list"))


@asynccontextmanager
async def package_index(folder: Path) -> AsyncIterator[str]:
    """The URL of an index of Python packages, as pip wants it, that has the files of a folder."""

    async def files(request: web.Request) -> web.Response:
        wanted = request.match_info["project"].replace("-", "[-_.]+")
        names = [
            path.name
            for path in sorted(folder.iterdir())
            if re.match(rf"{wanted}-\d", path.name, re.IGNORECASE)
        ]
        links = "".join(f'<a href="/files/{name}">{html.escape(name)}</a>\n' for name in names)
        return web.Response(text=f"<!doctype html>\n{links}", content_type="text/html")

    app = web.Application()
    app.router.add_get("/simple/{project}/", files)
    app.router.add_static("/files", folder)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield "http://{}:{}/simple/".format(*runner.addresses[0])
    finally:
        await runner.cleanup()
