"""docs/apis.md lists what the server really announces, and calls absent only what it does not."""

import re
from pathlib import Path

import pytest

from broker.handlers.api_versions import entries
from tests.broker.node.announced import of_a_cluster, of_every_broker
from wire.kafka.api_keys import ApiKey

PAGE = Path(__file__).parents[3] / "docs" / "apis.md"


def table(heading):
    """The rows of the table whose second column has this heading, as lists of cells."""
    block = re.search(
        rf"^\| [^|\n]+ \| {heading} \|[^\n]*\n\|[-|]+\|\n((?:\|[^\n]*\n)+)",
        PAGE.read_text(encoding="utf-8"),
        re.M,
    )
    assert block, f"no table «{heading}»"
    return [
        [cell.strip() for cell in row.strip("|").split("|")] for row in block[1].strip().split("\n")
    ]


@pytest.mark.parametrize(
    ("heading", "apis"), [("API", of_every_broker), ("API of a cluster", of_a_cluster)]
)
def test_the_page_lists_what_is_announced(heading, apis):
    listed = [tuple(row[:3]) for row in table(heading)]
    announced = [
        (
            str(entry.api_key),
            "".join(word.capitalize() for word in ApiKey(entry.api_key).name.split("_")),
            f"{entry.min_version}-{entry.max_version}",
        )
        for entry in entries(apis())
    ]
    assert listed == announced


def test_what_the_page_calls_absent_is_not_announced():
    absent = set()
    for _, keys, _ in table("APIs"):
        for first, last in re.findall(r"(\d+)(?: to (\d+))?", keys):
            absent |= set(range(int(first), int(last or first) + 1))
    announced = {
        entry.api_key for apis in (of_every_broker, of_a_cluster) for entry in entries(apis())
    }
    assert absent & announced == set()
    assert absent | announced == set(ApiKey), "each is served or said to be absent"
