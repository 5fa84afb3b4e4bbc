"""Every setting is declared once, its data file is shipped, and who claims an effect has it."""

import ast
import inspect
import re
import tomllib
from dataclasses import MISSING, fields
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

from bookie.config import BookieConfig
from bookie.config_definitions import BOOKIE_CONFIGS, BOOKIE_SETTINGS, bookie_config
from bookie.server.config import ServerConfig
from bookie.server.pages_config import PagesConfig
from bookie.space.gc_config import GcConfig
from broker.cluster.config import BROKER_CONFIGS, BrokerConfig, TopicConfig
from broker.cluster.config_consumer import ConsumerGroupConfig
from broker.cluster.config_group import CLIENT_METRICS_CONFIGS, GROUP_CONFIGS
from broker.cluster.config_ssl import TlsSettings
from broker.cluster.config_topic import BROKER_NAMES, TOPIC_CONFIGS
from broker.groups.config import GroupConfig
from broker.groups.consumer.settings import ConsumerSettings
from ledger.autorecovery.config import (
    AUTORECOVERY_CONFIGS,
    AutoRecoveryConfig,
    autorecovery_config,
)
from ledger.config import LedgerClientConfig
from ledger.config_definitions import (
    CLIENT_KEYS,
    CLIENT_SETTINGS,
    client_config,
    network_config,
    placement_config,
)
from ledger.placement.spread import SpreadRules
from ledger.replication import ReplicationConfig
from quire.settings_page import page
from runtime.config import ConfigError, ConfigTable, ConfigType
from runtime.settings import field_of

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
ROOMS = [room for room in PYPROJECT["importlinter"]["root_packages"] if room != "sim"]
TABLES = {
    "broker": BROKER_CONFIGS,
    "topic": TOPIC_CONFIGS,
    "group": GROUP_CONFIGS,
    "client metrics": CLIENT_METRICS_CONFIGS,
    "bookie": BOOKIE_CONFIGS,
    "ledger client": ConfigTable("the ledger client", CLIENT_KEYS),
    "auto-recovery": AUTORECOVERY_CONFIGS,
}
#: Whose fields are a table's settings.
CLASSES = {
    "broker": (BrokerConfig, TopicConfig, TlsSettings),
    "topic": (TopicConfig,),
    "group": (ConsumerGroupConfig,),
    "client metrics": (),
    "bookie": BOOKIE_SETTINGS,
    "ledger client": CLIENT_SETTINGS,
    "auto-recovery": (AutoRecoveryConfig,),
}
DECLARING = {cls for classes in CLASSES.values() for cls in classes}
#: What settings are handed on in.
MADE = (
    *(GroupConfig, ConsumerSettings, ServerConfig, PagesConfig, SpreadRules, ReplicationConfig),
)
NUMBERS = (ConfigType.INT, ConfigType.SHORT, ConfigType.LONG, ConfigType.DOUBLE)
#: Calls that declare a setting: their first argument is its name.
DECLARATIONS = {"ConfigKey", "setting", "declared", "_setting", "_of_broker"}


@cache
def trees():
    return {
        path: ast.parse(path.read_text(encoding="utf-8"))
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.py"))
    }


def checks_only(tree):
    """Nodes of functions that look whether values go together, which is no effect of them."""
    return {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        and (function.name == "__post_init__" or function.name.startswith(("_check", "check_")))
        for node in ast.walk(function)
    }


@cache
def attributes_read():
    found = set()
    declaring = {Path(ROOT, *cls.__module__.split(".")).with_suffix(".py") for cls in DECLARING}
    assert declaring <= trees().keys()
    for path, tree in trees().items():
        left_out = checks_only(tree) if path in declaring else set()
        found |= {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Load)
            and id(node) not in left_out
        }
    return found


@cache
def names_in_code():
    """Texts that are in code other than as the name in a declaration."""
    found = set()
    for tree in trees().values():
        declared = {
            id(call.args[0])
            for call in ast.walk(tree)
            if isinstance(call, ast.Call)
            and isinstance(call.func, ast.Name)
            and call.func.id in DECLARATIONS
            and call.args
        }
        found |= {
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in declared
        }
    return found


@pytest.mark.parametrize("room", TABLES)
def test_each_setting_that_claims_an_effect_is_read(room):
    field_by_name = {name: field for cls in CLASSES[room] for name, field in field_of(cls).items()}
    # What gives a topic's default acts through the topic's own setting.
    of_topics = {one.name: name for name, names in BROKER_NAMES.items() for one in names}
    unread = []
    for key in TABLES[room]:
        if not key.has_effect:
            continue
        name = of_topics.get(key.name, key.name) if room == "broker" else key.name
        field = field_by_name.get(name)
        if field is None and key.name not in names_in_code():
            unread.append(f"{key.name}: nothing has its name")
        if field is not None and field not in attributes_read():
            unread.append(f"{key.name}: nothing reads {field}")
    assert unread == []


def test_a_field_that_is_no_setting_is_read_too():
    read = attributes_read()
    unread = [
        f"{cls.__name__}.{field.name}"
        for cls in (*DECLARING, *MADE)
        for field in fields(cls)
        if field.name not in read
    ]
    assert unread == []


def test_a_setting_that_gives_a_topic_s_default_acts_as_the_topic_s_does():
    for name, broker_names in BROKER_NAMES.items():
        for one in broker_names:
            acts = TOPIC_CONFIGS[name].has_effect
            assert BROKER_CONFIGS[one.name].has_effect == acts, one.name


@pytest.mark.parametrize("room", TABLES)
def test_what_has_no_effect_has_no_field(room):
    with_field = {name for cls in CLASSES[room] for name in field_of(cls)}
    idle = {key.name for key in TABLES[room] if not key.has_effect}
    assert with_field & idle == set()
    every_one_acts = ("ledger client", "auto-recovery", "client metrics", "group")
    assert (not idle) == (room in every_one_acts)


def test_there_is_one_default():
    """A configuration of which nothing is set is what a file without a line makes of it."""
    own = {
        "bookie_id": "b",
        "instance_id": "i",
        "journal_directory": "/j",
        "ledger_directory": "/l",
    }
    held = {"held_adds_max": 10_000, "held_adds_size_max_bytes": 32 << 20}
    plain = BookieConfig(**own)
    assert bookie_config({}, **own, **held, verify_digest_on_write=False) == plain
    assert plain.write_cache_size_bytes == 48 << 20
    assert BrokerConfig.parse({}) == BrokerConfig()
    assert autorecovery_config({}) == AutoRecoveryConfig()
    for cls in (BrokerConfig, TopicConfig, GcConfig):
        assert not any(field.default is MISSING for field in fields(cls))


def ends(table):
    """Each number at the end of a range that the page has, as (setting, text)."""
    return [
        (key.name, end)
        for key in table
        if key.has_effect and key.validator is not None and key.type in NUMBERS
        for end in re.findall(r"(?<!more than )-?\b\d+(?:\.\d+)?", inspect.getdoc(key.validator))
    ]


def of_bookie(values):
    own = {"bookie_id": "b", "instance_id": "i", "journal_directory": "/j"}
    held = {"held_adds_max": 1, "held_adds_size_max_bytes": 1, "verify_digest_on_write": False}
    bookie_config(values, **own, **held, ledger_directory="/l")


def of_client(values):
    client_config(values, LedgerClientConfig())
    network_config(values)
    placement_config(values)


@pytest.mark.parametrize(
    ("room", "make"),
    [
        ("bookie", of_bookie),
        ("ledger client", of_client),
        ("auto-recovery", autorecovery_config),
        ("broker", BrokerConfig.of),
    ],
)
def test_a_range_is_accepted_to_its_ends_unless_another_setting_is_named(room, make):
    table = TABLES[room]
    names = {key.name for key in table}
    wrong = []
    for name, text in ends(table):
        try:
            make(table.parse({name: text}))
        except ValueError as error:
            named = set(re.findall(r"[A-Za-z_][\w.]*\w", str(error))) & names
            if not isinstance(error, ConfigError) or name not in named or len(named) == 1:
                wrong.append(f"{name}={text}: {error}")
    assert wrong == []


def test_the_page_is_what_the_declarations_say():
    """`make settings` writes it anew."""
    assert (ROOT / "docs/settings.md").read_text(encoding="utf-8") == page()


def test_the_page_has_every_setting_once_in_a_section():
    _, defaults, *sections = page().split("\n## ")
    assert defaults.startswith("Defaults of a role\n")
    assert len(sections) == len(TABLES)
    for text, table in zip(sections, TABLES.values(), strict=True):
        rows = re.findall(r"^\| `([^`]+)` \|", text, re.M)
        known = text.partition("Known, and without effect:")[2]
        listed = set(re.findall(r"`([\w.]+)`(?=[,:\n])", known))
        assert sorted(rows) == sorted(key.name for key in table if key.has_effect)
        assert {key.name for key in table if not key.has_effect} == listed


def test_data_files_are_shipped():
    shipped = {
        path
        for package, names in PYPROJECT["setuptools"]["package-data"].items()
        for path in (ROOT / package.replace(".", "/")).rglob("*.txt")
        if any(fnmatch(str(path.relative_to(ROOT / package.replace(".", "/"))), n) for n in names)
    }
    found = {path for room in ROOMS for path in (ROOT / room).rglob("*.txt")}
    assert found == shipped
    assert len(found) == 4
