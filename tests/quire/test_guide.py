"""Every command that README and docs/operators-guide.md name exists, with its options; every
metric of the guide is exported; the README's figures are those of docs/benchmarks.md."""

import re
import shlex
from pathlib import Path

import click
import pytest

from quire.cli import main

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/operators-guide.md")


def text_of(page):
    return (ROOT / page).read_text(encoding="utf-8")


def commands(page):
    """All that is typed: indented lines, and inline code with an argument."""
    text = text_of(page)
    typed = re.findall(r"^    (?:\.venv/bin/)?quire (.+)$", text, re.M)
    inline = re.findall(r"`quire\s+([^`]+)`", text)
    return [" ".join(one.partition("#")[0].split()) for one in (*typed, *inline)]


def what_is_wrong(command):
    """Of `quire COMMAND`; None if the command line would take it."""
    words = shlex.split(command.replace("[TOPIC]", "TOPIC"))
    found, context, name = main, None, "quire"
    while isinstance(found, click.Group) and words and not words[0].startswith("-"):
        context = click.Context(found, parent=context, info_name=name)
        name = words.pop(0)
        found = found.get_command(context, name)
        if found is None:
            return f"{command}: there is no {name}"
    options = {"--help"}.union(*(each.opts + each.secondary_opts for each in found.params))
    for word in words:
        if word.startswith("-") and word.partition("=")[0] not in options:
            return f"{command}: there is no {word}"
    return None


@pytest.mark.parametrize("page", PAGES)
def test_every_command_exists(page):
    listed = commands(page)
    assert listed
    assert [wrong for wrong in map(what_is_wrong, listed) if wrong] == []


@pytest.mark.parametrize("wrong", ["bookie polish", "cluster up --brokres 3", "bookie gc --hard"])
def test_a_command_that_does_not_exist_is_found(wrong):
    assert what_is_wrong(wrong)


def exported():
    """Patterns of the names in quire/metrics/, with a wildcard where a name is put together; and
    the names in the dashboard, which tests/quire/test_grafana.py asks of a real server."""
    found = set(re.findall(r"\w+", text_of("docs/grafana/quire.json")))
    for path in (ROOT / "quire" / "metrics").glob("*.py"):
        literals = re.findall(r'f?"((?:\w|\{[^}"]*\})+)"', path.read_text(encoding="utf-8"))
        found |= {re.sub(r"\{[^}]*\}", r"\\w+", one) for one in literals}
    return {one for one in found if one.startswith(("quire_", "bookie_", "kafka_"))}


def test_every_metric_of_the_guide_is_exported():
    named = set(re.findall(r"\b(?:quire|bookie|kafka)_[a-zA-Z_]{6,}", text_of(PAGES[1])))
    named -= {"bookie_without_auth"}
    assert len(named) >= 15
    patterns = exported()
    missing = [
        name
        for name in sorted(named)
        if not any(re.fullmatch(one, name.removesuffix("_total")) for one in patterns)
    ]
    assert missing == []


def test_the_figures_of_the_readme_are_measured():
    rows = [row for row in text_of("README.md").splitlines() if "docs/benchmarks.md#" in row]
    assert len(rows) >= 5
    measured = text_of("docs/benchmarks.md")
    for row in rows:
        _, _, ours, kafka, pulsar, _ = (cell.strip() for cell in row.split("|"))
        assert pulsar == "not measured"
        figures = re.findall(r"\d[\d,]*", f"{ours} {kafka}")
        assert len(figures) >= 2
        for figure in figures:
            assert re.search(rf"(?<![\d,.]){figure}(?![\d,.])", measured), (row, figure)
