"""Ours and the standard library's, made of one description, behave alike."""

import ast
import copy
import dataclasses
import inspect
import pickle
import sys
import threading
import typing
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import FrozenInstanceError, field
from pathlib import Path
from typing import ClassVar, Generic, TypeVar
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.properties import at_least
from wire.dataclass import dataclass

ROOT = Path(__file__).parents[2]
#: Of what a server imports, nothing pays for methods that it may not need.
SERVER = ("wire", "runtime", "metadata", "bookie", "ledger", "joined", "broker", "quire")
NAMES = ("a", "b", "name", "default", "other")
WRITTEN = ("__init__", "__repr__", "__eq__", "__hash__")


def own_init(self, a=1, b=2):
    with suppress(AttributeError):  # slots, and no such field
        object.__setattr__(self, "a", a)


def own_post_init(self):
    for value in values_of(self).values():
        if isinstance(value, list):
            value.append("post")


#: What a class's body may define by itself.
OWN = {
    "__init__": own_init,
    "__post_init__": own_post_init,
    "__repr__": lambda self: "mine",
    "__eq__": lambda self, other: True,
    "__hash__": lambda self: 5,
    "__setattr__": object.__setattr__,
    "__doc__": "Words of its own.",
}

values = st.integers(-2, 2) | st.sampled_from(["", "x", None, (1, 2)])
mostly = st.sampled_from([True, True, True, False])
fields = st.fixed_dictionaries(
    {
        "default": st.sampled_from([dataclasses.MISSING, dataclasses.MISSING, 0, "x"]),
        "default_factory": st.sampled_from([dataclasses.MISSING, dataclasses.MISSING, list]),
        "repr": mostly,
        "compare": mostly,
        "hash": st.sampled_from([None, None, None, True, False]),
        "kw_only": st.sampled_from([dataclasses.MISSING, dataclasses.MISSING, True]),
    }
).filter(lambda each: dataclasses.MISSING in (each["default"], each["default_factory"]))
options = {
    "slots": st.booleans(),
    "frozen": st.booleans(),
    "eq": mostly,
    "kw_only": st.booleans(),
    "init": mostly,
}
layers = st.fixed_dictionaries(
    {
        "fields": st.dictionaries(st.sampled_from(NAMES), fields, max_size=4),
        "own": st.just(set()) | st.sets(st.sampled_from(sorted(OWN)), max_size=2),
        "options": st.fixed_dictionaries({}, optional=options),
    }
)
#: Classes that inherit from each other, the base first.
chains = st.lists(layers, min_size=1, max_size=3)


def made_by(decorator, chain):
    """The classes, up to the first that must not be."""
    base, classes = object, []
    for number, layer in enumerate(chain):
        body = {"__annotations__": {"shared": "ClassVar[int]"}, "__module__": __name__}
        body |= {name: OWN[name] for name in layer["own"]}
        for name, described in layer["fields"].items():
            body["__annotations__"][name] = "int"
            body[name] = field(**described)
        try:
            base = decorator(**layer["options"])(type(f"Layer{number}", (base,), body))
        except TypeError:
            break
        classes.append(base)
    return classes


def outcome(function, *arguments, **named):
    """A value, or an error's kind; the words of a TypeError may differ."""
    try:
        return function(*arguments, **named)
    except (TypeError, AttributeError) as error:
        return AttributeError if isinstance(error, AttributeError) else TypeError


def values_of(one):
    names = [each.name for each in dataclasses.fields(one)]
    return {name: getattr(one, name) for name in names if hasattr(one, name)}


def facts_of(cls):
    """What both of a pair must have alike, as plain values."""
    parameters = inspect.signature(cls).parameters.values()
    return {
        "fields": [
            (each.name, each.type, each.default, each.default_factory, each.kw_only)
            for each in dataclasses.fields(cls)
        ],
        "parameters": [
            (each.name, each.kind, each.default is inspect.Parameter.empty) for each in parameters
        ],
        "hints": typing.get_type_hints(cls.__init__),
        "match": cls.__match_args__,
        "slots": vars(cls).get("__slots__"),
        "hashable": cls.__hash__ is not None,
        "own": {name for name in OWN if name != "__doc__" and vars(cls).get(name) == OWN[name]},
        "doc": cls.__doc__ == OWN["__doc__"],
        "names": (cls.__name__, cls.__qualname__, cls.__module__),
    }


def of_objects(cls, placed, named):
    """The outcomes of all that is done with objects of a class."""
    one = outcome(cls, *placed, **named)
    if one is TypeError:
        return [TypeError]
    other = cls(*placed, **named)
    outcomes = [values_of(one), outcome(repr, one), hasattr(one, "__dict__")]
    outcomes += [outcome(lambda: one == other), outcome(lambda: one != other)]
    outcomes += [one == 1, one == mock.ANY]
    outcomes += [outcome(lambda: hash(one) == hash(other)), outcome(lambda: {one, other} == {one})]
    for copied in (copy.copy, copy.deepcopy):
        outcomes.append(outcome(lambda copied=copied: values_of(copied(one))))
    outcomes.append(outcome(lambda: values_of(dataclasses.replace(one))))
    outcomes.append(outcome(dataclasses.asdict, one))
    for each in dataclasses.fields(cls):
        outcomes.append(outcome(setattr, one, each.name, 77))
        outcomes.append(outcome(lambda: one == other))
        outcomes.append(outcome(delattr, one, each.name))
        outcomes.append(values_of(one))
    return outcomes


@at_least(300)
@given(chains, st.lists(values, max_size=4), st.dictionaries(st.sampled_from(NAMES), values))
def test_ours_and_the_standard_librarys_behave_alike(chain, placed, named):
    ours, theirs = made_by(dataclass, chain), made_by(dataclasses.dataclass, chain)
    for our, their in zip(ours, theirs, strict=False):
        assert facts_of(our) == facts_of(their)
        for arguments in ((placed, named), ([], {}), (placed, {})):
            assert of_objects(our, *arguments) == of_objects(their, *arguments)
    count = len(theirs)
    if len(ours) > count and vars(ours[count]).get("__init__") not in (None, own_init):
        # A field without a default after one with a default: the standard library tells at once.
        with pytest.raises(TypeError, match="without a default follows"):
            ours[count](1)
    assert len(ours) >= count


@dataclass(slots=True, frozen=True)
class Point:
    x: int
    y: int = 2
    KIND: ClassVar[str] = "point"


@dataclass(slots=True)
class Node:
    value: int
    others: list["Node"] = field(default_factory=list)


def test_a_method_is_written_when_it_is_looked_at():
    @dataclass(slots=True, frozen=True)
    class Whole:
        number: int

    def written():
        return {name for name in WRITTEN if inspect.isfunction(vars(Whole)[name])}

    assert written() == set()
    Whole(1)
    assert written() == {"__init__"}
    assert {Whole(1), Whole(1)} == {Whole(1)}
    assert written() == {"__init__", "__eq__", "__hash__"}
    assert Whole.__init__ is Whole.__init__
    assert Whole.__init__.__qualname__ == f"{Whole.__qualname__}.__init__"


def test_a_class_that_inherits_has_methods_of_its_own_and_those_of_its_base():
    class Plain(Point):
        """No dataclass."""

    @dataclass(slots=True, frozen=True)
    class More(Point):
        z: int = 3

        def __init__(self, x):
            Point.__init__(self, x, 5)
            object.__setattr__(self, "z", 6)

    assert (More(1).x, More(1).y, More(1).z) == (1, 5, 6)
    assert (Plain(4).x, Plain(4)) == (4, Plain(4))
    assert Plain(4) != Point(4)
    Plain(4).more = 7


def test_frozen_ones_refuse_every_name():
    for name in ("x", "other"):
        with pytest.raises(FrozenInstanceError, match=f"assign to field '{name}'"):
            setattr(Point(1), name, 3)
        with pytest.raises(FrozenInstanceError, match=f"delete field '{name}'"):
            delattr(Point(1), name)
    with pytest.raises(TypeError, match="do not mix"):
        dataclass(slots=True)(type("Mutable", (Point,), {}))
    with pytest.raises(TypeError, match="do not mix"):
        dataclass(frozen=True)(type("Frozen", (Node,), {}))


@pytest.mark.parametrize("one", [Point(1, 5), Node(1, [Node(2)])])
def test_pickles_and_copies_are_equal(one):
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(one, protocol)) == one
    assert copy.deepcopy(one) == one


def test_match_and_repr():
    match Point(1):
        case Point(1, y):
            assert y == 2
        case _:
            raise AssertionError
    assert repr(Point(1)) == "Point(x=1, y=2)"
    node = Node(1)
    node.others.append(node)
    assert repr(node) == "Node(value=1, others=[...])"


def test_generic_and_abstract_classes():
    T = TypeVar("T")

    @dataclass(slots=True)
    class Box(Generic[T]):
        content: T

    class Shape(ABC):
        @abstractmethod
        def area(self): ...

    @dataclass(slots=True)
    class Square(Shape):
        side: int

        def area(self):
            return self.side**2

    @dataclass(slots=True)
    class Unknown(Shape):
        side: int

    assert Box[int](1) == Box(1)
    assert Square(3).area() == 9
    with pytest.raises(TypeError, match="abstract"):
        Unknown(1)


def test_threads_that_make_the_first_object_at_once():
    for _ in range(20):

        @dataclass(slots=True)
        class One:
            number: int

        made, barrier = [], threading.Barrier(4)

        def make(one=One, made=made, barrier=barrier):
            barrier.wait()
            made.append(one(1))

        threads = [threading.Thread(target=make) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert made == [One(1)] * 4


def test_the_server_has_no_other():
    """`dataclasses.dataclass` would be three quarters of a millisecond of every start."""
    others = []
    for path in (path for room in SERVER for path in (ROOT / room).rglob("*.py")):
        if path == ROOT / "wire/dataclass.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "dataclasses":
                others += [path for each in node.names if each.name == "dataclass"]
            if isinstance(node, ast.Attribute) and ast.unparse(node) == "dataclasses.dataclass":
                others.append(path)
    assert others == []


@pytest.mark.parametrize("make", [dataclass, dataclasses.dataclass])
def test_what_a_field_or_the_body_says_of_hashes_and_copies(make):
    @make(frozen=True)
    class Half:
        a: int
        b: object = field(hash=False)

    assert hash(Half(1, [])) == hash(Half(1, [2]))

    @make(frozen=True)
    class Equal:
        a: int

        def __eq__(self, other):
            return isinstance(other, Equal)

    assert hash(Equal(1)) == hash(Equal(1)) != hash(Equal(2))

    @make(slots=True, frozen=True)
    class Own:
        a: int

        def __getstate__(self):
            return self.a

        def __setstate__(self, state):
            object.__setattr__(self, "a", -state)

    # The library's own passes over both methods before 3.11.4 (gh-104035).
    if make is dataclass or sys.version_info >= (3, 11, 4):
        assert copy.copy(Own(1)) == Own(-1)
