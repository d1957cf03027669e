"""How clusters are reached: kubeconfigs, exec plugins, and the token of the pod's own account."""

from __future__ import annotations

import base64
import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from botpool.engines.kubernetes.credentials import User, from_kubeconfig, in_cluster
from botpool.engines.kubernetes.settings import kubernetes_clusters
from botpool.errors import EngineUnavailable, SettingsInvalid

if TYPE_CHECKING:
    from pathlib import Path


def config(folder: Path, user: dict[str, Any] | None = None, **cluster: Any) -> Path:
    path = folder / "config"
    path.write_text(
        json.dumps(
            {
                "current-context": "one",
                "clusters": [{"name": "c", "cluster": {"server": "https://c:6443/", **cluster}}],
                "users": [{"name": "u", "user": user or {}}],
                "contexts": [
                    {"name": "one", "context": {"cluster": "c", "user": "u"}},
                    {
                        "name": "arn:aws:eks:x:1:cluster/two",
                        "context": {"cluster": "c", "user": "u", "namespace": "of-two"},
                    },
                ],
            }
        )
    )
    return path


async def test_a_kubeconfig_names_a_server_a_namespace_and_a_user(tmp_path: Path) -> None:
    access = from_kubeconfig(config(tmp_path, {"token": "t1"}), None, None)
    assert (access.server, access.namespace) == ("https://c:6443", "default")
    assert (await access.user.credentials()).header == "Bearer t1"
    two = from_kubeconfig(config(tmp_path), "arn:aws:eks:x:1:cluster/two", None)
    assert two.namespace == "of-two"
    assert (await two.user.credentials()).header is None


async def test_a_user_has_a_token_in_a_file_a_password_or_a_certificate(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t1\n")
    of_file = User({"tokenFile": "token"}, tmp_path, {})
    assert (await of_file.credentials()).header == "Bearer t1"
    by_name = User({"username": "a", "password": "b"}, tmp_path, {})
    assert (await by_name.credentials()).header == f"Basic {base64.b64encode(b'a:b').decode()}"
    (tmp_path / "key").write_text("KEY")
    data = base64.b64encode(b"CERTIFICATE").decode()
    found = await User(
        {"client-certificate-data": data, "client-key": "key"}, tmp_path, {}
    ).credentials()
    assert found.certificate == (b"CERTIFICATE", b"KEY")


async def test_a_token_in_a_file_is_read_again_after_a_while_or_when_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    monkeypatch.setattr("time.time", lambda: now)
    (tmp_path / "token").write_text("t1")
    user = User({"tokenFile": str(tmp_path / "token")}, tmp_path, {})
    first = await user.credentials()
    (tmp_path / "token").write_text("t2")
    assert (await user.credentials()).header == "Bearer t1"
    now += 61
    assert (await user.credentials()).header == "Bearer t2"
    (tmp_path / "token").write_text("t3")
    user.refused(first)  # not the one that is in force
    assert (await user.credentials()).header == "Bearer t2"
    user.refused(await user.credentials())
    assert (await user.credentials()).header == "Bearer t3"


async def test_the_cluster_that_botpool_runs_in_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SettingsInvalid, match="doesn't run in a cluster"):
        in_cluster(None, tmp_path)
    for name, text in (("token", "t1"), ("ca.crt", "CA"), ("namespace", "bots\n")):
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    access = in_cluster(None, tmp_path)
    assert (access.server, access.namespace) == ("https://[fd00::1]:443", "bots")
    assert (access.authority, access.verify) == (b"CA", True)
    assert in_cluster("other", tmp_path).namespace == "other"


def plugin(folder: Path, script: str, **more: Any) -> User:
    path = folder / "plugin"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    said = {"command": "./plugin", "apiVersion": "client.authentication.k8s.io/v1beta1", **more}
    return User({"exec": said}, folder, {"server": "https://c"})


async def test_a_program_prints_credentials_and_is_run_again_when_they_expire(
    tmp_path: Path,
) -> None:
    script = (
        f"echo run >> {tmp_path}/runs\n"
        'told=$(printf %s "$KUBERNETES_EXEC_INFO" | grep -c "v1beta1.*https://c")\n'
        'printf \'{"status": {"token": "%s", "expirationTimestamp": "%s"}}\''
        ' "$1-$REGION-$told" "$WHEN"'
    )
    environment = [
        {"name": "REGION", "value": "eu"},
        {"name": "WHEN", "value": "2001-01-01T00:00:00Z"},
    ]
    user = plugin(tmp_path, script, args=["get"], env=environment, provideClusterInfo=True)
    assert (await user.credentials()).header == "Bearer get-eu-1"
    await user.credentials()
    assert (tmp_path / "runs").read_text().count("run") == 2  # it had expired
    environment[1]["value"] = "2999-01-01T00:00:00Z"
    await user.credentials()
    await user.credentials()
    assert (tmp_path / "runs").read_text().count("run") == 3


@pytest.mark.parametrize(
    ("script", "said"),
    [("exit 3", "exit code 3"), ("echo secret", "did not answer"), ("echo '{}'", "did not answer")],
)
async def test_what_a_program_says_is_not_shown(tmp_path: Path, script: str, said: str) -> None:
    with pytest.raises(EngineUnavailable, match=said) as raised:
        await plugin(tmp_path, script).credentials()
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("a: [", "is not YAML"),
        ("[]", "is not a kubeconfig"),
        ("{}", "names no context"),
        ('{"current-context": "x"}', "has no context named x"),
    ],
)
def test_a_kubeconfig_that_cant_be_used_is_a_mistake_in_the_settings(
    tmp_path: Path, content: str, said: str
) -> None:
    path = tmp_path / "config"
    path.write_text(content)
    with pytest.raises(SettingsInvalid, match=said):
        from_kubeconfig(path, None, None)
    with pytest.raises(SettingsInvalid, match="can't be read"):
        from_kubeconfig(tmp_path / "none", None, None)


def test_the_setting_names_clusters(tmp_path: Path) -> None:
    path = config(tmp_path)
    clusters = kubernetes_clusters(
        f"a={path}, b={path}#one/bots,c={path}#arn:aws:eks:x:1:cluster/two/more,d={path}#/else"
    )
    assert {name: each.namespace for name, each in clusters.items()} == {
        "a": "default",
        "b": "bots",
        "c": "more",
        "d": "else",
    }


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("{0}", "Entry 1"),
        ("a={0},", "Entry 2"),
        ("a={0},a={0}#/x", "two clusters named a"),
        ("a={0},b={0}", "one namespace of one cluster twice"),
        ("a=#context/x", "a context without a kubeconfig"),
        ("a={0}#none/x", "has no context named none"),
    ],
)
def test_a_setting_that_names_no_clusters_is_a_mistake(
    tmp_path: Path, setting: str, said: str
) -> None:
    with pytest.raises(SettingsInvalid, match=said):
        kubernetes_clusters(setting.format(config(tmp_path)))
