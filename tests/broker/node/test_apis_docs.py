"""docs/apis.md lists what the server really announces, and calls absent only what it does not."""

import re
from pathlib import Path

import pytest

from broker.handlers.api_versions import entries
from broker.handlers.leaders import LeadersHandler
from wire.kafka.api_keys import ApiKey

PAGE = Path(__file__).parents[3] / "docs" / "apis.md"


class Anything:
    """Handlers keep their collaborators and ask nothing of them when they are made."""

    def __getattr__(self, name):
        return Anything()

    def __call__(self, *arguments, **keywords):
        return Anything()

    def __gt__(self, other):
        return True


class Logs(Anything):
    serves_transactions = False


def of_every_broker():
    # Imported late: it brings every handler along.
    from broker.node.apis import make_handlers
    from broker.node.foundation import Foundation, Services

    foundation = Foundation(*[Anything()] * 4, data_directory="x")
    return make_handlers(foundation, Services(Anything(), Anything(), Logs(), *[Anything()] * 3))


def of_a_cluster():
    return LeadersHandler(Anything(), Anything(), Anything(), Anything()).apis()


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
    assert len(absent) >= 20
    announced = {
        entry.api_key for apis in (of_every_broker, of_a_cluster) for entry in entries(apis())
    }
    assert absent & announced == set()
    assert absent | announced <= set(ApiKey)
