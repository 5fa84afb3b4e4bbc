"""Properties text as java.util.Properties reads it, and values as Kafka's ConfigDef does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.config import (
    ConfigError,
    ConfigKey,
    ConfigTable,
    ConfigType,
    PropertiesError,
    at_least,
    at_most,
    between,
    either,
    format_value,
    list_of,
    load_tables,
    nearest,
    one_of,
    parse_properties,
    parse_value,
    share,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", {"a": "b"}),
        ("a:b", {"a": "b"}),
        ("a b c", {"a": "b c"}),
        ("  a \t=  b  ", {"a": "b  "}),
        ("a = = b", {"a": "= b"}),
        ("a\n", {"a": ""}),
        ("# c\n! d\n\na=1", {"a": "1"}),
        ("a=1\\\n   2\\\n  3\nb=4", {"a": "123", "b": "4"}),
        ("a=1\\\n# not a comment", {"a": "1# not a comment"}),
        ("# a comment is not continued \\\na=1", {"a": "1"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a=1\\\n\nb=2", {"a": "1", "b": "2"}),
        ("a=x\\", {"a": "x"}),
        ("a\\=b=c", {"a=b": "c"}),
        ("a\\ b\\:c = d", {"a b:c": "d"}),
        ("a=\\t\\n\\q\\\\", {"a": "\t\nq\\"}),
        ("a=\\u00e9\\u20AC", {"a": "é€"}),
        ("a=\\ud83d\\ude00", {"a": "\U0001f600"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=é\x0bß\u2028", {"a": "é\x0bß\u2028"}),
    ],
)
def test_properties_text(text, expected):
    assert parse_properties(text) == expected


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a=1\n\nb=\\u12g4", 3),
        ("b=\\u12", 1),
        ("a=\\\n\\\n\\uZZZZ", 1),
        ("=v", 1),
        ("a=\\ud800", 1),
    ],
)
def test_properties_error_names_the_line(text, line):
    with pytest.raises(PropertiesError, match=f"line {line}:") as caught:
        parse_properties(text)
    assert caught.value.line == line


@given(st.dictionaries(st.text(min_size=1), st.text()))
def test_what_is_escaped_reads_back(properties):
    """Every character escaped as \\uXXXX, the one form that needs no special case."""

    def escape(text):
        units = text.encode("utf-16-be", "surrogatepass")
        return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))

    text = "\n".join(f"{escape(k)}={escape(v)}" for k, v in properties.items())
    assert parse_properties(text) == properties


@given(st.text())
def test_any_text_parses_or_raises(text):
    line = 1
    try:
        parse_properties(text)
    except PropertiesError as error:
        line = error.line
    assert 1 <= line <= text.count("\n") + text.count("\r") + 1


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (ConfigType.BOOLEAN, " TRUE ", True),
        (ConfigType.INT, " +7 ", 7),
        (ConfigType.INT, "-2147483648", -(2**31)),
        (ConfigType.LONG, "9223372036854775807", 2**63 - 1),
        (ConfigType.SHORT, "-3", -3),
        (ConfigType.DOUBLE, "0.5", 0.5),
        (ConfigType.LIST, " a , b,c ", ("a", "b", "c")),
        (ConfigType.LIST, "", ()),
        (ConfigType.STRING, " x ", "x"),
        (ConfigType.SIZE, "64m", 64 * 2**20),
        (ConfigType.SIZE, "3 KiB", 3072),
        (ConfigType.SIZE, "17", 17),
    ],
)
def test_values(kind, text, value):
    parsed = parse_value(kind, text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (ConfigType.BOOLEAN, "yes"),
        (ConfigType.INT, "2147483648"),
        (ConfigType.INT, "1_000"),
        (ConfigType.INT, "1.0"),
        (ConfigType.INT, ""),
        (ConfigType.INT, "٣"),
        (ConfigType.LONG, "9" * 100_000),
        (ConfigType.DOUBLE, "nan"),
        (ConfigType.DOUBLE, "x"),
        (ConfigType.SIZE, "-1"),
        (ConfigType.SIZE, "64t"),
    ],
)
def test_bad_values_name_setting_and_value(kind, text):
    with pytest.raises(ConfigError, match=r"some\.name="):
        ConfigKey("some.name", kind).parse(text)


def test_a_secret_is_not_in_its_error():
    def never(_):
        return "too short"

    with pytest.raises(ConfigError) as caught:
        ConfigKey("key", ConfigType.PASSWORD, validator=never).parse("hunter2")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (None, None),
        ((), ""),
        (("a", "b"), "a,b"),
        (5, "5"),
        (0.5, "0.5"),
        (1.0, "1.0"),
        (0.0, "0.0"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (1e7, "1.0E7"),
        (-12345678.5, "-1.23456785E7"),
        (0.0001, "1.0E-4"),
    ],
)
def test_values_are_shown_as_java_does(value, text):
    assert format_value(value) == text


def test_validators_say_what_is_allowed():
    assert at_least(1)(1) is None
    assert "least is 1" in at_least(1)(0)
    assert "most is 9" in between(1, 9)(10)
    assert at_most(9)(9) is at_most(9)(-9) is None
    assert "most is 9" in at_most(9)(10)
    assert share(0.1) is share(1) is None
    assert share(0) == share(1.1) == "expected a share: more than 0, at most 1"
    assert either(-1, between(1, 9))(-1) is None
    assert "or -1" in either(-1, between(1, 9))(0)
    assert "nearest: gzip" in one_of("gzip", "zstd")("gizp")
    assert one_of("A", ignore_case=True)("a") is None
    assert list_of("compact", "delete")(("delete", "compact")) is None
    assert "nearest: compact" in list_of("compact", "delete")(("compct",))
    assert "twice" in list_of("compact", "delete")(("delete", "delete"))
    assert "empty" in list_of("a", empty_allowed=False)(())


def tables():
    red = ConfigTable(
        "Red",
        [
            ConfigKey("red.size", ConfigType.INT, "1", validator=at_least(1)),
            ConfigKey("red.old", ConfigType.INT, "1", has_effect=False),
            ConfigKey("shared", ConfigType.STRING),
        ],
        prefixes=["listener.name."],
        hints={"retention.ms": "red.size"},
    )
    blue = ConfigTable("Blue", [ConfigKey("blueSize", ConfigType.LONG, "2"), *[red["shared"]]])
    return red, blue


def test_load_gives_each_table_its_names_and_overrides_win():
    loaded = load_tables("red.size=2\nblueSize=3\nshared=x", {"red.size": "4"}, tables())
    assert loaded.texts == [{"red.size": "4", "shared": "x"}, {"blueSize": "3", "shared": "x"}]
    assert loaded.notes == []


def test_known_without_meaning_is_noted():
    loaded = load_tables("red.old=2\nlistener.name.x.ssl=1", {}, tables())
    assert loaded.texts[0] == {"red.old": "2"}
    assert [note.split()[0] for note in loaded.notes] == ["red.old", "listener.name.x.ssl"]
    assert all("Red" in note for note in loaded.notes)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("red.sise=1", "nearest known name is red.size"),
        ("bluesize=1", "nearest known name is blueSize"),
        ("retention.ms=1", "nearest known name is red.size"),
        ("zzzzzzzzzzzz=1", "unknown setting zzzzzzzzzzzz$"),
        ("red.size=0", "red.size='0'.*least is 1"),
        ("red.old=x", "red.old='x'.*whole number"),
    ],
)
def test_load_refuses(text, match):
    with pytest.raises(ConfigError, match=match):
        load_tables(text, {}, tables())


def test_nearest_ignores_case():
    assert nearest("JOURNALDIRECTORY", ["journalDirectory", "ledgerDirectories"]) == (
        "journalDirectory"
    )
    assert nearest("x", ["journalDirectory"]) is None
