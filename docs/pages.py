"""The pages of docs/ that are made from the code, so that they always match it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from typer.main import get_command

from botpool.cli.app import app
from botpool.cli.exits import MEANINGS
from botpool.container_file import OURS, DockerOptions, KubernetesOptions
from botpool.metrics import MEASURES
from botpool.settings import OLD_NAMES, Settings
from botpool.states import (
    BOT_ENDED,
    BOT_HOLDS_SLOT,
    BOT_RELAUNCHABLE,
    BOT_STEPS,
    SLOT_HOLDS_BOT,
    SLOT_STEPS,
    BotStatus,
    FailureCause,
    Platform,
)
from docs import MADE
from docs.api_page import api
from docs.pictures import PICTURES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Status = TypeVar("Status", bound=str)

FOLDER = Path(__file__).parent

# What each cause means.
_CAUSES = {
    FailureCause.QUEUE_TIMEOUT: "no slot became free before the bot's queue deadline",
    FailureCause.IMAGE_PULL: "the image could not be pulled",
    FailureCause.ENGINE: "the engine failed or refused",
    FailureCause.START_TIMEOUT: "the container did not start in time",
    FailureCause.CRASHED: "the container ended before the bot did",
    FailureCause.HEARTBEAT_LOST: "the bot sent no heartbeat for too long",
    FailureCause.LEFT_BY_HOST: "the host of the meeting removed the bot",
    FailureCause.NOT_ADMITTED: "the bot was not let into the call",
    FailureCause.BOT_FAILED: "the bot reported another failure",
    FailureCause.MAX_DURATION: "its longest stay was over; such a bot is `DONE`, not `FATAL`",
}


def _matrix(steps: Mapping[Status | None, Iterable[Status | None]]) -> str:
    """A table of all pairs of statuses, with a dot for each step that exists."""
    statuses = [status for status in steps if status]
    header = f"| from ╲ to | {' | '.join(statuses)} |"
    rule = f"|---|{'---|' * len(statuses)}"
    rows = [
        f"| {source or '(new)'} | "
        + " | ".join("●" if target in targets else "" for target in statuses)
        + " |"
        for source, targets in ((source, set(targets)) for source, targets in steps.items())
    ]
    return "\n".join([header, rule, *rows])


def _names(statuses: Iterable[str]) -> str:
    order = [*BotStatus]
    found = set(statuses)
    if found <= {*order}:
        return ", ".join(f"`{status}`" for status in order if status in found)
    return ", ".join(f"`{status}`" for status in sorted(found))


def states() -> str:
    """Both state machines."""
    causes = "\n".join(f"| `{cause}` | {meaning} |" for cause, meaning in _CAUSES.items())
    return f"""{MADE}
# States

Every status of slots and bots, and every step from one to another. One table,
[`states.py`](../../src/botpool/states.py), makes this page, the pool's guards, and the triggers
with which the database refuses any other step.

## Slot

A slot has a bot only in {_names(SLOT_HOLDS_BOT)}. `releasing` means that the assignment is over but
the container is not yet proved stopped; a slot is `idle` only once it is. When a slot becomes
`idle`, the first bot that waits gets it in the same transaction.

![Every step of a slot; the table below has the same](../pictures/slot-states.svg)

{_matrix(SLOT_STEPS)}

## Bot

A bot has a slot in {_names(BOT_HOLDS_SLOT)}. It may skip steps forward, but can't go back by
itself. The one way back, from {_names(BOT_RELAUNCHABLE)}, is a relaunch under a new lease. From
`IN_CALL` only a bot that was created with `relaunchInCall` goes back. In {_names(BOT_ENDED)} it has
ended and never changes again; it is deleted after the retention.

![Every step of a bot; the table below has the same](../pictures/bot-states.svg)

{_matrix(BOT_STEPS)}

## Why a bot is `FATAL`

Its `failureCause` is one of these; its `failureReason` has the evidence.
[What to do](../how-to/troubles.md#why-a-bot-failed) has a page of its own.

| cause | meaning |
|---|---|
{causes}
"""


def settings() -> str:
    """Every setting."""
    rows = []
    for name, field in Settings.model_fields.items():
        default = field.default
        shown = f"`{default}`" if field.default_factory is None and default is not None else ""
        if name == "data_dir":
            shown = "the user's data folder"
        rows.append(f"| `BOTPOOL_{name.upper()}`{_other(name)} | {shown} | {field.description} |")
    return f"""{MADE}
# Settings

Settings are environment variables. If a value is invalid, botpool says so in one sentence and exits
with code 2. A setting that was renamed is still read by its old name.

| variable | default | meaning |
|---|---|---|
{chr(10).join(rows)}
"""


def _other(name: str) -> str:
    """The other name by which a setting is read, if it has one."""
    if name in OLD_NAMES:
        return f" (was `BOTPOOL_{OLD_NAMES[name].upper()}`)"
    return f" (or `{name.upper()}`)" if Settings.model_fields[name].validation_alias else ""


EXAMPLE = """\
[all.env]
LANG = "C.UTF-8"
HTTPS_PROXY = "http://proxy.internal:3128"

[all.docker]
memory = "2GiB"
shm_size = "1GiB"
user = "1000:1000"
security_opt = ["no-new-privileges", "seccomp=chrome.json"]

[all.kubernetes]
pod_template = "pod.yaml"

[google-meet.env]
ACCOUNT_PASSWORD = "correct horse battery staple"

[google-meet.docker]
memory = "4GiB"
volumes = ["/srv/fonts:/usr/share/fonts:ro"]
"""
"""A container file. The tests read it."""


def container_file() -> str:
    """Every key of the container file."""
    rows = []
    for name, field in DockerOptions.model_fields.items():
        default = field.get_default(call_default_factory=True)
        shown = f"`{json.dumps(default)}`" if default or default is False else ""
        example = (field.examples or [""])[0]
        rows.append(f"| `{name}` | `{example}` | {shown} | {field.description} |")
    platforms = ", ".join(f"`{platform}`" for platform in Platform)
    ours = ", ".join(f"`{name}`" for name in sorted(OURS))
    return f"""{MADE}
# The container file

`BOTPOOL_CONTAINER_FILE` names a TOML file with what containers get beyond their image:

```toml
{EXAMPLE}```

It has a table `all` for every platform, and one for each platform:
{platforms}.
Each may have the tables `env`, `docker` and `kubernetes`. A variable or a key of a platform wins
over the same one of `all`, as a whole: lists and tables are not joined. Both win over
`BOTPOOL_DOCKER_NETWORK`, `BOTPOOL_DOCKER_CPUS`, `BOTPOOL_DOCKER_MEMORY` and
`BOTPOOL_DOCKER_SHM_SIZE`. [How to give an image what it needs](../how-to/images.md) shows it in
use.

botpool reads the file when it starts. If something in it is wrong, `serve` names every mistake with
its line, and exits with code 2; `botpool doctor` also finds what a host lacks. Each slot follows a
change with its next bot: if its container was made with anything else, it is made anew.

## `env`

Environment variables, on every engine. A name has letters, digits and `_`; a value is a string.
Values are secret: botpool shows them nowhere, and its database has only a digest. A bot that prints
its environment prints them into its own log lines. Whoever may use Docker on a host can read them
there. On `process` they are in the slot's folder, which only its user can read; bots run as that
user. On Coolify a value can have neither a `'` nor a line break. These are botpool's own, and
can't be set:
{ours}.

## `docker`

For containers of the `docker` engine, Podman's too. Coolify takes `cpus`, `memory` and `shm_size`,
and `serve` refuses the others for it; `process` takes none.

| key | example | default | meaning |
|---|---|---|---|
{chr(10).join(rows)}

## `kubernetes`

For pods of the `kubernetes` engine. It has one key, `pod_template`: {_template()}
What botpool needs can't be in it: `serve` says so and exits with code 2, also if a cluster refuses
the template, or doesn't know a field of it.
"""


def _template() -> str:
    description = KubernetesOptions.model_fields["pod_template"].description or ""
    return description[:1].lower() + description[1:]


def metrics() -> str:
    """Every metric."""

    def table(of_database: bool) -> str:
        rows = []
        for measure in MEASURES:
            if measure.of_database is of_database:
                labels = "; ".join(f"`{name}`: {said}" for name, said in measure.labels.items())
                rows.append(f"| `{measure.name}` | {measure.kind} | {measure.help} | {labels} |")
        return "\n".join(["| name | type | says | labels |", "|---|---|---|---|", *rows])

    return f"""{MADE}
# Metrics

What `/metrics` tells Prometheus, on an API at `BOTPOOL_PORT` and on a worker at
`BOTPOOL_HEALTH_PORT`. [Monitor](../how-to/monitor.md) says how to scrape it, and has a board and
alerts. A histogram has the series `…_bucket`, `…_count` and `…_sum`.

## Of the database

Equal on every replica, so over replicas take the `max`, never the `sum`:
`sum by (status) (max by (platform, engine, host, status) (botpool_slots))`. They are read with each
scrape; scrapes of a replica that overlap share one look. While the database is away they are
missing, and `botpool_database_up` is 0.

{table(of_database=True)}

A status that no slot of a host has is there with 0.

## Of a replica

Each event is counted once, by the replica that brought it about, after it was written: `sum` them
over replicas, as in `sum by (status) (rate(botpool_bots_ended_total[5m]))`. They begin at 0 with
each start. What is written by a command, such as `botpool recover`, is counted nowhere.

{table(of_database=False)}

The phases are those of [a launch](../how-to/operate.md#why-wasnt-it-there-in-time); one that was
skipped is not counted. Of a bot that was launched again, the phases of its last launch count, and
`total` includes those before it. The time in which people let a bot wait before its call is in
`total` and in no phase.

The usual metrics of a process are there, too: `process_cpu_seconds_total`,
`process_resident_memory_bytes`, `process_open_fds`, `python_gc_…`, `python_info` and others.
"""


def cli() -> str:
    """Every command, and the exit codes."""
    root: Any = get_command(app)
    context = root.context_class(root, info_name="botpool")
    commands = "\n\n".join(_command(context, root, name, 2) for name in root.list_commands(context))
    codes = "\n".join(f"| {code.value} | {meaning} |" for code, meaning in MEANINGS.items())
    return f"""{MADE}
# The command line

`botpool --help` and `botpool COMMAND --help` show the same.

## How commands find botpool

Most commands ask the API. `BOTPOOL_URL` says where it is, and `BOTPOOL_API_KEY` with which key:

```sh
export BOTPOOL_URL=https://botpool.example BOTPOOL_API_KEY=…
botpool bots list --live
```

On the machine where `botpool serve` runs they need neither, if they have the same
`BOTPOOL_DATA_DIR`: `serve` notes its address there, and the admin's key is there, too (or in
`BOTPOOL_ADMIN_KEY`). That key is sent to no other machine. If the process that wrote the note was
killed, commands say so.

| commands | use |
|---|---|
| `bots`, `queue`, `hosts`, `pause`, `resume`, `slots` (but `import`), `pool --watch` | the API |
| `pool`, `status`, `replicas`, `projects`, `keys`, `webhooks` | the API; where no botpool runs, \
the database that the settings name |
| `sign-in` | the database, where botpool runs; with `BOTPOOL_API_KEY`, the API |
| `serve`, `migrate`, `psql`, `recover`, `doctor`, `slots import` | the database, and engines \
where they need them; no server |
| `demo` | a folder of its own |

## What they print

On a terminal, tables fit its width, and statuses have colours; `NO_COLOR` leaves them out.
Elsewhere each row is one line, nothing is cut, and there are no escape codes. Hints and errors go
to the standard error.

`--json` prints what the API answers, with its names. Lists are `{{"bots": […], "nextCursor": …}}`,
as many pages as `--limit` needs in one; `show` prints the object alone. `pool` joins what
`GET /pool`, `/replicas` and `/attention` answer. `bots watch`, `bots logs --follow` and
`pool --watch` print a line of JSON for each event, line or change.

`bots watch`, `bots logs --follow`, `bots create --wait` and `pool --watch` live through a cut
connection and a restart of botpool; each event comes once. Ctrl-C ends them.

## Exit codes

What goes wrong is one sentence on the standard error, and an exit code:

| code | means |
|---|---|
{codes}

`serve` that is ended by SIGHUP or SIGTERM before it runs, or by a second one, exits with 129 or
143; `psql` exits with psql's own code. In a systemd unit, `RestartPreventExitStatus=2` keeps
botpool from being restarted in vain.

## Completion

`botpool --install-completion` lets your shell (bash, zsh or fish) complete commands, options and
their values; `--show-completion` prints the script.

{commands}
"""


def _command(parent: Any, group: Any, name: str, level: int) -> str:
    """A command and those in it, as sections."""
    command = group.get_command(parent, name)
    context = command.context_class(command, info_name=name, parent=parent)
    usage = " ".join((context.command_path, *command.collect_usage_pieces(context)))
    parts = [f"{'#' * level} `{context.command_path}`", _prose(command.help)]
    if hasattr(command, "list_commands"):
        inner = command.list_commands(context)
        return "\n\n".join(
            [*parts, *(_command(context, command, each, level + 1) for each in inner)]
        )
    parts.append(f"```\n{usage}\n```")
    records = [parameter.get_help_record(context) for parameter in command.params]
    rows = [
        f"| `{_in_cell(words).replace(' range>', '>')}` | {_in_cell(meaning)} |"
        for words, meaning in filter(None, records)
        if not words.startswith("--help")
    ]
    if rows:
        parts.append("\n".join(["| | |", "|---|---|", *rows]))
    return "\n\n".join(parts)


def _in_cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _prose(text: str) -> str:
    """A help text, without the breaks of its lines."""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def readme() -> str:
    """README.md as it is, with the newest figures of `make bench`."""
    measured = (FOLDER.parent / "bench" / "README.md").read_text("utf-8")
    rows = {
        cells[0]: cells[1:3]
        for line in measured.splitlines()
        if len(cells := [cell.strip() for cell in line.strip("| ").split("|")]) > 3  # noqa: PLR2004
    }
    date, machine = re.findall(r"on (\S+): .*\n(.*)\.", measured)[0]
    warm, bare = rows["warm: create → first claim ÷ bare start → first claim"]
    given_on, _ = rows["given on: end of a bot → start of the next ÷ poll interval"]
    many, few = rows["creation with 100,000 slots ÷ with 100"]
    created, _ = rows["POST /bots ÷ create_bot, 32 clients"]
    beats, _ = rows["heartbeats ÷ single-row UPDATEs"]
    figures = f"""\
| on {machine}, {date} | |
|---|---|
| from the request to the first word of a bot on a warm slot, on Docker | {warm} ms |
| the same container, started by hand | {bare} ms |
| from the end of a bot to the start of the next in its slot | {given_on} ms |
| creating a bot, with 100,000 slots; with 100 | {many} µs; {few} µs |
| bots created over HTTP, by one process | {created} a second |
| heartbeats taken | {beats} a second |
"""
    text = (FOLDER.parent / "README.md").read_text("utf-8")
    begin, end = "<!-- figures -->\n", "<!-- /figures -->"
    head, _, rest = text.partition(begin)
    return f"{head}{begin}{figures}{end}{rest.partition(end)[2]}"


PAGES = {
    FOLDER.parent / "README.md": readme,
    FOLDER / "reference" / "api.md": api,
    FOLDER / "reference" / "cli.md": cli,
    FOLDER / "reference" / "container-file.md": container_file,
    FOLDER / "reference" / "metrics.md": metrics,
    FOLDER / "reference" / "settings.md": settings,
    FOLDER / "reference" / "states.md": states,
    **{FOLDER / "pictures" / f"{name}.svg": picture for name, picture in PICTURES.items()},
}
