"""Declared classes are dataclasses to whoever uses them, whatever is written when."""

import dataclasses
import inspect

import pytest

import wire.kafka.messages.everything  # noqa: F401  # declares them
from wire.kafka.message import INT32, REQUESTS, RESPONSES, STRING, Message, array, field
from wire.kafka.structs import Struct, declared


@pytest.fixture
def classes():
    """Made anew, as what is written at the first object is the classes'."""

    @declared
    class Part(Struct):
        number: int = field(INT32, "0+", default=-1)

    @declared
    class Whole(Message):
        """It has words of its own."""

        name: str = field(STRING, "0+")
        parts: list[Part] = field(array(Part), "0+")
        one: Part = field(Part, "0+")

    return Part, Whole


def test_what_is_not_given_is_the_default_and_fresh(classes):
    part, whole = classes
    first, second = whole(), whole()
    assert (first.name, first.parts, first.one) == ("", [], part(-1))
    first.parts.append(part(3))
    first.one.number = 4
    assert (second.parts, second.one.number) == ([], -1)
    assert whole(parts=first.parts).parts is first.parts


def test_fields_are_given_by_place_and_by_name(classes):
    part, whole = classes
    assert whole("a", [part(1)], one=part(number=2)) == whole(
        name="a", parts=[part(1)], one=part(2)
    )
    for wrong in ({"other": 1}, {"number": 1, "numbers": 2}):
        with pytest.raises(TypeError, match=r"other|numbers"):
            part(**wrong)
    with pytest.raises(TypeError, match="positional"):
        part(1, 2)


def test_they_are_equal_by_their_fields_and_of_one_class_alone(classes):
    part, whole = classes

    @declared
    class Same(Struct):
        number: int = field(INT32, "0+", default=-1)

    assert part(1) == part(1)
    assert part(1) != part(2)
    assert whole(parts=[part(1)]) != whole(parts=[part(2)])
    assert part(1) != Same(1)
    assert part(1) != 1
    with pytest.raises(TypeError, match="unhashable"):
        hash(part(1))


def test_the_tools_of_dataclasses_take_them(classes):
    part, whole = classes
    one = whole("a", [part(1)])
    assert dataclasses.replace(one, name="b") == whole("b", [part(1)])
    assert dataclasses.asdict(part(5)) == {"number": 5}
    assert repr(one).endswith(f"Whole(name='a', parts=[{part(1)!r}], one={part()!r})")
    assert whole.__doc__ == "It has words of its own."
    assert not hasattr(one, "__dict__")
    with pytest.raises(AttributeError):
        one.other = 1


def test_each_class_writes_its_own_init(classes):
    """Also one whose base has made objects before."""
    part, _ = classes
    part(1)

    @declared
    class More(part):
        name: str = field(STRING, "0+")

    assert (More(1, "a").number, More(1, "a").name) == (1, "a")
    assert part(2).number == 2


def test_all_that_are_declared_make_an_object_as_dataclass_would():
    """Beside the same class as `dataclass` makes it: the same parameters and defaults."""
    for cls in (*REQUESTS.values(), *RESPONSES.values()):
        cls()
        body = {"__annotations__": {}}
        for each in dataclasses.fields(cls):
            body["__annotations__"][each.name] = each.type
            body[each.name] = dataclasses.field(
                default=each.default, default_factory=each.default_factory
            )
        plain = dataclasses.dataclass(type(cls.__name__, (), body))
        assert list(inspect.signature(cls).parameters) == list(inspect.signature(plain).parameters)
        assert dataclasses.asdict(cls()) == dataclasses.asdict(plain())
