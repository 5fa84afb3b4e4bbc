"""Configuration: Java properties text, tables of known names, and typed values.

Generic: no setting is named here. A room declares its settings as fields (settings.py) and makes a
`ConfigTable` of them and of those that are known and have no effect (known_settings.py).
`load_tables` reads one properties file against several tables: a name without effect is accepted
with a note, an unknown name or a bad value is a `ConfigError` that names the nearest right one.

Values follow the rules of Kafka's `ConfigDef`: text is trimmed, booleans ignore case, numbers are
decimal and bounded by their type, lists are split at commas. `SIZE` is ours: bytes, optionally
with k, m, g (powers of 1024).
"""

from __future__ import annotations

import difflib
import enum
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal

from wire.dataclass import dataclass

ConfigValue = bool | int | float | str | tuple[str, ...] | None
Validator = Callable[[ConfigValue], str | None]
"""Says what is wrong with a parsed value, or None; called for set values only."""

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


class ConfigError(ValueError):
    """A name that is not known, or a value that is not allowed. `name` is the setting."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class UnknownConfigError(ConfigError):
    """A name that nothing knows."""


class PropertiesError(ValueError):
    """Properties text that cannot be read; `line` counts from 1."""

    def __init__(self, line: int, detail: str) -> None:
        super().__init__(f"line {line}: {detail}")
        self.line = line


class ConfigType(enum.Enum):
    BOOLEAN = "boolean"
    STRING = "string"
    INT = "int"
    SHORT = "short"
    LONG = "long"
    DOUBLE = "double"
    LIST = "list"
    CLASS = "class"
    PASSWORD = "password"
    SIZE = "size"


class Scope(enum.Enum):
    """At which level a running node lets a setting be changed (KIP-226)."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"
    #: Of one topic, group or subscription, each with settings of its own.
    PER_RESOURCE = "per-resource"


_INTEGER_BOUNDS = {
    ConfigType.SHORT: (-(2**15), 2**15 - 1),
    ConfigType.INT: (-(2**31), INT_MAX),
    ConfigType.LONG: (-(2**63), LONG_MAX),
}
_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_SIZE = re.compile(r"([0-9]+)\s*([kmg]?)(?:i?b)?", re.ASCII | re.IGNORECASE)
_SIZE_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}
_LIST_SEPARATOR = re.compile(r"\s*,\s*")
_NUMBERS = (*_INTEGER_BOUNDS, ConfigType.DOUBLE)
#: What names of numbers end with -> their unit.
_UNITS = {
    **dict.fromkeys((".ms", ".millis", "Ms", "Millis"), "ms"),
    **dict.fromkeys((".seconds", ".secs", "Seconds", "Sec"), "s"),
    ".minutes": "minutes",
    ".hours": "hours",
    **dict.fromkeys((".bytes", "Bytes", ".bytes.per.second"), "bytes"),
    **dict.fromkeys(("MB", "Mb", ".mb"), "MiB"),
}


@dataclass(slots=True, frozen=True)
class ConfigKey:
    """One setting. `default` is text as a file would have it (None: unset, which reads as None);
    a default is not validated, as Kafka's null defaults are not."""

    name: str
    type: ConfigType
    default: str | None = None
    doc: str = ""
    validator: Validator | None = None
    scope: Scope = Scope.READ_ONLY
    has_effect: bool = True  # False: Kafka's or BookKeeper's name, accepted, and nothing reads it
    unit: str = ""  # of a number whose name does not end with it («.ms»); see `measured_in`

    @property
    def measured_in(self) -> str:
        """A number's unit, as it is said or as the name ends; else empty."""
        if self.unit or self.type not in _NUMBERS:
            return self.unit
        return next((unit for ending, unit in _UNITS.items() if self.name.endswith(ending)), "")

    @property
    def sensitive(self) -> bool:
        return self.type is ConfigType.PASSWORD

    def parse(self, text: str) -> ConfigValue:
        """The typed, validated value; ConfigError names the setting and, unless it is a secret,
        the value."""
        try:
            value = parse_value(self.type, text)
        except ValueError as error:
            raise self._refused(text, str(error)) from None
        if self.validator is not None and (problem := self.validator(value)) is not None:
            raise self._refused(text, problem)
        return value

    def parse_default(self) -> ConfigValue:
        return None if self.default is None else parse_value(self.type, self.default)

    def _refused(self, text: str, problem: str) -> ConfigError:
        shown = "[hidden]" if self.sensitive else repr(text)
        return ConfigError(self.name, f"{self.name}={shown} is not allowed: {problem}")


def parse_value(kind: ConfigType, text: str) -> ConfigValue:
    """Text to a typed value; ValueError says what was expected."""
    text = text.strip()
    if kind is ConfigType.BOOLEAN:
        lowered = text.lower()
        if lowered not in ("true", "false"):
            raise ValueError("expected true or false")
        return lowered == "true"
    if kind in _INTEGER_BOUNDS:
        low, high = _INTEGER_BOUNDS[kind]
        # The length test keeps int() off digit strings that take quadratic time.
        if _INTEGER.fullmatch(text) is None or len(text) > 32 or not low <= int(text) <= high:
            raise ValueError(f"expected a whole number of type {kind.value} ({low} to {high})")
        return int(text)
    if kind is ConfigType.DOUBLE:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise ValueError("expected a number")
        return number
    if kind is ConfigType.LIST:
        return tuple(_LIST_SEPARATOR.split(text)) if text else ()
    if kind is ConfigType.SIZE:
        match = _SIZE.fullmatch(text)
        if match is None or len(text) > 32:
            raise ValueError("expected a size in bytes, such as 1048576 or 64m")
        return int(match[1]) * _SIZE_UNITS[match[2].lower()]
    return text


def format_value(value: ConfigValue) -> str | None:
    """A typed value as text, the way Kafka's DescribeConfigs shows it."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, float):
        return _format_double(value)
    return str(value)


def _format_double(value: float) -> str:
    """Java's Double.toString: plain between 1e-3 and 1e7, else d.dddEn; shortest digits."""
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    assert isinstance(exponent, int), "only finite numbers are parsed"
    fraction = "".join(map(str, digits[1:])).rstrip("0") or "0"
    return f"{'-' if sign else ''}{digits[0]}.{fraction}E{exponent + len(digits) - 1}"


# Validators. Each returns a function of the parsed value; None (an unset default) never comes. What
# it allows is its docstring.


def _saying(words: str, check: Validator) -> Validator:
    check.__doc__ = words
    return check


def at_least(low: float) -> Validator:
    return between(low, None)


def between(low: float, high: float | None) -> Validator:
    def check(value: ConfigValue) -> str | None:
        assert isinstance(value, int | float), "a range is for numbers"
        if value < low:
            return f"the least is {low}"
        if high is not None and value > high:
            return f"the most is {high}"
        return None

    return _saying(f"at least {low}" if high is None else f"{low} to {high}", check)


def at_most(high: float) -> Validator:
    """Where the least is said by another setting."""

    def check(value: ConfigValue) -> str | None:
        assert isinstance(value, int | float), "a range is for numbers"
        return f"the most is {high}" if value > high else None

    return _saying(f"at most {high}", check)


def share(value: ConfigValue) -> str | None:
    """more than 0, at most 1"""
    assert isinstance(value, int | float), "a share is a number"
    return None if 0 < value <= 1 else "expected a share: more than 0, at most 1"


def one_of(*choices: str, ignore_case: bool = False) -> Validator:
    folded = {choice.lower() for choice in choices} if ignore_case else set(choices)

    def check(value: ConfigValue) -> str | None:
        assert isinstance(value, str)
        if (value.lower() if ignore_case else value) in folded:
            return None
        return f"expected one of {', '.join(choices)}{suggestion(value, choices)}"

    return _saying(f"one of {', '.join(choices)}", check)


def list_of(*choices: str, empty_allowed: bool = True) -> Validator:
    """Each element is one of `choices` and none comes twice."""

    def check(value: ConfigValue) -> str | None:
        assert isinstance(value, tuple)
        for element in value:
            if element not in choices:
                expected = f"expected any of {', '.join(choices)}"
                return f"{element!r} is unknown: {expected}{suggestion(element, choices)}"
        return _check_list(value, empty_allowed)

    return _saying(f"any of {', '.join(choices)}", check)


def distinct_list(*, empty_allowed: bool = True) -> Validator:
    """Any elements, none empty, none twice."""

    def check(value: ConfigValue) -> str | None:
        assert isinstance(value, tuple)
        return _check_list(value, empty_allowed)

    return _saying("none twice" if empty_allowed else "none twice, at least one", check)


def _check_list(value: tuple[str, ...], empty_allowed: bool) -> str | None:
    if not value and not empty_allowed:
        return "the list must not be empty"
    if "" in value:
        return "an element of the list is empty"
    if len(set(value)) < len(value):
        return "an element is in the list twice"
    return None


def either(exact: ConfigValue, validator: Validator) -> Validator:
    """`exact` is allowed beside what `validator` allows."""

    def check(value: ConfigValue) -> str | None:
        if value == exact:
            return None
        problem = validator(value)
        return None if problem is None else f"{problem}, or {exact}"

    return _saying(f"{exact}, or {validator.__doc__}", check)


def suggestion(name: str, choices: Iterable[str]) -> str:
    """« (nearest: x)», or nothing if none is near."""
    near = nearest(name, choices)
    return "" if near is None else f" (nearest: {near})"


def nearest(name: str, choices: Iterable[str]) -> str | None:
    by_folded = {choice.lower(): choice for choice in choices}
    found = difflib.get_close_matches(name.lower(), by_folded, n=1, cutoff=0.6)
    return by_folded[found[0]] if found else None


#: Types of which an empty value is one.
_TEXTS = (ConfigType.STRING, ConfigType.CLASS, ConfigType.PASSWORD, ConfigType.LIST)


class ConfigTable:
    """The settings of one room, by name. `prefixes` are names' beginnings that are known without
    meaning («listener.name.»). `hints` name the right setting for a wrong name that difflib would
    not find. `empty_is_unset`: a name without a value says nothing, as in BookKeeper's file; but
    text that has a default may be set to nothing."""

    __slots__ = ("_defaults", "_keys", "empty_is_unset", "hints", "prefixes", "title")

    def __init__(
        self,
        title: str,
        keys: Iterable[ConfigKey],
        *,
        prefixes: Sequence[str] = (),
        hints: Mapping[str, str] | None = None,
        empty_is_unset: bool = False,
    ) -> None:
        self.title = title
        self.empty_is_unset = empty_is_unset
        self._keys: dict[str, ConfigKey] = {}
        for key in keys:
            assert key.name not in self._keys, f"{key.name} is declared twice"
            self._keys[key.name] = key
        self.prefixes = tuple(prefixes)
        self.hints = dict(hints or {})
        self._defaults = {key.name: key.parse_default() for key in self._keys.values()}

    def __iter__(self) -> Iterator[ConfigKey]:
        return iter(self._keys.values())

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, name: object) -> bool:
        return name in self._keys

    def __getitem__(self, name: str) -> ConfigKey:
        return self._keys[name]

    def get(self, name: str) -> ConfigKey | None:
        return self._keys.get(name)

    def names(self) -> Iterable[str]:
        return self._keys.keys()

    def default(self, name: str) -> ConfigValue:
        return self._defaults[name]

    def knows_without_meaning(self, name: str) -> bool:
        key = self._keys.get(name)
        if key is not None:
            return not key.has_effect
        return name.startswith(self.prefixes) if self.prefixes else False

    def is_unset(self, name: str, text: str) -> bool:
        """Whether this value of a known name says no more than none would."""
        if not self.empty_is_unset or text.strip():
            return False
        key = self._keys[name]
        return key.type not in _TEXTS or key.default is None

    def parse(self, values: Mapping[str, str]) -> dict[str, ConfigValue]:
        """Typed values of those that are given; ConfigError for the first wrong name or value."""
        parsed = {}
        for name, text in values.items():
            key = self._keys.get(name)
            if key is None:
                raise unknown_name(name, [self])
            if not self.is_unset(name, text):
                parsed[name] = key.parse(text)
        return parsed

    def with_defaults(self, parsed: Mapping[str, ConfigValue]) -> dict[str, ConfigValue]:
        return {**self._defaults, **parsed}


def unknown_name(name: str, tables: Sequence[ConfigTable]) -> UnknownConfigError:
    """The error for a name that no table knows, with the nearest of them all."""
    hint = next((table.hints[name] for table in tables if name in table.hints), None)
    if hint is None:
        hint = nearest(name, [known for table in tables for known in table.names()])
    advice = f"; the nearest known name is {hint}" if hint is not None else ""
    return UnknownConfigError(name, f"unknown setting {name}{advice}")


@dataclass(slots=True)
class LoadedTables:
    """What a file said: for each table (in the order given) the texts of the names that it knows,
    all of them valid, and notes for the log."""

    texts: list[dict[str, str]]
    notes: list[str]


def load_tables(
    properties_text: str,
    overrides: Mapping[str, str],
    tables: Sequence[ConfigTable],
    is_read: Callable[[str], bool] = lambda name: False,
) -> LoadedTables:
    """Reads a properties file; `overrides` (the command line's) win over it.

    A name that several tables know goes to each of them. `is_read`: names that begin with a table's
    prefix, and have an effect all the same. PropertiesError, ConfigError."""
    merged = {**parse_properties(properties_text), **overrides}
    loaded = LoadedTables(texts=[{} for _ in tables], notes=[])
    for name, text in merged.items():
        known = False
        for table, texts in zip(tables, loaded.texts, strict=True):
            key = table.get(name)
            if key is not None and not table.is_unset(name, text):
                key.parse(text)
                texts[name] = text
            known = known or key is not None or table.knows_without_meaning(name)
        if not known:
            raise unknown_name(name, tables)
        if is_read(name):
            continue
        if all(table.knows_without_meaning(name) or table.get(name) is None for table in tables):
            owner = next(t.title for t in tables if t.knows_without_meaning(name))
            loaded.notes.append(f"{name} is a setting of {owner} that has no effect here")
    return loaded


# Java properties text (java.util.Properties.load)

_BLANK = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """Names and values of a Java properties file; the last of a repeated name wins.

    PropertiesError for a bad unicode escape or a value without a name."""
    properties: dict[str, str] = {}
    for line_number, line in _logical_lines(text):
        split = _find_separator(line)
        name = _unescape(line[:split], line_number)
        rest = line[split:].lstrip(_BLANK)
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(_BLANK)
        if not name:
            raise PropertiesError(line_number, f"a value without a name: {line[:60]!r}")
        properties[name] = _unescape(rest, line_number)
    return properties


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with continuations joined, comments and blank lines left out; (first line, text)."""
    pending = ""
    first = 0  # the logical line's first line; 0 between logical lines
    # Not str.splitlines: Java ends a line at \n, \r and \r\n only.
    for number, natural in enumerate(re.split(r"\r\n|\n|\r", text), start=1):
        line = natural.lstrip(_BLANK)
        # In a continuation a comment sign is data, and a blank line ends the logical line.
        if not first:
            if not line or line[0] in "#!":
                continue
            first = number
        if (len(line) - len(line.rstrip("\\"))) % 2:
            pending += line[:-1]
            continue
        if pending + line:
            yield first, pending + line
        pending = ""
        first = 0
    if pending:
        yield first, pending


def _find_separator(line: str) -> int:
    """Where the name ends: the first unescaped =, : or blank."""
    position = 0
    while position < len(line):
        character = line[position]
        if character == "\\":
            position += 2
            continue
        if character in "=:" or character in _BLANK:
            return position
        position += 1
    return len(line)


def _unescape(text: str, line_number: int) -> str:
    if "\\" not in text:
        return text
    units: list[str] = []
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character != "\\":
            units.append(character)
            continue
        escaped = text[position : position + 1]
        position += 1
        if escaped != "u":
            units.append(_ESCAPES.get(escaped, escaped))
            continue
        digits = text[position : position + 4]
        if re.fullmatch(r"[0-9a-fA-F]{4}", digits) is None:
            raise PropertiesError(line_number, f"bad unicode escape \\u{digits}")
        units.append(chr(int(digits, 16)))
        position += 4
    # Two escapes may be one character beyond the basic plane, as Java's strings are UTF-16.
    joined = "".join(units)
    try:
        return joined.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise PropertiesError(line_number, "a lone surrogate in a unicode escape") from None
