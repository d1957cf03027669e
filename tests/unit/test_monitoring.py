"""The board and the alerts: they ask for what is there, and fire when they should."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from botpool.metrics import MEASURES, Metrics

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "alerts" / "botpool.yml"
CASES = ROOT / "deploy" / "alerts" / "botpool_test.yml"
BOARD = ROOT / "deploy" / "grafana" / "botpool.json"
OPERATE = ROOT / "docs" / "how-to" / "operate.md"

OF_PROMETHEUS = {"instance", "job", "le"}
"""Labels that come from elsewhere than a metric's own."""

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is missing: install prometheus"
)


def series() -> dict[str, set[str]]:
    """Every series that botpool or its process has, with its labels."""
    found: dict[str, set[str]] = {}
    for measure in MEASURES:
        names = [measure.name]
        if measure.kind == "histogram":
            names = [f"{measure.name}_{part}" for part in ("bucket", "count", "sum")]
        found |= {name: set(measure.labels) for name in names}
    content, _ = Metrics().exposition(None, None)
    for family in text_string_to_metric_families(content.decode()):
        for sample in family.samples:
            if not sample.name.startswith("botpool_"):
                found.setdefault(sample.name, set()).update(sample.labels)
    return found


def rules() -> list[dict[str, Any]]:
    """The alerts with what they say, read as far as this needs it."""
    parts = RULES.read_text("utf-8").split("      - alert: ")[1:]
    return [
        {
            "name": part.split("\n", 1)[0],
            "expr": re.sub(r".*?expr: \|?(.*?)\n {8}for:.*", r"\1", part, flags=re.DOTALL),
            "text": part,
        }
        for part in parts
    ]


def panels() -> list[tuple[str, str]]:
    """Every query of the board, with the title of its panel."""
    board = json.loads(BOARD.read_text("utf-8"))
    found = [
        (panel["title"], target["expr"])
        for panel in board["panels"]
        for target in panel.get("targets", ())
    ]
    return found + [
        (variable["name"], variable["definition"])
        for variable in board["templating"]["list"]
        if variable["type"] == "query"
    ]


QUERIES = [*((rule["name"], rule["expr"]) for rule in rules()), *panels()]


def test_there_are_queries_to_be_checked() -> None:
    assert len(rules()) == RULES.read_text("utf-8").count("alert:") >= 9
    assert len(panels()) > 20


@pytest.mark.parametrize(("name", "query"), QUERIES)
def test_a_query_asks_for_metrics_and_labels_that_are_there(name: str, query: str) -> None:
    known = series()
    asked = set(re.findall(r"\b(?:botpool|process|python)_\w+", query))
    assert asked, name
    assert asked <= known.keys()
    for metric, matchers in re.findall(r"\b(\w+)\{([^}]*)\}", query):
        labels = set(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", matchers))
        assert labels <= known[metric] | OF_PROMETHEUS, metric
    labels = set().union(*(known[metric] for metric in asked)) | OF_PROMETHEUS
    for listed in re.findall(r"\b(?:by|on|without)\s*\(([^)]*)\)", query):
        assert {label.strip() for label in listed.split(",")} <= labels


@pytest.mark.parametrize(("name", "query"), QUERIES)
def test_what_is_equal_on_every_replica_is_never_summed_over_them(name: str, query: str) -> None:
    shared = "|".join(measure.name for measure in MEASURES if measure.of_database)
    for before in re.findall(rf"([^\n]*?)\b(?:{shared})\b", query):
        assert re.search(r"(max( by \([^)]*\))?\s*\(|label_values\()$", before), name
    for measure in MEASURES:
        if measure.kind == "counter" and measure.name in query:
            assert re.search(rf"sum( by \([^)]*\))?\s*\(rate\({measure.name}", query), name


def test_the_legends_of_the_board_are_labels() -> None:
    known = set().union(*series().values()) | OF_PROMETHEUS
    board = BOARD.read_text("utf-8")
    assert set(re.findall(r"\{\{(\w+)\}\}", board)) <= known
    ids = [panel["id"] for panel in json.loads(board)["panels"]]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["name"])
def test_an_alert_says_what_it_is_and_where_to_read_what_to_do(rule: dict[str, Any]) -> None:
    assert re.search(r"severity: (critical|warning)\n", rule["text"])
    assert "summary: " in rule["text"]
    assert "description: " in rule["text"]
    path, anchor = re.findall(r"runbook_url: (\S+)#(\S+)", rule["text"])[0]
    assert ROOT / path == OPERATE
    assert anchor == rule["name"].lower()
    assert f"\n### {rule['name']}\n" in OPERATE.read_text("utf-8")


def test_every_alert_has_cases_in_which_it_fires_and_in_which_it_does_not() -> None:
    cases = CASES.read_text("utf-8")
    for rule in rules():
        name = rule["name"]
        assert re.search(rf"alertname: {name}\n +exp_alerts:\n", cases), f"{name} never fires"
        assert re.search(rf"alertname: {name}, exp_alerts: \[\]", cases), f"{name} always fires"


@needs_promtool
@pytest.mark.parametrize("command", [["check", "rules", RULES], ["test", "rules", CASES]])
def test_the_rules_are_valid_and_fire_when_they_should(command: list[Any]) -> None:
    done = subprocess.run(
        ["promtool", *command],  # noqa: S607
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_what_is_exposed_is_what_prometheus_takes() -> None:
    metrics = Metrics()
    metrics.expect_launches("process")
    content, _ = metrics.exposition(None, None)
    done = subprocess.run(
        ["promtool", "check", "metrics"],  # noqa: S607
        input=content.decode(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
