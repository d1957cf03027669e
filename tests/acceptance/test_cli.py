"""The command line, as an operator runs it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from botpool import __version__
from botpool.models.replicas import ReplicaRole
from botpool.store import Store, connect, schema
from tests.conftest import new_database
from tests.support.command import botpool, run

MIGRATIONS = sorted(path.stem for path in Path(schema.__file__).parent.glob("migrations/*.sql"))
TOO_OLD = (
    "from botpool import cli; from botpool.store.postgres import servers;"
    " servers.MINIMUM_VERSION = 99; cli.main()"
)


async def test_migrate_shows_what_it_did(empty_database_url: str) -> None:
    assert await botpool("migrate", database_url=empty_database_url) == (
        0,
        "".join(f"applied {name}\n" for name in (*MIGRATIONS, "functions")),
        "",
    )
    assert await botpool("migrate", database_url=empty_database_url) == (
        0,
        "nothing to do: the database is up to date\n",
        "",
    )


async def test_status_shows_the_pools(empty_database_url: str) -> None:
    await botpool("migrate", database_url=empty_database_url, max_pool_size="7")
    code, output, _ = await botpool("status", "--json", database_url=empty_database_url)
    assert code == 0
    found = json.loads(output)
    assert [(row["platform"], row["maxSize"]) for row in found["platforms"]] == [
        ("google-meet", 7),
        ("microsoft-teams", 7),
        ("zoom", 7),
    ]
    assert found["replicas"] == []
    code, output, _ = await botpool("status", database_url=empty_database_url)
    assert code == 0
    assert "microsoft-teams" in output
    assert "No botpool runs on this database" in output


async def test_status_shows_what_runs_and_recover_says_what_is_missing(
    database_url: str, tmp_path: Path
) -> None:
    settings = {"database_url": database_url, "data_dir": str(tmp_path)}
    async with connect(database_url) as database:
        replicas = Store(database).replicas
        # A replica that is not seen for seconds is gone, and commands may take as long.
        await Store(database).installation.use_virtual_clock()
        await replicas.seen("there/1/a", ReplicaRole.API, "1.2", "there")
        _, output, _ = await botpool("status", "--json", **settings)
        (replica,) = json.loads(output)["replicas"]
        assert (replica["name"], replica["role"], replica["version"]) == ("there/1/a", "api", "1.2")
        _, output, _ = await botpool("status", **settings)
        assert "there/1/a" in output
        assert "No worker runs" in output
        code, output, error = await botpool("recover", **settings)
        assert (code, output) == (0, "0 recovered, 0 failed, 0 deleted, 0 skipped\n")
        assert "No worker runs" in error
        await replicas.seen("there/2/b", ReplicaRole.WORKER, "1.2", "there")
        _, output, _ = await botpool("status", **settings)
        assert "there/2/b" in output
        assert "No worker runs" not in output
        await replicas.seen("there/3/c", ReplicaRole.ALL, "1.2", "there")
        _, _, error = await botpool("recover", **settings)
        assert error == ""


async def test_status_of_a_database_that_is_not_migrated_is_one_sentence(
    empty_database_url: str,
) -> None:
    assert await botpool("status", database_url=empty_database_url) == (
        2,
        "",
        "botpool: The database is not migrated: run `botpool migrate`.\n",
    )


async def test_a_user_who_may_not_migrate_is_told_so_in_one_sentence(server: str) -> None:
    async with new_database(server, "template0") as url:
        async with connect(url) as database:
            await database.execute("DROP ROLE IF EXISTS guest")
            await database.execute("CREATE ROLE guest LOGIN")
        guest = url.replace("//postgres@", "//guest@")
        code, output, error = await botpool("migrate", database_url=guest)
    assert (code, output) == (2, "")
    assert error.startswith("botpool: The database user may not migrate the database: permission")
    assert error.endswith("; let the user own the database and what botpool has made in it.\n")
    assert error.count("\n") == 1


async def test_it_runs_on_a_database_of_its_own(tmp_path: Path) -> None:
    code, output, error = await botpool("migrate", data_dir=str(tmp_path), database_url="")
    assert (code, error) == (0, "")
    assert "applied 0001_core" in output
    assert not list(tmp_path.rglob("postmaster.pid"))


async def test_the_version_and_help_are_there() -> None:
    assert await botpool("--version") == (0, f"{__version__}\n", "")
    code, output, _ = await botpool("--help")
    assert code == 0
    assert all(name in output for name in ("serve", "keys", "migrate", "status"))


@pytest.mark.parametrize("command", ["serve", "status", "slots import", "keys list"])
async def test_a_flag_is_shown_without_a_value(command: str) -> None:
    code, output, _ = await botpool(*command.split(), "--help")
    assert code == 0
    assert "bool" not in output.lower()
    (flag,) = [line for line in output.splitlines() if line.strip().startswith("--help")]
    assert flag.split() == ["--help", "Show", "this", "message", "and", "exit."]


async def test_a_variable_that_is_no_setting_is_one_warning(empty_database_url: str) -> None:
    code, _, error = await botpool(
        "migrate", database_url=empty_database_url, max_poll_size="secret"
    )
    assert code == 0
    (line,) = error.splitlines()
    assert json.loads(line)["event"] == (
        "BOTPOOL_MAX_POLL_SIZE is not a botpool setting: did you mean BOTPOOL_MAX_POOL_SIZE?"
    )
    assert "secret" not in error


@pytest.mark.parametrize(
    ("role", "settings", "sentence"),
    [
        (
            "worker",
            {},
            "BOTPOOL_PUBLIC_URL must be set for a worker without an API:"
            " bots need it to reach the API.",
        ),
        (
            "api",
            {"engine": "dokcer"},
            "BOTPOOL_ENGINE is 'dokcer', but must be one of coolify, docker, kubernetes, process.",
        ),
        (
            "all",
            {"public_url": "botpool.example"},
            "BOTPOOL_PUBLIC_URL: must be an http(s) URL, such as https://botpool.example.",
        ),
    ],
)
async def test_what_can_t_be_served_is_one_sentence_and_exit_code_2(
    role: str, settings: dict[str, str], sentence: str, tmp_path: Path
) -> None:
    """Before anything is started."""
    answer = await botpool("serve", "--role", role, data_dir=str(tmp_path), **settings)
    assert answer == (2, "", f"botpool: {sentence}\n")
    assert not [*tmp_path.iterdir()]


async def test_mistakes_in_the_container_file_are_told_by_their_lines_and_exit_code_2(
    tmp_path: Path,
) -> None:
    file = tmp_path / "containers.toml"
    file.write_text('[all.env]\nPORT = 8080\n\n[zoom.docker]\nmemory = "secret"\n')
    data = tmp_path / "data"
    answer = await botpool("serve", data_dir=str(data), container_file=str(file))
    told = "line 2: all.env.PORT must be a string: put it in quotes; line 5: zoom.docker.memory"
    sentence = f"BOTPOOL_CONTAINER_FILE: {file}, {told} must be a size, such as `2GiB`."
    assert answer == (2, "", f"botpool: {sentence}\n")
    assert not data.exists()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        pytest.param(
            {"database_url": "mysql://me:secret@localhost/pool"},
            "botpool: BOTPOOL_DATABASE_URL is not the URL of a PostgreSQL server: ",
            id="another kind of server",
        ),
        *(
            pytest.param(
                {"database_url": address},
                "botpool: BOTPOOL_DATABASE_URL is not the URL of a PostgreSQL server: ",
                id=address,
            )
            for address in (
                "host=localhost password=secret dbname=pool",
                "postgresql://me:se/secret@localhost/pool",
            )
        ),
        pytest.param(
            {"max_queue_timeout_ms": "60000"},
            "botpool: BOTPOOL_DEFAULT_QUEUE_TIMEOUT_MS must not exceed ",
            id="settings that contradict each other",
        ),
        pytest.param(
            {"data_dir": "/dev/null/botpool"},
            "botpool: The embedded PostgreSQL in /dev/null/botpool can't be used: ",
            id="a folder that can't be",
        ),
        pytest.param(
            {"max_pool_size": "many"},
            "botpool: BOTPOOL_MAX_POOL_SIZE: ",
            id="a setting that can't be",
        ),
    ],
)
async def test_what_keeps_it_from_starting_is_one_sentence_and_exit_code_2(
    settings: dict[str, str], sentence: str
) -> None:
    code, output, error = await botpool("migrate", **settings)
    assert (code, output) == (2, "")
    assert error.startswith(sentence)
    assert error.count("\n") == 1
    assert "secret" not in error


async def test_a_database_that_is_away_is_one_sentence_and_exit_code_3() -> None:
    address = "127.0.0.1:1/pool"
    assert await botpool("status", database_url=f"postgresql://me:secret@{address}") == (
        3,
        "",
        f"botpool: The database at postgresql://{address} can't be used: Connection refused.\n",
    )


async def test_a_database_newer_than_the_code_is_one_sentence_and_exit_code_2(
    database_url: str,
) -> None:
    async with connect(database_url) as database:
        await database.execute("INSERT INTO schema_migrations VALUES (9999, 'later', '')")
    code, _, error = await botpool("migrate", database_url=database_url)
    assert code == 2
    assert error == (
        "botpool: The database has schema version 9999, but this botpool only knows versions up to"
        f" {int(MIGRATIONS[-1][:4])}: start a newer botpool.\n"
    )


async def test_a_server_that_is_too_old_is_one_sentence_and_exit_code_2(server: str) -> None:
    """No server older than the oldest that we take is at hand, so the limit is raised."""
    code, output, error = await run(
        *(sys.executable, "-c", TOO_OLD, "migrate"), BOTPOOL_DATABASE_URL=server
    )
    assert (code, output) == (2, "")
    assert error.startswith("botpool: The database server is PostgreSQL 1")
    assert error.endswith("; botpool needs 99 or later.\n")
