"""PostgreSQL as people run it: a standby that can take over, a pooler before it, TLS."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import tempfile
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, quote, urlsplit

import asyncpg
import psutil
import pytest

from botpool.store.postgres.embedded import embedded_postgres, postgres_programs
from tests.support.command import run

if TYPE_CHECKING:
    import signal
    from collections.abc import AsyncIterator, Iterator


@contextmanager
def reachable_folder() -> Iterator[Path]:
    """A folder with a short name, into which every user may look: servers don't run as root."""
    with tempfile.TemporaryDirectory(prefix="botpool-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


async def ask(url: str, sql: str) -> object:
    """The first value that the database answers."""
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(sql)
    finally:
        await connection.close()


def socket_folder(url: str) -> str:
    """Where the unix socket of a server is, as its URL says."""
    return parse_qs(urlsplit(url).query)["host"][0]


def with_hosts(*hosts: str, options: str = "target_session_attrs=read-write") -> str:
    """The URL of a database `botpool` on several servers."""
    named = ",".join(quote(host, safe=":") for host in hosts)
    return f"postgresql://postgres@{named}/botpool?{options}"


@asynccontextmanager
async def standby(primary: str, folder: Path) -> AsyncIterator[str]:
    """A server in a folder that follows the primary, which from then on commits nothing alone."""
    data = folder / "postgres"
    copied = ("-D", str(data), "-R", "-c", "fast", "-d", primary.replace("sslmode=disable", ""))
    code, _, said = await run(str(postgres_programs() / "pg_basebackup"), *copied)
    assert code == 0, said
    owner = Path(socket_folder(primary)).stat()
    for path in (data, *data.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
    async with embedded_postgres(folder) as url:
        await ask(primary, "ALTER SYSTEM SET synchronous_standby_names = '*'")
        await ask(primary, "SELECT pg_reload_conf()")
        yield url


async def end(folder: Path, number: signal.Signals) -> None:
    """End the server in a folder by a signal, and wait until it has ended."""
    first, *_ = (folder / "postgres" / "postmaster.pid").read_text().splitlines()
    server = psutil.Process(int(first))
    server.send_signal(number)
    await asyncio.to_thread(server.wait)


@asynccontextmanager
async def pooler(folder: Path, server: str, **settings: str) -> AsyncIterator[str]:
    """The URL of a PgBouncer before a server, with these settings. It listens on loopback."""
    if not (program := shutil.which("pgbouncer")):
        pytest.skip("needs another program: apt-get install pgbouncer")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    where = f"host={socket_folder(server)} port=5432 dbname=botpool user=postgres"
    lines = {
        "listen_addr": "127.0.0.1",
        "listen_port": str(port),
        "unix_socket_dir": "",
        "auth_type": "any",
        **settings,
    }
    file = folder / f"pgbouncer-{port}.ini"
    file.write_text(
        f"[databases]\nbotpool = {where}\n[pgbouncer]\n"
        + "".join(f"{name} = {value}\n" for name, value in lines.items())
    )
    # It doesn't run as root either, and the server's socket is its owner's.
    options = ("-u", Path(socket_folder(server)).owner()) if os.geteuid() == 0 else ()
    process = await asyncio.create_subprocess_exec(
        *(program, *options, str(file)), stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    try:
        said = b""
        while b"process up" not in said:
            said = await process.stderr.readline()
            assert said, "it ended"
        yield f"postgresql://postgres:hunter22@127.0.0.1:{port}/botpool"
    finally:
        process.kill()
        await process.communicate()


async def make_certificate(folder: Path, host: str) -> tuple[Path, Path]:
    """A certificate that signs itself, for a host, and its key."""
    certificate, key = folder / f"{host}.crt", folder / f"{host}.key"
    code, _, said = await run(
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
        *("-nodes", "-days", "1", "-subj", "/CN=test", "-addext", f"subjectAltName=DNS:{host}"),
        *("-keyout", str(key), "-out", str(certificate)),
    )
    assert code == 0, said
    key.chmod(0o644)  # for the server's user, in a test's own folder
    return certificate, key
