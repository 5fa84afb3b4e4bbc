"""Prefixes: which of very many begin a name. A compressed trie; pure.

A look-up takes a step for each prefix that fits the name, and for each place where others branch
off on the way. It does not grow with how many prefixes there are, nor with how many lengths they
have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")


class _Node(Generic[T]):
    """`segment`: what it adds to the text of the node above it. One without a value has two nodes
    below it at least."""

    __slots__ = ("below", "segment", "value")

    def __init__(self, segment: str, value: T | None) -> None:
        self.segment = segment
        self.value = value
        #: By the first character of their segments; None: none, as most have.
        self.below: dict[str, _Node[T]] | None = None

    def put(self, node: _Node[T]) -> None:
        if self.below is None:
            self.below = {}
        self.below[node.segment[0]] = node


class Prefixes(Generic[T]):
    """Values by prefixes. The empty one begins every name."""

    def __init__(self) -> None:
        self._root: _Node[T] = _Node("", None)

    def __bool__(self) -> bool:
        return self._root.below is not None or self._root.value is not None

    def beginning(self, name: str) -> Iterator[tuple[str, T]]:
        """Those that `name` begins with, and their values: the shortest first."""
        node, position = self._root, 0
        if node.value is not None:
            yield "", node.value
        while node.below is not None and position < len(name):
            found = node.below.get(name[position])
            if found is None or not name.startswith(found.segment, position):
                return
            node = found
            position += len(node.segment)
            if node.value is not None:
                yield name[:position], node.value

    def add(self, prefix: str, value: T) -> None:
        """One that is not there."""
        node, rest = self._root, prefix
        while rest:
            found = None if node.below is None else node.below.get(rest[0])
            if found is None:
                found = _Node(rest, None)
                node.put(found)
            if not rest.startswith(found.segment):
                found = _split(node, found, rest)
            node, rest = found, rest[len(found.segment) :]
        node.value = value

    def remove(self, prefix: str) -> None:
        """One that is there."""
        way, position = [self._root], 0
        while position < len(prefix):
            below = way[-1].below
            assert below is not None
            way.append(below[prefix[position]])
            position += len(way[-1].segment)
        node = way.pop()
        node.value = None
        if way and node.below is None:
            above = way.pop()
            assert above.below is not None
            del above.below[node.segment[0]]
            above.below = above.below or None
            node = above
        if way:  # the root stays as it is
            _join(node)


def _split(above: _Node[T], node: _Node[T], text: str) -> _Node[T]:
    """Puts a node between them that takes what the segment and `text` have in common."""
    pairs = enumerate(zip(node.segment, text, strict=False))
    length = next((at for at, (one, other) in pairs if one != other), len(text))
    between: _Node[T] = _Node(node.segment[:length], None)
    above.put(between)
    node.segment = node.segment[length:]
    between.put(node)
    return between


def _join(node: _Node[T]) -> None:
    """If it has no value and one node below it, the two become one."""
    if node.value is None and node.below is not None and len(node.below) == 1:
        (other,) = node.below.values()
        node.segment += other.segment
        node.value, node.below = other.value, other.below
