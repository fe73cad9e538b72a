"""The Grafana dashboard and the alert rules speak of metrics that are exported, by labels that these have."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("yaml")
pytest.importorskip("prometheus_client")

import yaml
from prometheus_client import CollectorRegistry

from guarded import RetryBudget, circuit, limit, rate
from guarded._core.call import Call
from guarded.events.bus import bus
from guarded.events.model import EVENTS
from guarded.events.sinks import prometheus

FOLDER = Path(__file__).parents[2] / "docs" / "monitoring"
ADDED = {"instance", "job", "le"}  # by Prometheus itself, and for buckets


def rules() -> list[dict[str, Any]]:
    """The alert rules."""
    [group] = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    return list(group["rules"])


def board() -> Any:
    """The dashboard."""
    return json.loads((FOLDER / "grafana.json").read_text())


def expressions() -> Iterator[tuple[str, str]]:
    """Where each stands, and the expression."""
    for rule in rules():
        yield rule["alert"], rule["expr"]
    for panel in board()["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for note in board()["annotations"]["list"]:
        yield note["name"], note["expr"]


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """Each sample that a scrape can show, with its labels, from the sink itself."""
    registry = CollectorRegistry()
    call = Call()
    call.function = "f"
    parts: list[Any] = [limit(1, name="m"), rate("1/s", name="r"), circuit("c"), RetryBudget(name="b")]
    again = type("Retry", (), {"label": "again", "kind": "retry"})()
    with prometheus.install(registry=registry):
        for name in EVENTS:
            bus.emit(name, call, again, outcome="success", duration=1.0, wait=1.0, attempts=1, status=429, delay=1.0)
        found: dict[str, set[str]] = {}
        for family in registry.collect():
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
    assert parts
    return found


@pytest.mark.parametrize(("title", "expression"), list(expressions()), ids=lambda value: str(value)[:40])
def test_names_and_labels_are_exported(title: str, expression: str, exported: dict[str, set[str]]) -> None:
    """Every metric in the expression, every label in its braces, and every event that it asks for."""
    used = re.findall(r"\b(guarded_\w+)(\{[^}]*\})?", expression)
    assert used
    for name, braces in used:
        assert name in exported, f"{title}: {name}"
        for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", braces):
            assert label in exported[name] | ADDED, f"{title}: {name} has no {label}"
    for labels in re.findall(r"by \(([^)]*)\)", expression):
        assert {label.strip() for label in labels.split(",")} <= ADDED.union(*(exported[name] for name, _ in used))
    assert set(re.findall(r'event="([^"]*)"', expression)) <= set(EVENTS)
    assert expression.count("(") == expression.count(")")


def test_what_was_asked_for_is_there() -> None:
    """Open circuits, growing queues, exhausted retries; every rule says how bad it is and what to do."""
    found = {rule["alert"]: rule for rule in rules()}
    assert {"GuardedCircuitOpen", "GuardedQueueGrowing", "GuardedRetriesExhausted"} <= set(found)
    for rule in found.values():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}


def test_texts_of_alerts_name_labels_that_are_left(exported: dict[str, set[str]]) -> None:
    """A label that an aggregation has dropped would be empty in the message."""
    for rule in rules():
        left = re.findall(r"by \(([^)]*)\)", rule["expr"])
        names = re.findall(r"\b(guarded_\w+)", rule["expr"])
        labels = {label.strip() for group in left for label in group.split(",")} or exported[names[0]]
        for text in rule["annotations"].values():
            assert set(re.findall(r"\$labels\.(\w+)", text)) <= labels, rule["alert"]


def test_panels_do_not_overlap_and_have_numbers_of_their_own() -> None:
    """Grafana would move them about."""
    panels = board()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not taken & cells
        assert at["x"] + at["w"] <= 24
        taken |= cells


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_takes_the_rules() -> None:
    """Prometheus's own check."""
    promtool("check", "rules", FOLDER / "alerts.yml")


FIRING = {
    "GuardedCircuitOpen": ('guarded_circuit_state{policy="gateway"}', "2x20", {"policy": "gateway"}),
    "GuardedQueueGrowing": ('guarded_queued{policy="db", layer="limit"}', "0+5x20", {"policy": "db", "layer": "limit"}),
    "GuardedRetriesExhausted": (
        'guarded_events_total{event="retry.exhausted", policy="again"}',
        "0+60x20",
        {"policy": "again"},
    ),
}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize("alert", FIRING)
def test_the_rules_fire(alert: str, tmp_path: Path) -> None:
    """An open circuit, a growing queue, exhausted retries: by Prometheus's own engine, after 15 minutes."""
    series, values, labels = FIRING[alert]
    [rule] = [rule for rule in rules() if rule["alert"] == alert]
    expected = {"exp_labels": {**labels, **rule["labels"]}}
    case = {"interval": "1m", "input_series": [{"series": series, "values": values}]}
    case["alert_rule_test"] = [{"eval_time": "15m", "alertname": alert, "exp_alerts": [expected]}]
    bare = [{key: value for key, value in rule.items() if key != "annotations"}]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "guarded", "rules": bare}]}))
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"rule_files": ["rules.yml"], "tests": [case]}))
    promtool("test", "rules", tmp_path / "test.yml")


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_the_panels_are_good_promql(tmp_path: Path) -> None:
    """With Grafana's variables filled in."""
    found = []
    for _, expression in expressions():
        for variable, value in (("$__rate_interval", "5m"), ("$__range", "1h"), ("$instance", ".*")):
            expression = expression.replace(variable, value)
        found.append({"record": "x:y", "expr": expression, "labels": {"number": str(len(found))}})
    (tmp_path / "panels.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": found}]}))
    promtool("check", "rules", tmp_path / "panels.yml")


def promtool(*arguments: str | Path) -> None:
    """Run it; what it complains of is the failure."""
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
