"""docs/settings.md, of the tables: `python -m quire.settings_page > docs/settings.md`.

A section for each table: a row for each setting that has an effect, and the names of the others,
with words where there are some.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from typing import TYPE_CHECKING, Any

from bookie.config_definitions import BOOKIE_CONFIGS, BOOKIE_SETTINGS
from broker.cluster.config import BROKER_CONFIGS, BrokerConfig, TopicConfig
from broker.cluster.config_group import CLIENT_METRICS_CONFIGS, GROUP_CONFIGS
from broker.cluster.config_topic import BROKER_NAMES, TOPIC_CONFIGS
from ledger.autorecovery.config import AUTORECOVERY_CONFIGS, AutoRecoveryConfig
from ledger.config_definitions import CLIENT_KEYS, CLIENT_SETTINGS
from quire.role_defaults import ROLES
from runtime.config import ConfigTable, Scope
from runtime.settings import declarations, field_of
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from runtime.config import ConfigKey

LINE_LENGTH_MAX = 100

INTRODUCTION = """\
# Settings

Every setting of a broker and of a bookie, by the names of Kafka 4.3 and BookKeeper 4.17; names that
begin with `quire.` are ours. This page is made of the declarations by `make settings`, and a test
holds the two together. How values are given, and what it takes to run with them, is in the
[operator's guide](operators-guide.md).

The column «changes»: `start` is read when the process starts; `broker` and `cluster` can be changed
while it runs, for one broker or for all; `own` is of each topic, group or subscription, and can be
changed then, too. «Read as» is the field that code reads; where there is none, the setting is read
by its name, together with others. What is known and has no effect is taken with a line in the log,
but a value that promises safety, a limit or a deletion which is not given ends the start.
"""

_CHANGES = {
    Scope.READ_ONLY: "start",
    Scope.PER_BROKER: "broker",
    Scope.CLUSTER_WIDE: "cluster",
    Scope.PER_RESOURCE: "own",
}


@dataclass(slots=True, frozen=True)
class Section:
    """`classes`: whose fields declare the table's settings."""

    title: str
    words: str
    table: ConfigTable
    classes: tuple[type[Any], ...] = ()


SECTIONS = (
    Section("Brokers", "In `server.properties`.", BROKER_CONFIGS, (BrokerConfig, TopicConfig)),
    Section(
        "Topics",
        "Of each topic; else a broker's setting gives the default, then the one here.",
        TOPIC_CONFIGS,
        (TopicConfig,),
    ),
    Section("Groups", "Of each group.", GROUP_CONFIGS),
    Section(
        "Client-metrics subscriptions", "Of each subscription (KIP-714).", CLIENT_METRICS_CONFIGS
    ),
    Section(
        "Bookies",
        "In `bk_server.conf`, and in a standalone server's file.",
        BOOKIE_CONFIGS,
        BOOKIE_SETTINGS,
    ),
    Section(
        "The ledger client",
        "Of brokers and of auto-recovery, in their file.",
        ConfigTable("the ledger client", CLIENT_KEYS),
        CLIENT_SETTINGS,
    ),
    Section("Auto-recovery", "In `bk_server.conf`.", AUTORECOVERY_CONFIGS, (AutoRecoveryConfig,)),
)


def page() -> str:
    """The whole text."""
    lines = [line for one in SECTIONS for line in _section(one)]
    return "\n".join([INTRODUCTION, *_roles(), *lines])


def _roles() -> Iterator[str]:
    yield from ("## Defaults of a role", "")
    yield from _wrapped(
        "These begin with other defaults than the tables below have. A value in a file or on the "
        "command line wins over either."
    )
    yield from ("", "| who | begins with |", "|---|---|")
    for one in ROLES:
        begins = ", ".join(f"`{name}={text}`" for name, text in one.defaults.items())
        yield f"| {one.role} | {begins} |"
    yield ""


def _section(section: Section) -> Iterator[str]:
    acting = sorted((key for key in section.table if key.has_effect), key=_name)
    idle = sorted((key for key in section.table if not key.has_effect), key=_name)
    yield from (f"## {section.title}", "", section.words, "")
    if acting:
        yield "| setting | type | default | allowed | unit | changes | read as | what it does |"
        yield "|---|---|---|---|---|---|---|---|"
        fields = _fields(section)
        yield from (_row(key, fields.get(key.name, "")) for key in acting)
        yield ""
    if idle:
        yield from ("Known, and without effect:", "")
        told = [key for key in idle if sum(other.doc == key.doc for other in idle) == 1]
        for key in told:
            yield from _wrapped(f"- `{key.name}`: {key.doc}", indent="  ")
        yield from [""] if told else []
        yield from _names([key.name for key in idle if key not in told])


def _fields(section: Section) -> dict[str, str]:
    """Settings -> the fields that have their values."""
    found: dict[str, str] = {}
    for cls in section.classes:
        found |= {name: f"{cls.__name__}.{field}" for name, field in field_of(cls).items()}
        for field, declared in declarations(cls):
            found |= {key.name: f"{cls.__name__}.{field}" for key in declared.others}
    of_topics = {one.name: name for name, names in BROKER_NAMES.items() for one in names}
    for name, topic_name in of_topics.items():
        if section.table is BROKER_CONFIGS and topic_name in found:
            found[name] = found[topic_name]
    return found


def _row(key: ConfigKey, field: str) -> str:
    default = "" if key.default is None else f"`{key.default}`" if key.default else "empty"
    # A check of one setting's own form says nothing of it that fits in a column.
    allowed = (inspect.getdoc(key.validator) or "").partition("\n")[0] if key.validator else ""
    cells = (
        *(f"`{key.name}`", key.type.value, default, allowed, key.measured_in),
        *(_CHANGES[key.scope], f"`{field}`" if field else "", key.doc),
    )
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _names(names: list[str]) -> Iterable[str]:
    text = ", ".join(f"`{name}`" for name in names)
    wrapped = _wrapped(text)
    return [*wrapped, ""] if wrapped else []


def _wrapped(text: str, indent: str = "") -> list[str]:
    """Lines of prose; `indent` is what each but the first begins with."""
    return textwrap.wrap(
        text,
        LINE_LENGTH_MAX,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _name(key: ConfigKey) -> str:
    return key.name.lower()


if __name__ == "__main__":
    sys.stdout.write(page())
