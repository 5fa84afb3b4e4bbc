"""One declaration per setting: a field of a frozen dataclass.

What a room's code reads is typed; the field that it reads is where the setting is declared, with
its name, type, default, limits, scope, unit and words:

    num_partitions: int = setting("num.partitions", INT, "1", at_least(1), doc="Partitions of ...")

The field's default is the setting's, in the field's unit, so there is one of each. `keys_of` gives
what a `ConfigTable` is made of, `of_values` the object for values that are set.
A field that several settings make together names them with `made_of`; who makes it reads them by
their names. Settings that nothing reads have no field: `known_settings.py`.
"""

from __future__ import annotations

from dataclasses import field, fields
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform

from runtime.config import ConfigError, ConfigKey, ConfigType, Scope, format_value
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from dataclasses import Field

    from runtime.config import ConfigValue, Validator

T = TypeVar("T")
#: A field of any type may be given it; whether it fits, the field's own type does not tell.
FieldValue = Any

_DECLARED = "setting"


@dataclass(slots=True, frozen=True)
class Declared:
    """What a field says of its settings. `key` gives its value, through `convert` where the
    setting's unit is not the field's; `others` are read by name by who makes the configuration."""

    key: ConfigKey | None
    convert: Callable[[Any], Any] | None = None
    others: tuple[ConfigKey, ...] = ()

    def value_of(self, value: ConfigValue) -> FieldValue:
        return value if self.convert is None else self.convert(value)


def declared(
    name: str,
    kind: ConfigType,
    default: str | None = None,
    valid: Validator | None = None,
    scope: Scope = Scope.READ_ONLY,
    *,
    doc: str,
    unit: str = "",
    convert: Callable[[Any], Any] | None = None,
    others: tuple[ConfigKey, ...] = (),
) -> dict[str, Declared]:
    """The metadata of a field without a default: who makes the configuration says its value."""
    key = ConfigKey(name, kind, default, doc, valid, scope, unit=unit)
    return {_DECLARED: Declared(key, convert, others)}


def setting(
    name: str,
    kind: ConfigType,
    default: str | None = None,
    valid: Validator | None = None,
    scope: Scope = Scope.READ_ONLY,
    *,
    doc: str,
    unit: str = "",
    convert: Callable[[Any], Any] | None = None,
    unset: FieldValue = None,
    others: tuple[ConfigKey, ...] = (),
    more: Mapping[str, Any] | None = None,
) -> FieldValue:
    """A dataclass field and its setting. `default` is text, as a file has it; without one the
    field is `unset`. A password is no part of the object's repr. `convert` makes the field's value
    of the parsed one. `others`: older names, and whatever else the field's value depends on.
    `more`: metadata of the room's own."""
    metadata = declared(
        *(name, kind, default, valid, scope), doc=doc, unit=unit, convert=convert, others=others
    )
    value = unset
    if default is not None:
        key = metadata[_DECLARED].key
        assert key is not None
        value = metadata[_DECLARED].value_of(key.parse_default())
    # No `repr` has a password.
    is_shown = kind is not ConfigType.PASSWORD
    return field(default=value, repr=is_shown, metadata={**metadata, **(more or {})})


@dataclass_transform(frozen_default=True, kw_only_default=True)
def settings_part(cls: type[T]) -> type[T]:
    """Class decorator: fields for the frozen dataclass at the end of a chain of such parts, of
    which alone there are objects."""
    return dataclass(slots=True, frozen=True, kw_only=True, init=False)(cls)


def same_as(key: ConfigKey) -> FieldValue:
    """A field of a setting that is declared elsewhere, in another class."""
    return field(default=key.parse_default(), metadata={_SHARED: key.name})


_SHARED = "shared setting"


def made_of(*keys: ConfigKey) -> dict[str, Declared]:
    """The metadata of a field whose value is made of several settings."""
    return {_DECLARED: Declared(None, None, keys)}


def declared_by(one: Field[Any]) -> Declared | None:
    """None of a field that is no setting, or one of another class."""
    found: Declared | None = one.metadata.get(_DECLARED)
    return found


def declarations(cls: type[Any]) -> Iterator[tuple[str, Declared]]:
    """Each field of a dataclass that declares settings, by its name."""
    for one in fields(cls):
        found = declared_by(one)
        if found is not None:
            yield one.name, found


def keys_of(*classes: type[Any]) -> tuple[ConfigKey, ...]:
    """All settings that the fields of dataclasses declare, in their order."""
    return tuple(
        key
        for cls in classes
        for _, one in declarations(cls)
        for key in ((one.key,) if one.key is not None else ()) + one.others
    )


def field_of(cls: type[Any]) -> dict[str, str]:
    """Names of settings -> the fields that have their values, whole; those of `same_as` too."""
    found = {one.key.name: name for name, one in declarations(cls) if one.key is not None}
    return found | {
        one.metadata[_SHARED]: one.name for one in fields(cls) if _SHARED in one.metadata
    }


def of_values(cls: type[T], values: Mapping[str, ConfigValue]) -> T:
    """An object of a class whose fields all have defaults, by the settings that have a value."""
    return cls(**field_values(cls, values))


def field_values(cls: type[Any], values: Mapping[str, ConfigValue]) -> dict[str, Any]:
    """What fields are by the settings that have a value; the others keep their defaults."""
    found = {
        name: one.value_of(value)
        for name, one in declarations(cls)
        if one.key is not None and (value := values.get(one.key.name)) is not None
    }
    return found | {
        one.name: value
        for one in fields(cls)
        if (value := values.get(one.metadata.get(_SHARED, ""))) is not None
    }


def as_set(config: object, field_name: str) -> str:
    """«setting=value» of a field, as whoever set it may have written it: in the setting's unit."""
    one = dict(declarations(type(config)))[field_name]
    assert one.key is not None, f"{field_name} is made of several settings"
    value = getattr(config, field_name)
    # A number's `convert` multiplies: what it makes of 1 is the unit.
    unit = 1 if one.convert is None else one.convert(1)
    if unit != 1:
        whole, rest = divmod(value, unit)
        value = value / unit if rest else whole
    return f"{one.key.name}={format_value(value)}"


def contradiction(config: object, field_name: str, problem: str) -> ConfigError:
    """That a field's value cannot be, or not with the others, in the words of who set it."""
    told = as_set(config, field_name)
    return ConfigError(told.partition("=")[0], f"{told}: {problem}")


def from_seconds(value: int) -> int:
    """`convert` of a setting in seconds whose field has milliseconds."""
    return value * 1000


def from_mebibytes(value: int) -> int:
    """`convert` of a setting in mebibytes whose field has bytes."""
    return value << 20
