"""The dashboard and BookKeeper's names, against what a server under a little load gives out.

promtool is Prometheus' own parser and engine: every expression of the dashboard is evaluated over
two real scrapes, and has to give something."""

import json
import math
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).parent.parent.parent
DASHBOARD = json.loads((ROOT / "docs" / "grafana" / "quire.json").read_text(encoding="utf-8"))
NAMES = Path(__file__).with_name("bookkeeper_metrics.txt")
RATE_INTERVAL = "5m"
KEYWORDS = {"by", "without", "on", "ignoring", "group_left", "group_right", "bool", "offset"}
ROWS = {
    "Broker",
    "Bookie: journal",
    "Bookie: storage",
    "Bookie: garbage collection",
    "Disk",
    "Ledger client and process",
}

pytestmark = pytest.mark.slow


def panels():
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions():
    return [
        (panel["title"], target["expr"].replace("$__rate_interval", RATE_INTERVAL))
        for panel in panels()
        for target in panel["targets"]
    ]


def names_in(expression):
    """The metrics that an expression is about: identifiers that are no function, no keyword, no
    label and no duration."""
    text = re.sub(r'"(?:[^"\\]|\\.)*"', '""', expression)
    text = re.sub(r"\{[^}]*\}", "", text)
    text = re.sub(r"\[[^\]]*\]", "", text)
    text = re.sub(r"\b(?:by|without|on|ignoring)\s*\([^)]*\)", "", text)
    words = re.finditer(r"(?<![\w.])([a-zA-Z_:][\w:]*)\s*(\()?", text)
    return {m[1] for m in words if not m[2] and m[1] not in KEYWORDS}


def samples(text):
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


@pytest.fixture(scope="module")
def scrapes(shared_server):
    """Two scrapes, with load before and in between."""
    texts = []
    for _ in range(2):
        shared_server.produce("orders", 2000)
        shared_server.consume("orders", 2000)
        shared_server.ask("GET", "/api/v1/bookie/sanity")
        time.sleep(0.5)  # a flush
        status, headers, body = shared_server.ask("GET", "/metrics")
        assert status == 200
        assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
        texts.append(body.decode())
    return texts


def test_names_are_found_in_expressions():
    expression = 'sum by (topic) (rate(a_total{x="b_total"}[5m])) / ignoring(c) d_x > bool 1e9'
    assert names_in(expression) == {"a_total", "d_x"}


def test_every_metric_of_the_dashboard_exists(scrapes):
    present = {sample.name for sample in samples(scrapes[0])}
    wanted = {name for _, expression in expressions() for name in names_in(expression)}
    assert len(wanted) > 40
    assert sorted(wanted - present) == []


def test_rows_and_panels():
    rows = [panel["title"] for panel in DASHBOARD["panels"] if panel["type"] == "row"]
    assert set(rows) == ROWS
    identities = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(identities) == len(set(identities))
    for panel in panels():
        assert panel["targets"], panel["title"]
        assert panel["description"].endswith(".")


def series(sample):
    labels = ",".join(f"{name}={json.dumps(value)}" for name, value in sample.labels.items())
    return f"{sample.name}{{{labels}}}"


def plain(value):
    return "NaN" if math.isnan(value) else repr(value)


#: Dashboards of Kafka's cleaner look for this name, so it is not made better.
KAFKAS_OWN = (
    "kafka_log_logcleanermanager_time_since_last_run_ms "
    "metric names should not contain abbreviated units"
)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_no_panel_is_empty(scrapes, tmp_path):
    first, second = ({series(s): s.value for s in samples(text)} for text in scrapes)
    inputs = [
        {"series": name, "values": f"{plain(first.get(name, 0))} {plain(value)} {plain(value)}"}
        for name, value in second.items()
        if not name.startswith(("python_", "process_virtual"))
        and value != math.inf
        and not math.isnan(value)
    ]
    tests = [
        {
            "expr": f"count({expression}) > bool 0",
            "eval_time": "2m",
            "exp_samples": [{"labels": "{}", "value": 1}],
        }
        for _, expression in expressions()
    ]
    file = tmp_path / "test.yml"
    unit = {"interval": "1m", "input_series": inputs, "promql_expr_test": tests}
    file.write_text(json.dumps({"rule_files": [], "evaluation_interval": "1m", "tests": [unit]}))
    command = ["promtool", "test", "rules", str(file)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, (result.stdout + result.stderr)[:4000]


def bookkeeper_names():
    lines = NAMES.read_text(encoding="utf-8").splitlines()
    return [line.split(" ", 2) for line in lines if line and not line.startswith("#")]


def served_samples(name, kind):
    """The samples that a metric of BookKeeper's consists of. Quantiles are there for timers; other
    summaries of ours have a count, and a sum if one is known."""
    return {f"{name}_count"} if kind == "summary" else {name}


def test_bookkeepers_names_are_served(scrapes):
    found = samples(scrapes[1])
    present = {sample.name for sample in found}
    missing = [
        name
        for name, kind, verdict in bookkeeper_names()
        if verdict == "served" and not served_samples(name, kind) <= present
    ]
    assert missing == []
    for _name, _, verdict in bookkeeper_names():
        assert verdict == "served" or len(verdict.split()) >= 2, "why not?"


def test_no_name_of_bookkeepers_kind_is_invented(scrapes):
    known = set()
    for name, kind, _ in bookkeeper_names():
        known |= {name, f"{name}_count", f"{name}_sum"} if kind == "summary" else {name}
    ours = {s.name for s in samples(scrapes[1]) if s.name.startswith(("bookie_", "bookkeeper_"))}
    # Names of BookKeeper that a bookie without load, or of a newer version, does not show.
    others = {"bookie_journal_JOURNAL_FLUSH_IN_MEM_ADD_count", "bookie_rejected_write_requests"}
    unknown = {
        name
        for name in ours - known - others
        if not re.fullmatch(r"bookie_ledger_dir_\w+_usage", name)
    }
    assert unknown == set()


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_objects_to_nothing(scrapes):
    result = subprocess.run(
        ["promtool", "check", "metrics"], input=scrapes[1], capture_output=True, text=True
    )
    assert result.stderr.splitlines() == [KAFKAS_OWN]
