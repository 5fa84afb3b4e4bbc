"""A setting is declared by the field that has its value; those without effect are lines of text."""

from dataclasses import field

import pytest

from runtime.config import ConfigKey, ConfigTable, ConfigType, Scope, at_least
from runtime.known_settings import parse_known
from runtime.settings import (
    as_set,
    contradiction,
    declared,
    field_of,
    field_values,
    keys_of,
    made_of,
    same_as,
    setting,
    settings_part,
)
from wire.dataclass import dataclass

INT, STRING, BOOLEAN = ConfigType.INT, ConfigType.STRING, ConfigType.BOOLEAN
SHARED = ConfigKey("shared.count", INT, "3")


@dataclass(slots=True, frozen=True, kw_only=True)
class Config:
    name: str = field(metadata=declared("its.name", STRING, doc="Who it is."))
    wait_ms: int = setting(
        *("wait.seconds", INT, "5", at_least(1), Scope.CLUSTER_WIDE),
        doc="How long it waits.",
        convert=lambda seconds: seconds * 1000,
        others=(ConfigKey("wait", INT, None, "The older name."),),
    )
    is_on: bool = setting("on", BOOLEAN, doc="Whether.", unset=True)
    shared: int = same_as(SHARED)
    hosts: tuple[str, ...] = field(
        default=(), metadata=made_of(ConfigKey("host", STRING), ConfigKey("port", INT))
    )
    not_a_setting: int = 7


@settings_part
class First:
    first: int = setting("first", INT, "1", doc="One.")


@settings_part
class Second(First):
    second: int = setting("second", INT, "2", doc="Another.")


@dataclass(slots=True, frozen=True, kw_only=True)
class Both(Second):
    third: int = setting("third", INT, "3", doc="The last.")


def test_a_chain_of_parts_is_one_configuration():
    made = Both(second=5)
    assert (made.first, made.second, made.third) == (1, 5, 3)
    assert made == Both(second=5) != Both()
    assert [key.name for key in keys_of(Both)] == ["first", "second", "third"]
    assert repr(made).endswith("Both(first=1, second=5, third=3)")
    with pytest.raises(AttributeError):
        made.first = 2
    with pytest.raises(TypeError):
        Second(second=5)


def test_the_default_of_a_field_is_that_of_its_setting():
    config = Config(name="x")
    assert (config.wait_ms, config.is_on, config.shared, config.hosts) == (5000, True, 3, ())
    with pytest.raises(TypeError, match="name"):
        Config()


def test_a_table_is_made_of_what_fields_declare():
    keys = keys_of(Config)
    assert [key.name for key in keys] == ["its.name", "wait.seconds", "wait", "on", "host", "port"]
    waits = keys[1]
    assert (waits.type, waits.default, waits.doc) == (INT, "5", "How long it waits.")
    assert waits.scope is Scope.CLUSTER_WIDE
    assert waits.has_effect
    assert waits.measured_in == "s"
    assert ConfigTable("t", keys).default("wait.seconds") == 5


def test_fields_have_the_values_that_are_set():
    values = {"wait.seconds": 2, "on": False, "shared.count": 4, "its.name": "x", "host": "h"}
    assert field_values(Config, values) == {
        "wait_ms": 2000,
        "is_on": False,
        "shared": 4,
        "name": "x",
    }
    assert field_values(Config, {"wait.seconds": None, "its.name": "y"}) == {"name": "y"}
    assert field_of(Config)["wait.seconds"] == "wait_ms"
    assert field_of(Config)["shared.count"] == "shared"


def test_a_field_is_told_as_it_is_set():
    config = Config(name="x", wait_ms=7000, is_on=False)
    assert as_set(config, "wait_ms") == "wait.seconds=7"
    assert as_set(Config(name="x", wait_ms=7500), "wait_ms") == "wait.seconds=7.5"
    assert as_set(config, "is_on") == "on=false"
    error = contradiction(config, "name", "nobody has it")
    assert (error.name, str(error)) == ("its.name", "its.name=x: nobody has it")


@pytest.mark.parametrize(
    ("line", "good", "bad"),
    [
        ("a.ms int c =7 | least 2 | doc Words, and more.", "2", "1"),
        ("a.ms int c =7 | from 2 to 9 | doc Words, and more.", "9", "10"),
        ("a.ms string c =7 | one of 7 b | doc Words, and more.", "b", "B"),
        ("a.ms string c =7 | one of any case 7 b | doc Words, and more.", "B", "c"),
        ("a.ms list c =7 | any of 7 b | doc Words, and more.", "b,7", "c"),
        ("a.ms list c =7 | distinct | doc Words, and more.", "", "x,x"),
        ("a.ms list c =7 | distinct not empty | doc Words, and more.", "x", ""),
        ("a.ms string c =7 | as short | by b.ms c.ms | doc Words, and more.", "x", "xx"),
    ],
)
def test_a_line_of_a_setting_without_effect(line, good, bad):
    validators = {"short": lambda value: None if len(value) < 2 else "too long"}
    known = parse_known(line, "unused", validators)
    key = known.key
    assert (key.name, key.default, key.doc) == ("a.ms", "7", "Words, and more.")
    assert key.scope is Scope.CLUSTER_WIDE
    assert not key.has_effect
    key.parse(good)
    with pytest.raises(ValueError, match=r"^a\.ms="):
        key.parse(bad)
    assert known.default_from == (("b.ms", "c.ms") if "by" in line else ())


def test_what_a_line_does_not_say():
    key = parse_known("someName", "The words.", {}).key
    assert (key.type, key.default, key.doc) == (STRING, None, "The words.")
    assert key.scope is Scope.READ_ONLY
    assert parse_known("someName list =", "", {}).key.parse_default() == ()


@pytest.mark.parametrize(
    "line",
    ["a strange", "a int x", "a int r =x", "a int | most 3", "a | as nobody", "a int | least b"],
)
def test_a_line_that_is_none_is_named(line):
    with pytest.raises(ValueError, match=rf"{line.split(' |')[0]}.* is no line of a known setting"):
        parse_known(line, "", {})
