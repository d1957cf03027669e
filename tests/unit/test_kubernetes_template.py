"""How a user's pod template is merged, and what of it is refused."""

from __future__ import annotations

from typing import Any

import pytest

from botpool.engines.kubernetes.template import away_from, merged, mistakes, owned, pod


def made(template: dict[str, Any] | None = None) -> dict[str, Any]:
    labels = {"botpool/slot-id": "7"}
    return pod(template, name="pool-zoom-007-abc", image="bot:1", labels=labels, grace_seconds=9.5)


def bot(object_: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any]
    (found,) = [each for each in object_["spec"]["containers"] if each["name"] == "bot"]
    return found


@pytest.mark.parametrize(
    ("base", "patch", "result"),
    [
        # maps, key by key; null takes out
        ({"a": {"x": 1, "y": 2}}, {"a": {"y": 3, "x": None}}, {"a": {"y": 3}}),
        # lists of named things, by their names
        (
            {"containers": [{"name": "a", "image": "1"}, {"name": "b"}]},
            {"containers": [{"name": "b", "image": "2"}, {"name": "c"}]},
            {
                "containers": [
                    {"name": "a", "image": "1"},
                    {"name": "b", "image": "2"},
                    {"name": "c"},
                ]
            },
        ),
        (
            {"volumeMounts": [{"mountPath": "/a", "name": "a"}]},
            {"volumeMounts": [{"mountPath": "/a", "name": "b"}, {"mountPath": "/b", "name": "b"}]},
            {"volumeMounts": [{"mountPath": "/a", "name": "b"}, {"mountPath": "/b", "name": "b"}]},
        ),
        # other lists as a whole
        (
            {"tolerations": [{"key": "a"}]},
            {"tolerations": [{"key": "b"}]},
            {"tolerations": [{"key": "b"}]},
        ),
        ({"drop": ["ALL"]}, {"drop": ["NET_RAW"]}, {"drop": ["NET_RAW"]}),
        # directives
        ({"a": {"x": 1}}, {"a": {"$patch": "replace", "y": 2}}, {"a": {"y": 2}}),
        (
            {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]},
            {"env": [{"name": "A", "$patch": "delete"}]},
            {"env": [{"name": "B", "value": "2"}]},
        ),
        (
            {"volumes": [{"name": "a"}]},
            {"volumes": [{"$patch": "replace"}, {"name": "b"}]},
            {"volumes": [{"name": "b"}]},
        ),
    ],
)
def test_a_template_is_merged_by_kubernetes_own_rules(
    base: dict[str, Any], patch: dict[str, Any], result: dict[str, Any]
) -> None:
    assert merged(base, patch) == result


def test_without_a_template_a_pod_is_as_restricted_as_pod_security_asks_for() -> None:
    spec = made()["spec"]
    assert spec["securityContext"] == {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert bot(made())["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }


def test_what_botpool_needs_of_a_pod_is_there_whatever_the_template_says() -> None:
    template = {
        "metadata": {
            "labels": {"team": "meetings"},
            "annotations": {"karpenter.sh/do-not-disrupt": None},
        },
        "spec": {
            "containers": [
                {
                    "name": "bot",
                    "resources": {"limits": {"memory": "2Gi"}},
                    "envFrom": [{"configMapRef": {"name": "theirs"}}],
                },
                {"name": "beside", "image": "other:1"},
            ],
            "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
        },
    }
    object_ = made(template)
    spec, metadata = object_["spec"], object_["metadata"]
    assert metadata["finalizers"] == ["botpool/proof"]
    assert metadata["labels"] == {"team": "meetings", "botpool/slot-id": "7"}
    assert "karpenter.sh/do-not-disrupt" not in metadata["annotations"]
    assert (spec["restartPolicy"], spec["automountServiceAccountToken"]) == ("Never", False)
    assert (spec["enableServiceLinks"], spec["terminationGracePeriodSeconds"]) == (False, 10)
    assert [each["name"] for each in spec["containers"]] == ["bot", "beside"]
    assert bot(object_)["image"] == "bot:1"
    assert bot(object_)["resources"] == {"limits": {"memory": "2Gi"}}
    # The last one wins.
    assert bot(object_)["envFrom"] == [
        {"configMapRef": {"name": "theirs"}},
        {"secretRef": {"name": "pool-zoom-007-abc"}},
    ]


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ({"spec": {"restartPolicy": "Always"}}, "spec.restartPolicy"),
        ({"spec": {"automountServiceAccountToken": True}}, "spec.automountServiceAccountToken"),
        ({"spec": {"terminationGracePeriodSeconds": 1}}, "spec.terminationGracePeriodSeconds"),
        ({"metadata": {"finalizers": []}}, "metadata.finalizers"),
        ({"metadata": {"labels": {"botpool/slot-id": "1"}}}, "the label botpool/slot-id"),
        (
            {"spec": {"containers": [{"name": "bot", "image": "x"}]}},
            "the image of the container bot",
        ),
        (
            {"spec": {"containers": [{"name": "bot", "$patch": "delete"}]}},
            "takes out the container bot",
        ),
        (
            {"spec": {"containers": [{"$patch": "replace"}, {"name": "beside"}]}},
            "takes out the container bot",
        ),
        ({"spec": {"$patch": "replace"}}, "takes out the container bot"),
        ({"spec": {"initContainers": [{"name": "bot"}]}}, "takes the container bot"),
        ({"spec": {"containers": [{"image": "x"}]}}, "without a name"),
        (
            {"spec": {"containers": [{"name": "bot", "env": [{"name": "BOTPOOL_SLOT_TOKEN"}]}]}},
            "sets BOTPOOL_SLOT_TOKEN",
        ),
        ({"kind": "Deployment"}, "not a Pod"),
        ({"status": {}}, "has status"),
        (
            {"spec": {"$setElementOrder/containers": []}},
            "the directive $setElementOrder/containers",
        ),
        ({"spec": ["a"]}, "has no map as spec"),
        ({"metadata": {"labels": ["a"]}}, "has no map as metadata.labels"),
        ({"spec": {"containers": {"name": "bot"}}}, "has no list as spec.containers"),
        # A key in YAML whose values are all commented out.
        ({"metadata": None}, "has an empty metadata: fill it, or leave it out"),
        ({"spec": None}, "has an empty spec"),
        ({"spec": {"containers": None}}, "has an empty spec.containers"),
    ],
)
def test_a_template_that_asks_for_what_is_botpools_own_is_refused(
    template: dict[str, Any], said: str
) -> None:
    assert said in "; ".join(mistakes(template))


def test_a_template_with_what_users_need_is_taken() -> None:
    template = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"annotations": {"a": "b"}, "labels": {"team": "meetings"}},
        "spec": {
            "nodeSelector": {"pool": "bots"},
            "tolerations": [{"operator": "Exists"}],
            "serviceAccountName": "bots",
            "imagePullSecrets": [{"name": "registry"}],
            "priorityClassName": "bots",
            "activeDeadlineSeconds": 14400,
            "containers": [{"name": "bot", "env": [{"name": "TZ", "value": "UTC"}]}],
        },
    }
    assert [*mistakes(template)] == []


def test_what_can_be_taken_out_may_be_empty() -> None:
    template = {
        "metadata": {"labels": None, "annotations": None},
        "spec": {"initContainers": None, "securityContext": None, "volumes": ["a", {"name": "b"}]},
    }
    assert [*mistakes(template)] == []
    # The server says what is wrong with the volumes.
    assert made(template)["spec"]["volumes"] == ["a", {"name": "b"}]


def test_a_pod_is_owned_by_its_secret_and_can_be_kept_from_a_node() -> None:
    secret = {"metadata": {"name": "pool-zoom-007-abc", "uid": "u1"}}
    (owner,) = owned(made(), secret)["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Secret", "u1")
    theirs = {"weight": 1, "preference": {"matchExpressions": []}}
    preferred = "preferredDuringSchedulingIgnoredDuringExecution"
    affinity = {"nodeAffinity": {preferred: [theirs]}}
    away = away_from(made({"spec": {"affinity": affinity}}), "n1")
    terms = away["spec"]["affinity"]["nodeAffinity"][preferred]
    assert terms[0] == theirs
    (field,) = terms[1]["preference"]["matchFields"]
    assert (field["operator"], field["values"]) == ("NotIn", ["n1"])
