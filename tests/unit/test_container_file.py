"""What containers get comes from a file, whose mistakes are all told at once, by their lines."""

from __future__ import annotations

import json
import re
import tomllib
from typing import TYPE_CHECKING

import pytest

from botpool.container_file import (
    OURS,
    ContainerOptions,
    DockerOptions,
    read_container_file,
)
from botpool.engines import make_engines
from botpool.engines.base import REFERENCE, ContainerSpec
from botpool.engines.coolify.settings import container_mistakes
from botpool.engines.docker.configuration import configuration
from botpool.errors import SettingsInvalid
from botpool.settings import Settings, load_settings
from botpool.states import Platform
from docs.pages import EXAMPLE

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

SECRET = "hunter22-hunter22"  # noqa: S105 - that is what it is for
PROFILE = {"defaultAction": "SCMP_ACT_ALLOW"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where a test writes its file. A seccomp profile is beside it."""
    (tmp_path / "chrome.json").write_text(json.dumps(PROFILE, indent=2))
    return tmp_path / "containers.toml"


def settings_of(file: Path, text: str, **changes: Any) -> Settings:
    file.write_text(text)
    return Settings(container_file=file, data_dir=file.parent, **changes)


def mistakes(file: Path, text: str) -> list[str]:
    """Every mistake, with its line."""
    file.write_text(text)
    with pytest.raises(ValueError, match=r"containers\.toml") as raised:
        read_container_file(file)
    assert SECRET not in str(raised.value)
    return str(raised.value).removeprefix(f"{file}, ").split("; ")


def test_every_mistake_is_told_with_its_line_and_without_its_value(file: Path) -> None:
    found = mistakes(
        file,
        f"""
[all]
env = {{ BAD-NAME = "{SECRET}", PORT = 8080, BOT_DATA = "{SECRET}" }}
docker.shm-size = "1GiB"
docker.tmpfs."tmp" = ""

[google-meet.docker]
# A list over several lines.
volumes = [
    "/srv/fonts:/usr/share/fonts:ro",
    "{SECRET}",
]
memory = "2 {SECRET}"
cpus = 0
user = true
gpus = "{SECRET}"
ulimits = {{ nofile = "{SECRET}", core = {{ soft = 1 }} }}
labels = {{ "botpool.slot-id" = "7" }}
security_opt = ["no-new-privileges", "seccomp=missing.json", "seccomp=containers.toml", 1]
extra_hosts = {{ proxy = "{SECRET}" }}
dns = "{SECRET}"
pull = "{SECRET}"

[zoom]
docker = 1
[teams.env]
A = "{SECRET}"
""",
    )
    assert [re.split(r" (?:must|is|begins|names) ", each)[0].rstrip(",") for each in found] == [
        "line 3: all.env.BAD-NAME",
        "line 3: all.env.BOT_DATA",
        "line 3: all.env.PORT",
        "line 4: all.docker.shm-size",
        "line 5: all.docker.tmpfs.tmp",
        "line 9: google-meet.docker.volumes, entry 2",
        "line 13: google-meet.docker.memory",
        "line 14: google-meet.docker.cpus",
        "line 15: google-meet.docker.user",
        "line 16: google-meet.docker.gpus",
        "line 17: google-meet.docker.ulimits.core.hard",
        "line 17: google-meet.docker.ulimits.nofile",
        "line 18: google-meet.docker.labels.botpool.slot-id",
        "line 19: google-meet.docker.security_opt, entry 2",
        "line 19: google-meet.docker.security_opt, entry 3",
        "line 19: google-meet.docker.security_opt, entry 4",
        "line 20: google-meet.docker.extra_hosts.proxy",
        "line 21: google-meet.docker.dns",
        "line 22: google-meet.docker.pull",
        "line 25: zoom.docker",
        "line 26: teams",
    ]
    assert "do you mean shm_size?" in found[3]
    assert "google-meet, microsoft-teams, zoom" in found[-1]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (f'[all.env]\nA = "{SECRET}\n'.encode(), r"is not TOML: .*line 2"),
        (b'A = "\xff"', "is not UTF-8 text"),
        (None, "can't be read: No such file"),
    ],
)
def test_a_file_that_can_t_be_read_is_an_invalid_setting(
    file: Path, content: bytes | None, words: str
) -> None:
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SettingsInvalid, match=rf"^BOTPOOL_CONTAINER_FILE: .*{words}") as raised:
        load_settings(container_file=file)
    assert SECRET not in str(raised.value)


def test_what_botpool_itself_sets_can_t_be_set(file: Path) -> None:
    assert REFERENCE in OURS
    told = mistakes(file, "".join(f'all.env.{name} = "x"\n' for name in sorted(OURS)))
    assert len(told) == len(OURS)
    assert all("is set by botpool itself" in each for each in told)


def test_a_platform_wins_over_all_and_the_file_over_the_settings(file: Path) -> None:
    settings = settings_of(
        file,
        """
[all]
env = { A = "all", B = "all" }
docker = { memory = "2GiB", cap_add = ["NET_ADMIN"] }
[zoom]
env = { B = "zoom", C = "zoom" }
docker = { memory = "3GiB", cap_add = [] }
""",
        docker_memory=1,
        docker_cpus=1.5,
        docker_network="bots",
    )
    zoom, meet = map(settings.container_options, (Platform.ZOOM, Platform.GOOGLE_MEET))
    assert zoom.environment == {"A": "all", "B": "zoom", "C": "zoom"}
    assert meet.environment == {"A": "all", "B": "all"}
    assert (zoom.docker.memory, meet.docker.memory) == (3 * 2**30, 2 * 2**30)
    assert (zoom.docker.cap_add, meet.docker.cap_add) == ((), ("NET_ADMIN",))
    assert (zoom.docker.cpus, zoom.docker.network) == (1.5, "bots")


def test_secrets_are_in_no_representation(file: Path) -> None:
    settings = settings_of(file, f'[all.env]\nA = "{SECRET}"\n')
    options = settings.container_options(Platform.ZOOM)
    spec = ContainerSpec(
        host="a",
        name="x",
        slot_id=1,
        slot_name="x",
        platform=Platform.ZOOM,
        image=None,
        environment=options.environment,
    )
    assert options.environment == {"A": SECRET}
    assert SECRET not in f"{settings!r} {options!r} {options} {spec!r}"


def test_an_image_is_never_pulled_if_one_platform_says_so(file: Path) -> None:
    text = '[zoom.docker]\npull = "never"\n'
    assert settings_of(file, text, image_zoom="z:1", image_google_meet="m:1").never_pulled == {
        "z:1"
    }
    assert settings_of(file, text).never_pulled == set()


# The reference


@pytest.mark.parametrize("key", DockerOptions.model_fields)
def test_every_key_has_an_example_that_is_taken(file: Path, key: str) -> None:
    example = (DockerOptions.model_fields[key].examples or [""])[0]
    options = settings_of(file, f"[all.docker]\n{key} = {example}").docker_options[Platform.ZOOM]
    assert getattr(options, key) != getattr(DockerOptions(), key)
    assert DockerOptions.model_fields[key].description


def test_the_example_of_the_reference_is_taken(file: Path) -> None:
    (file.parent / "pod.yaml").write_text("spec: {nodeSelector: {pool: bots}}")
    options = settings_of(file, EXAMPLE).container_options(Platform.GOOGLE_MEET)
    assert {*options.environment} == {"LANG", "HTTPS_PROXY", "ACCOUNT_PASSWORD"}
    assert options.docker.memory == 4 * 2**30
    assert options.kubernetes.pod_template == {"spec": {"nodeSelector": {"pool": "bots"}}}
    assert {*tomllib.loads(EXAMPLE)["all"]} == {*ContainerOptions.model_fields}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "can't be read: No such file"),
        ("spec: [", "is not YAML at line 1"),
        ("just words", "has no Pod in it"),
    ],
)
def test_a_pod_template_that_cant_be_read_is_a_mistake(
    file: Path, content: str | None, said: str
) -> None:
    if content is not None:
        (file.parent / "pod.yaml").write_text(content)
    file.write_text('[all.kubernetes]\npod_template = "pod.yaml"')
    with pytest.raises(SettingsInvalid, match=f"line 2: .*{said}"):
        load_settings(container_file=file)


# What engines make of it


def docker_config(file: Path, keys: str, *, podman: bool = False, **ours: str) -> dict[str, Any]:
    options = settings_of(file, f"[all.docker]\n{keys}").docker_options[Platform.ZOOM]
    spec = ContainerSpec(
        host="a",
        name="me",
        slot_id=1,
        slot_name="x",
        platform=Platform.ZOOM,
        image="bot:1",
        environment={"A": "1"},
    )
    return configuration(spec, options, ours, podman=podman)


def test_docker_is_told_nothing_that_was_not_chosen(file: Path) -> None:
    assert docker_config(file, "") == {
        "Image": "bot:1",
        "Env": ["A=1", "POOL_SLOT_UUID=me"],
        "HostConfig": {
            "NetworkMode": "bridge",
            "RestartPolicy": {"Name": "no"},
            "Init": True,
            "LogConfig": {"Type": "json-file", "Config": {"max-size": "10m", "max-file": "2"}},
            "ReadonlyRootfs": False,
            "ExtraHosts": ["host.docker.internal:host-gateway"],
        },
    }


@pytest.mark.parametrize(
    ("keys", "name", "value"),
    [
        ('gpus = "all"', "DeviceRequests", [{"Count": -1, "Capabilities": [["gpu"]]}]),
        ("gpus = 2", "DeviceRequests", [{"Count": 2, "Capabilities": [["gpu"]]}]),
        ('gpus = ["7"]', "DeviceRequests", [{"DeviceIDs": ("7",), "Capabilities": [["gpu"]]}]),
        *(
            (
                f'devices = ["{device}"]',
                "Devices",
                [
                    {
                        "PathOnHost": "/dev/a",
                        "PathInContainer": inside,
                        "CgroupPermissions": permissions,
                    }
                ],
            )
            for device, inside, permissions in (
                ("/dev/a", "/dev/a", "rwm"),
                ("/dev/a:/dev/b", "/dev/b", "rwm"),
                ("/dev/a:/dev/b:r", "/dev/b", "r"),
            )
        ),
        ('runtime = "nvidia"', "Runtime", "nvidia"),
        ('dns = ["10.0.0.53", "fe80::1"]', "Dns", ["10.0.0.53", "fe80::1"]),
        ('dns_search = ["internal"]', "DnsSearch", ("internal",)),
        ('network = "host"\nextra_hosts = { a = "10.0.0.9" }', "ExtraHosts", ["a:10.0.0.9"]),
        (
            'extra_hosts = { "host.docker.internal" = "10.0.0.9" }',
            "ExtraHosts",
            ["host.docker.internal:10.0.0.9"],
        ),
        (
            'log_options = { max-size = "50m" }',
            "LogConfig",
            {"Type": "json-file", "Config": {"max-size": "50m", "max-file": "2"}},
        ),
        ('log_driver = "local"', "LogConfig", {"Type": "local", "Config": {}}),
        ("init = false", "Init", False),
    ],
)
def test_docker_is_told_what_was_chosen(file: Path, keys: str, name: str, value: object) -> None:
    assert docker_config(file, keys)["HostConfig"][name] == value


def test_docker_gets_a_seccomp_profile_and_podman_its_path(file: Path) -> None:
    keys = 'security_opt = ["seccomp=chrome.json", "seccomp=unconfined", "no-new-privileges"]'
    inline, *others = docker_config(file, keys)["HostConfig"]["SecurityOpt"]
    assert json.loads(inline.removeprefix("seccomp=")) == PROFILE
    assert others == ["seccomp=unconfined", "no-new-privileges"]
    path, *same = docker_config(file, keys, podman=True)["HostConfig"]["SecurityOpt"]
    assert path == f"seccomp={file.parent / 'chrome.json'}"
    assert same == others


def test_labels_of_ours_win(file: Path) -> None:
    labels = docker_config(file, 'labels = { team = "a" }', team="ours")["Labels"]
    assert labels == {"team": "ours"}


def test_coolify_is_not_started_with_what_it_can_t_do(file: Path) -> None:
    text = f"""
[all]
docker = {{ memory = "2GiB", volumes = ["a1:/a"] }}
[zoom]
env = {{ QUOTED = "it's {SECRET}", LINES = "{SECRET}\\n", PLAIN = "a b $c" }}
docker = {{ user = "1" }}
"""
    coolify = {
        "coolify_api_url": "https://coolify.example",
        "coolify_api_token": "1|secret",
        "coolify_project_uuid": "project",
        "coolify_server_uuid": "server",
    }
    with pytest.raises(SettingsInvalid, match=r"docker\.user, docker\.volumes; ") as raised:
        make_engines(settings_of(file, text, engine="coolify", **coolify), "here")
    assert "LINES, QUOTED have." in str(raised.value)
    assert SECRET not in str(raised.value)
    # Its slots may still be there when new ones are on Docker.
    make_engines(settings_of(file, text, engine="docker", **coolify), "here")
    assert container_mistakes(settings_of(file, '[all.docker]\nmemory = "2GiB"')) == []
