"""What containers get beyond their image: the file that `BOTPOOL_CONTAINER_FILE` names.

    [all.env]                the environment of every container
    [google-meet.env]        that of the containers of one platform
    [google-meet.docker]     how Docker makes them
    [google-meet.kubernetes] how Kubernetes makes them

The models are the file's schema: they check the file, and docs/reference/container-file.md is made
from them. What a file says is never shown, because any of it may be a secret.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    IPvAnyAddress,
    PlainSerializer,
    PlainValidator,
    SecretStr,
    ValidationError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic import ValidationInfo

    from botpool.states import Platform

OURS = frozenset({"BOTPOOL_URL", "BOTPOOL_SLOT_TOKEN", "POOL_SLOT_UUID", "BOT_DATA"})
"""The variables that botpool itself gives to containers. The file can't set them."""

OUR_LABELS = "botpool."
"""How the labels begin that botpool gives to containers. The file can't set such labels."""

_ALL_GPUS = -1
"""How many GPUs Docker is asked for to get all of them."""

_LONGEST_VARIABLE = 128 * 1024
_LONGEST_FILE = 64 * 1024
_FEW = 5

_WORDS = {
    "byte_size": "must be a size, such as `2GiB`",
    "byte_size_unit": "must be a size, such as `2GiB`",
    "dict_type": "must be a table",
    "missing": "must be set",
    "model_type": "must be a table",
    "tuple_type": "must be a list",
}
"""What to say for some of pydantic's errors. Its own words would be Python's, or show a value."""


def _fits(pattern: str, must: str) -> AfterValidator:
    """A check that a whole text matches. If not, `must` says what it must be."""

    def check(text: str) -> str:
        if re.fullmatch(pattern, text, re.ASCII | re.DOTALL) is None:
            raise ValueError(f"must be {must}")
        return text

    return AfterValidator(check)


def _variable(name: str) -> str:
    if name in OURS:
        raise ValueError("is set by botpool itself: remove it")
    return name


def _value(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a string: put it in quotes")  # noqa: TRY004 - pydantic wants it
    if "\0" in value or len(value.encode()) >= _LONGEST_VARIABLE:
        raise ValueError("must be shorter than 128 KiB, and without a NUL")
    return value


def _address(text: str) -> str:
    if text != "host-gateway":
        try:
            ip_address(text)
        except ValueError:
            raise ValueError("must be an IP address") from None
    return text


def _label(name: str) -> str:
    if name.startswith(OUR_LABELS):
        raise ValueError(f"begins with `{OUR_LABELS}`, as botpool's own labels do: rename it")
    return name


def _user(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _gpus(value: object) -> int | tuple[str, ...]:
    if value == "all":
        return _ALL_GPUS
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    if isinstance(value, list) and value and all(isinstance(each, str) for each in value):
        return tuple(value)
    raise ValueError('must be "all", a number, or a list of the names of GPUs')


def _limit(value: object) -> object:
    if isinstance(value, int):
        return {"soft": value, "hard": value}
    if not isinstance(value, dict):
        raise ValueError("must be a number, or a table with `soft` and `hard`")  # noqa: TRY004
    return value


def _security_option(value: object, info: ValidationInfo) -> object:
    """The option, with the seccomp profile that it names. Relative paths begin at the file."""
    if not isinstance(value, str):
        raise ValueError("must be a string")  # noqa: TRY004 - pydantic wants it
    path = value.removeprefix("seccomp=")
    if path in {value, "unconfined", "builtin"}:
        return {"text": value}
    found = Path((info.context or {}).get("folder", "/"), path).absolute()
    try:
        profile = json.loads(found.read_text("utf-8"))
    except OSError as error:
        raise ValueError(f"names a seccomp profile that can't be read: {error.strerror}") from None
    except ValueError:
        profile = None
    if not isinstance(profile, dict) or "defaultAction" not in profile:
        raise ValueError("names a file that is not a seccomp profile: it has no `defaultAction`")
    return {"text": f"seccomp={found}", "profile": json.dumps(profile)}


class _Table(BaseModel):
    """A table of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class Ulimit(_Table):
    """A limit of a container's processes."""

    soft: int = Field(ge=-1)
    hard: int = Field(ge=-1)


class SecurityOption(_Table):
    """A security option as Docker's command takes it, and the seccomp profile that it names."""

    text: str
    profile: str | None = None


_PATH = r"/[^:\0]*"
_Word = Annotated[str, _fits(r"\S+", "a text without spaces")]
_Path = Annotated[str, _fits(_PATH, "an absolute path")]
_Volume = Annotated[
    str,
    _fits(
        rf"(?:{_PATH}|[a-zA-Z0-9][\w.-]+):{_PATH}(?::[\w,]+)?",
        "`source:target` or `source:target:options`, where the source is an absolute path or the"
        " name of a volume, and the target is an absolute path",
    ),
]
_Device = Annotated[
    str,
    _fits(
        rf"{_PATH}(?::{_PATH}(?::[rwm]{{1,3}})?)?", "such as `/dev/dri` or `/dev/dri:/dev/dri:rwm`"
    ),
]
_Capability = Annotated[str, _fits(r"[A-Z][A-Z0-9_]+", "such as `SYS_ADMIN`")]
_Address = Annotated[IPvAnyAddress, PlainSerializer(str)]


def _list(example: str, description: str) -> Any:
    return Field(default=(), examples=[example], description=description)


def _table(example: str, description: str) -> Any:
    return Field(default_factory=dict, examples=[example], description=description)


def _key(example: str, description: str, default: object = None, **limits: Any) -> Any:
    return Field(default=default, examples=[example], description=description, **limits)


class DockerOptions(_Table):
    """How Docker makes containers. The names are those of `docker run` and Compose."""

    cpus: float | None = _key("1.5", "How many CPUs a container may use.", gt=0, le=10_000)
    memory: ByteSize | None = _key('"2GiB"', "How much memory it may use.", gt=0)
    shm_size: ByteSize | None = _key(
        '"1GiB"', "The size of its `/dev/shm`, which is in memory. Browsers need it.", gt=0
    )
    pids_limit: int | None = _key("500", "How many processes it may have.", gt=0)
    ulimits: dict[_Word, Annotated[Ulimit, BeforeValidator(_limit)]] = _table(
        "{ nofile = 65536, core = { soft = 0, hard = 0 } }", "Limits of its processes."
    )
    volumes: tuple[_Volume, ...] = _list(
        '["/srv/fonts:/usr/share/fonts:ro", "models:/models"]',
        "Folders of the host, and Docker's volumes. What a bot writes there stays for the bots"
        " after it: prefer `:ro`.",
    )
    tmpfs: dict[_Path, str] = _table(
        '{ "/tmp" = "size=512m" }', "Folders in memory, with their mount options."
    )
    read_only: bool = _key("true", "Whether its other files can't be changed.", default=False)
    user: Annotated[_Word, BeforeValidator(_user)] | None = _key(
        '"1000:1000"', "The user that it runs as, by name or number. By default the image's."
    )
    devices: tuple[_Device, ...] = _list('["/dev/dri"]', "Devices of the host.")
    gpus: Annotated[int | tuple[str, ...] | None, PlainValidator(_gpus)] = _key(
        '"all"', 'GPUs: `"all"`, how many, or a list of names. Podman may ignore it.'
    )
    runtime: _Word | None = _key('"nvidia"', "The runtime that runs it. By default the host's.")
    network: _Word = _key('"bots"', "The network that it is attached to.", default="bridge")
    extra_hosts: dict[_Word, Annotated[str, AfterValidator(_address)]] = _table(
        '{ "proxy.internal" = "10.0.0.9" }',
        "Names that it can resolve, with their addresses. `host-gateway` is the host's own.",
    )
    dns: tuple[_Address, ...] = _list('["10.0.0.53"]', "The DNS servers that it asks.")
    dns_search: tuple[_Word, ...] = _list('["internal"]', "Where it looks for short names.")
    cap_add: tuple[_Capability, ...] = _list(
        '["SYS_ADMIN"]', "Capabilities that it has in addition."
    )
    cap_drop: tuple[_Capability, ...] = _list('["ALL"]', "Capabilities that are taken from it.")
    security_opt: tuple[Annotated[SecurityOption, BeforeValidator(_security_option)], ...] = _list(
        '["no-new-privileges", "seccomp=chrome.json"]',
        "Security options. `seccomp=` takes the path of a profile; a relative path begins at this"
        " file's folder. The profile is read when botpool starts and sent to the host; for Podman"
        " it must be at the same path there.",
    )
    log_driver: _Word | None = _key(
        '"local"',
        "What keeps its output: by default `json-file`, 20 MB of it. With `none`, botpool can't"
        " read its last lines.",
    )
    log_options: dict[_Word, str] = _table('{ max-size = "50m" }', "Options of that log driver.")
    labels: dict[Annotated[_Word, AfterValidator(_label)], str] = _table(
        '{ team = "meetings" }', f"Labels. None may begin with `{OUR_LABELS}`."
    )
    entrypoint: tuple[str, ...] = _list('["/usr/bin/env"]', "Replaces the image's entrypoint.")
    command: tuple[str, ...] = _list('["/bot", "--fast"]', "Replaces the image's command.")
    init: bool = _key(
        "false",
        "Whether an init process of Docker's leads it. Turn it off for images with their own.",
        default=True,
    )
    pull: Literal["missing", "never"] = _key(
        '"never"',
        "Whether an image that is not on the host is pulled. If never, its bots fail at once.",
        default="missing",
    )


def _pod_template(value: object, info: ValidationInfo) -> object:
    """The template in the file that is named. Relative paths begin at this file."""
    if not isinstance(value, str):
        raise ValueError("must be the path of a file")  # noqa: TRY004 - pydantic wants it
    path = Path((info.context or {}).get("folder", "/"), value)
    try:
        template = yaml.safe_load(path.read_text("utf-8"))
    except OSError as error:
        raise ValueError(f"names a file that can't be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        at = getattr(error, "problem_mark", None)
        line = "" if at is None else f" at line {at.line + 1}"
        raise ValueError(f"names a file that is not YAML{line}") from None
    if not isinstance(template, dict):
        raise ValueError("names a file that has no Pod in it")  # noqa: TRY004 - pydantic wants it
    return template


class KubernetesOptions(_Table):
    """How Kubernetes makes pods."""

    pod_template: Annotated[dict[str, Any] | None, BeforeValidator(_pod_template)] = _key(
        '"pod.yaml"',
        "A file with a Pod, merged into botpool's own as `kubectl patch` does. Its container `bot`"
        " is the bot's. A relative path begins at this file's folder.",
    )


class ContainerOptions(_Table):
    """What containers get: the environment on every engine, and what an engine takes."""

    env: dict[
        Annotated[
            str,
            _fits(r"[A-Za-z_][A-Za-z0-9_]*", "made of letters, digits and `_`"),
            AfterValidator(_variable),
        ],
        Annotated[SecretStr, BeforeValidator(_value)],
    ] = Field(default_factory=dict)
    docker: DockerOptions = DockerOptions()
    kubernetes: KubernetesOptions = KubernetesOptions()

    @property
    def environment(self) -> dict[str, str]:
        """The variables with their secret values."""
        return {name: value.get_secret_value() for name, value in self.env.items()}


class ContainerFile(_Table):
    """The whole file: a table for all platforms, and one for each."""

    model_config = ConfigDict(alias_generator=lambda name: name.replace("_", "-"))

    all: ContainerOptions = ContainerOptions()
    google_meet: ContainerOptions = ContainerOptions()
    microsoft_teams: ContainerOptions = ContainerOptions()
    zoom: ContainerOptions = ContainerOptions()

    def options(self, platform: Platform, defaults: Mapping[str, Any]) -> ContainerOptions:
        """What the containers of a platform get. `defaults` are those of the keys of `docker`.

        A platform's variable or key wins over the same one of `all`.
        """
        of_platform = self._of(platform)
        keys = {
            name: getattr(each.docker, name)
            for each in (self.all, of_platform)
            for name in each.docker.model_fields_set
        }
        return ContainerOptions.model_construct(
            env={**self.all.env, **of_platform.env},
            docker=DockerOptions().model_copy(update={**defaults, **keys}),
            kubernetes=of_platform.kubernetes
            if of_platform.kubernetes.model_fields_set
            else self.all.kubernetes,
        )

    def docker_keys(self, platform: Platform) -> set[str]:
        """The keys of `docker` that the file sets for a platform."""
        return self.all.docker.model_fields_set | self._of(platform).docker.model_fields_set

    def _of(self, platform: Platform) -> ContainerOptions:
        found: ContainerOptions = getattr(self, platform.replace("-", "_"))
        return found


def read_container_file(path: Path) -> ContainerFile:
    """Read and check a file.

    Raises `ValueError`, whose message names every mistake with its line, and shows no value.
    """
    try:
        content = path.read_bytes()
        text = content.decode()
        tables = tomllib.loads(text)
    except OSError as error:
        raise ValueError(f"{path} can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not TOML: {error}") from None
    if len(content) > _LONGEST_FILE:
        raise ValueError(f"{path} is longer than {_LONGEST_FILE} bytes")
    try:
        return ContainerFile.model_validate(tables, context={"folder": path.absolute().parent})
    except ValidationError as error:
        lines = _lines(text)
        mistakes = sorted(
            _mistake(problem["loc"], problem["type"], problem["msg"], lines)
            for problem in error.errors(include_input=False, include_url=False)
        )
    told = "; ".join(f"line {line}: {mistake}" for line, mistake in mistakes)
    raise ValueError(f"{path}, {told}")


def _mistake(
    where: tuple[int | str, ...], kind: str, message: str, lines: Mapping[tuple[str, ...], int]
) -> tuple[int, str]:
    """A mistake with its line, as a sentence."""
    keys = tuple(str(part) for part in where if not isinstance(part, int) and part != "[key]")
    line = next(
        (lines[keys[:length]] for length in range(len(keys), 0, -1) if keys[:length] in lines), 1
    )
    entries = "".join(f", entry {part + 1}," for part in where if isinstance(part, int))
    said = _WORDS.get(kind) or message.removeprefix("Value error, ").replace("Input should", "must")
    if kind == "extra_forbidden":
        said = f"is not known{_meant(keys)}"
    return line, f"{'.'.join(keys)}{entries} {said}"


def _meant(keys: tuple[str, ...]) -> str:
    """What an unknown key may mean, as a part of a sentence."""
    model: type[BaseModel] = ContainerFile
    for key in keys[:-1]:
        names = {field.alias or name: field for name, field in model.model_fields.items()}
        table = names[key].annotation if key in names else None
        if not (isinstance(table, type) and issubclass(table, BaseModel)):
            return ""
        model = table
    known = [field.alias or name for name, field in model.model_fields.items()]
    near = difflib.get_close_matches(keys[-1], known, n=1)
    if near:
        return f", do you mean {near[0]}?"
    return f", known are {', '.join(known)}" if len(known) <= _FEW else ""


def _lines(text: str) -> dict[tuple[str, ...], int]:
    """The line on which each key of a valid file begins.

    Each statement is parsed by itself, behind the header of its table. It is over at the first line
    up to which it can be parsed.
    """
    found: dict[tuple[str, ...], int] = {}
    header = statement = ""
    begins = 1
    for number, line in enumerate(text.split("\n"), start=1):
        statement += f"{line}\n"
        try:
            tables = tomllib.loads(header + statement)
        except tomllib.TOMLDecodeError:
            continue
        for keys in _keys(tables):
            found.setdefault(keys, begins)
        if statement.lstrip().startswith("["):
            header = statement
        statement, begins = "", number + 1
    return found


def _keys(table: Mapping[str, Any], before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in table.items():
        yield (*before, key)
        if isinstance(value, dict):
            yield from _keys(value, (*before, key))
