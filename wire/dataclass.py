"""`dataclass` as the standard library has it, for processes that start often.

`dataclasses.dataclass` writes and compiles up to six methods for a class when it is defined: 0.6
ms, and 0.9 ms for a frozen one. A server has three hundred and fifty such classes (and more
messages), so that was a third of its imports, most of it for methods that nobody calls in that
process. Here the standard library finds the fields and makes the slots, 0.05 ms; each method is
written when it is first looked at, 0.1 ms, and from then on is as fast as the standard library's.

How: `_Unwritten` stands in the class's dictionary in place of the method. Whatever looks the
method up there, and so does Python when it makes an object, calls its `__get__`; that writes the
method, puts it in its own place, and hands it on. To all readers these are dataclasses: `fields`,
`replace`, `asdict` and `match` take them, and so does mypy (`dataclass_transform`).

What is not as there: a field without a default after one with a default is found when the class
makes its first object, unless mypy finds it before; a class without a docstring gets its name as
one, without the signature; a frozen class is not known as frozen to subclasses that
`dataclasses.dataclass` itself makes; what no class here needs does not exist: other options,
`InitVar`, `field(init=False)`.
"""

from __future__ import annotations

import dataclasses
import reprlib
import sys
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError
from types import FunctionType
from typing import Any, Final, TypeVar, dataclass_transform
from weakref import WeakSet

T = TypeVar("T")
Write = Callable[[type], FunctionType]

#: The value of a parameter of `__init__` that was not given, where each object has its own.
_NOT_GIVEN: Final = object()
_FROZEN: Final[WeakSet[type]] = WeakSet()


@dataclass_transform(field_specifiers=(dataclasses.field,))
def dataclass(
    *,
    slots: bool = False,
    frozen: bool = False,
    eq: bool = True,
    kw_only: bool = False,
    init: bool = True,
) -> Callable[[type[T]], type[T]]:
    """Class decorator, with the options of `dataclasses.dataclass`.

    TypeError: as there, when frozen and mutable classes inherit from each other.
    """

    def decorate(cls: type[T]) -> type[T]:
        # Else `dataclasses` looks the signature up, to make a docstring of it.
        cls.__doc__ = cls.__doc__ or cls.__name__
        bases = [base for base in cls.__mro__[1:] if dataclasses.is_dataclass(base)]
        if bases and frozen is not any(base in _FROZEN for base in bases):
            raise TypeError(f"{cls.__name__}: frozen and other dataclasses do not mix")
        make = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)
        made = make(cls)
        _add_methods(made, init=init, eq=eq, frozen=frozen)
        if frozen:
            _freeze(made, slots=slots)
        return made

    return decorate


class _Unwritten:
    """In a class's dictionary: the method `name` of `cls`, which nobody has looked at yet."""

    __slots__ = ("_cls", "_name", "_write")

    def __init__(self, cls: type, name: str, write: Write) -> None:
        self._cls, self._name, self._write = cls, name, write

    def __get__(self, instance: object, owner: type | None = None) -> object:
        # Two threads at once write it twice, alike.
        method = self._write(self._cls)
        setattr(self._cls, self._name, method)
        return method if instance is None else method.__get__(instance, owner)


def _add_methods(cls: type, *, init: bool, eq: bool, frozen: bool) -> None:
    """What the class's body defines stays."""
    own = vars(cls)
    # Python puts a None beside an `__eq__` in the body: that is no hash of the class's own.
    has_hash = "__hash__" in own and not (own["__hash__"] is None and "__eq__" in own)
    added: dict[str, Write | None] = {"__repr__": _repr}
    if init:
        added["__init__"] = _init
    if eq:
        added["__eq__"] = _eq
    added = {name: write for name, write in added.items() if name not in own}
    if eq and not has_hash:
        added["__hash__"] = _hash if frozen else None
    for name, write in added.items():
        setattr(cls, name, None if write is None else _Unwritten(cls, name, write))


def _init(cls: type) -> FunctionType:
    given: dict[str, object] = {"__not_given__": _NOT_GIVEN, "__set__": object.__setattr__}
    fields = dataclasses.fields(cls)
    assert all(each.init for each in fields), f"{cls.__name__}: field(init=False)"
    line = "  __set__(self, {0!r}, {1})" if cls in _FROZEN else "  self.{0} = {1}"
    body = [line.format(each.name, _value(each, given)) for each in fields]
    if hasattr(cls, "__post_init__"):
        body.append("  self.__post_init__()")
    by_place = [_parameter(each) for each in fields if not each.kw_only]
    by_name = [_parameter(each) for each in fields if each.kw_only]
    if sorted(by_place, key=lambda each: "=" in each) != by_place:
        raise TypeError(f"{cls.__name__}: a field without a default follows one with a default")
    parameters = ["self", *by_place, *(["*", *by_name] if by_name else [])]
    init = _compiled(cls, "__init__", parameters, body or ["  pass"], given)
    init.__annotations__ = {each.name: each.type for each in fields} | {"return": None}
    return init


def _parameter(each: Field[Any]) -> str:
    if each.default is MISSING and each.default_factory is MISSING:
        return each.name
    return f"{each.name}=__default_{each.name}"


def _value(each: Field[Any], given: dict[str, object]) -> str:
    """The expression of what a field is set to; what it needs goes into `given`."""
    name = each.name
    if each.default is not MISSING:
        given[f"__default_{name}"] = each.default
    if each.default_factory is MISSING:
        return name
    given[f"__default_{name}"] = _NOT_GIVEN
    given[f"__make_{name}"] = each.default_factory
    return f"__make_{name}() if {name} is __not_given__ else {name}"


def _repr(cls: type) -> FunctionType:
    shown = ", ".join(
        f"{each.name}={{self.{each.name}!r}}" for each in dataclasses.fields(cls) if each.repr
    )
    body = [f'  return f"{{self.__class__.__qualname__}}({shown})"']
    method = _compiled(cls, "__repr__", ["self"], body, {})
    return reprlib.recursive_repr("...")(method)  # type: ignore[return-value]


def _eq(cls: type) -> FunctionType:
    names = [each.name for each in dataclasses.fields(cls) if each.compare]
    body = [
        "  if other.__class__ is self.__class__:",
        f"    return {_tuple('self', names)} == {_tuple('other', names)}",
        "  return __ask_the_other__(self, other)",
    ]
    # What object's own says of two objects makes Python ask the second one.
    given: dict[str, object] = {"__ask_the_other__": object.__eq__}
    return _compiled(cls, "__eq__", ["self", "other"], body, given)


def _hash(cls: type) -> FunctionType:
    names = [
        each.name
        for each in dataclasses.fields(cls)
        if (each.compare if each.hash is None else each.hash)
    ]
    body = [f"  return __hash_of__({_tuple('self', names)})"]
    return _compiled(cls, "__hash__", ["self"], body, {"__hash_of__": hash})


def _tuple(of: str, names: list[str]) -> str:
    return f"({''.join(f'{of}.{name},' for name in names)})"


def _compiled(
    cls: type, name: str, parameters: list[str], body: list[str], given: dict[str, object]
) -> FunctionType:
    """The method of these lines, in its class's module; `given` are names that only it sees."""
    lines = [
        f"def outer({', '.join(given)}):",
        f" def {name}({', '.join(parameters)}):",
        *body,
        f" return {name}",
    ]
    made: dict[str, Any] = {}
    module = sys.modules.get(cls.__module__)
    exec("\n".join(lines), {} if module is None else vars(module), made)  # of declared names
    method: FunctionType = made["outer"](**given)
    method.__qualname__ = f"{cls.__qualname__}.{name}"
    return method


def _freeze(cls: type[Any], *, slots: bool) -> None:
    _FROZEN.add(cls)
    names = frozenset(each.name for each in dataclasses.fields(cls))

    def __setattr__(self: object, name: str, value: object) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: object, name: str) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    added = {"__setattr__": __setattr__, "__delattr__": __delattr__}
    for name, method in added.items():
        if name in vars(cls):
            raise TypeError(f"{cls.__name__} is frozen and has its own {name}")
        setattr(cls, name, method)
    # A copy and an unpickled object have no fields yet, and `setattr` would be refused.
    state = {"__getstate__": _state, "__setstate__": _set_state}
    for name, method in state.items() if slots else ():
        if name not in vars(cls):
            setattr(cls, name, method)


def _state(self: Any) -> list[object]:  # noqa: ANN401  # of any frozen class
    return [getattr(self, each.name) for each in dataclasses.fields(self)]


def _set_state(self: Any, state: list[object]) -> None:  # noqa: ANN401
    for each, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, each.name, value)
