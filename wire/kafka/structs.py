"""What declared classes are made of: slots dataclasses that cost an import little.

There are some four hundred and sixty, of which a process uses a few. What `dataclass` writes and
compiles for each (`__init__`, `__repr__`, `__eq__`) took a sixth of a server's start. Here the
last two are the base's, over the fields, and `__init__` is written when a class makes its first
object. To all other readers, `dataclasses.fields` and `replace` among them, they are dataclasses.
"""

from __future__ import annotations

import dataclasses
from dataclasses import MISSING
from typing import Any, ClassVar, Final, TypeVar, dataclass_transform

#: The value of a parameter of `__init__` that was not given, where each object has its own.
_NOT_GIVEN: Final = object()

S = TypeVar("S", bound="Struct")


class Struct:
    """Base of every declared class, the nested ones too. Two are equal if they are of one class
    and all fields are; there is no hash, as they are mutable."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and all(
            getattr(self, name) == getattr(other, name) for name in names_of(type(self))
        )

    def __repr__(self) -> str:
        values = (f"{name}={getattr(self, name)!r}" for name in names_of(type(self)))
        return f"{type(self).__qualname__}({', '.join(values)})"


def names_of(cls: type[Struct]) -> list[str]:
    """The fields of a declared class, in the order of their lines."""
    return [each.name for each in dataclasses.fields(cls)]


@dataclass_transform()
def declared(cls: type[S]) -> type[S]:
    """Class decorator of every declared class, each field of which has a default."""
    # Else dataclass looks the signature up, to make a docstring of it.
    cls.__doc__ = cls.__doc__ or cls.__name__
    made = dataclasses.dataclass(slots=True, init=False, repr=False, eq=False)(cls)
    made.__init__ = _first_init  # type: ignore[assignment,method-assign]
    return made


def _first_init(self: Struct, *args: object, **kwargs: object) -> None:
    """The `__init__` of a class that has made no object yet: writes the real one."""
    cls = type(self)
    cls.__init__ = _init_of(cls)  # type: ignore[method-assign]
    self.__init__(*args, **kwargs)  # type: ignore[misc]


def _init_of(cls: type[Struct]) -> Any:  # noqa: ANN401  # each class has parameters of its own
    """As dataclass writes it."""
    names: dict[str, object] = {"_NOT_GIVEN": _NOT_GIVEN}
    parameters, lines = [], []
    for number, each in enumerate(dataclasses.fields(cls)):
        name, default = each.name, f"_default_{number}"
        if each.default_factory is MISSING:
            names[default] = each.default
            value = name
        else:
            names[default], names[f"_make_{number}"] = _NOT_GIVEN, each.default_factory
            value = f"_make_{number}() if {name} is _NOT_GIVEN else {name}"
        parameters.append(f", {name}={default}")
        lines.append(f"    self.{name} = {value}\n")
    source = f"def __init__(self{''.join(parameters)}):\n{''.join(lines) or '    pass'}"
    exec(source, names)  # of the declarations' own names
    init = names["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"  # type: ignore[attr-defined]
    return init
