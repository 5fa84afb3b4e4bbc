"""The configuration file: one properties text for the broker and the bookie of a node.

Kafka's names for the broker, BookKeeper's for the bookie. This room may not see `bookie/`: whoever
composes a node hands over the bookie's table of names.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from broker.cluster.config import BROKER_CONFIGS, BrokerConfig
from broker.cluster.config_listener import (
    check_listener_texts,
    is_read,
    of_no_listener,
    split_listener_texts,
)
from broker.cluster.config_refusals import check_refusals
from runtime.config import ConfigTable, ConfigValue, load_tables, parse_properties
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(slots=True, frozen=True)
class NodeConfig:
    """What a file and the command line say. `broker_texts` are for the ConfigRegistry;
    `bookie_values` has only what is set, parsed, by BookKeeper's names, and `bookie_texts` the same
    as it was written; `notes` are for the log."""

    broker: BrokerConfig
    broker_texts: Mapping[str, str] = field(repr=False)
    bookie_values: Mapping[str, ConfigValue]
    bookie_texts: Mapping[str, str]
    notes: tuple[str, ...]
    #: Those of single listeners (`listener.name.<listener>.…`), as written: also passwords.
    listener_texts: Mapping[str, str] = field(default_factory=dict, repr=False)


def load(
    properties_text: str, overrides: Mapping[str, str], bookie_table: ConfigTable
) -> NodeConfig:
    """`overrides` win over the text. PropertiesError: not a properties file; ConfigError: an
    unknown name (with the nearest right one), a bad value, one whose promise would not be kept
    (config_refusals.py), or values that do not go together."""
    tables = [BROKER_CONFIGS, bookie_table]
    loaded = load_tables(properties_text, overrides, tables, is_read)
    texts = {**parse_properties(properties_text), **overrides}
    check_refusals(texts)
    broker_texts, bookie_texts = loaded.texts
    listener_texts = split_listener_texts(texts)[1]
    check_listener_texts(listener_texts)
    broker = BrokerConfig.parse(broker_texts)
    listeners = [one.name for one in broker.parsed_listeners()]
    return NodeConfig(
        broker=broker,
        broker_texts=broker_texts,
        bookie_values=bookie_table.parse(bookie_texts),
        bookie_texts=bookie_texts,
        notes=(*loaded.notes, *of_no_listener(listener_texts, listeners)),
        listener_texts=listener_texts,
    )
