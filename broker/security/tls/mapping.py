"""ssl.principal.mapping.rules: a client's name, made of its certificate's subject (KIP-371).

A comma list of `DEFAULT` and of `RULE:pattern/name/` with L or U behind it for lower or upper
case; `\\/` and other escapes are the pattern's. The first rule whose pattern matches the whole
subject decides. It replaces as Java's `replaceAll` does: each match in turn, so that `(.*)` matches
all of it and then the nothing behind it. A reference to a group that the pattern has not is text,
unless it has none at all: then Kafka fails at each client, and here it ends the start, as every
rule does that could not be applied.

Patterns are RE2's: a client chooses its name, and no time to match it. What RE2 has not (looking
back or ahead, possessive quantifiers, references within a pattern) ends the start.
"""

from __future__ import annotations

import re
from typing import Any

import re2

from wire.dataclass import dataclass

DEFAULT = "DEFAULT"
MEMORY_BYTES_MAX = 1 << 20
#: A subject of more characters is refused.
SUBJECT_CHARACTERS_MAX = 4096
#: Of a pattern within a subject, all replaced in one turn of the loop; more give nobody a name.
MATCHES_MAX = 200

# As Kafka's `SslPrincipalMapper`.
_RULE = r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/(?P<case>[LU]?).*?|(.*?)"
_SPLITTER = re.compile(rf"\s*(?P<rule>{_RULE})\s*(,\s*|$)")
_REFERENCE = re.compile(r"\\(?P<escaped>.?)|\$(?P<number>[0-9]+)|(?P<bad>\$)", re.DOTALL)

_OPTIONS = re2.Options()
_OPTIONS.max_mem = MEMORY_BYTES_MAX
_OPTIONS.log_errors = False


class MappingError(ValueError):
    """A rule that cannot be applied."""


@dataclass(slots=True, frozen=True)
class Rule:
    """`pattern` is compiled; None: the subject as it is. `parts`: text, and numbers of groups."""

    pattern: Any = None
    parts: tuple[str | int, ...] = ()
    case: str = ""

    def apply(self, subject: str) -> str | None:
        """None if it does not match. MappingError: it matches very many times."""
        if self.pattern is None:
            return subject
        if self.pattern.fullmatch(subject) is None:
            return None
        name = self._replaced(subject)
        return name.lower() if self.case == "L" else name.upper() if self.case == "U" else name

    def _replaced(self, subject: str) -> str:
        made: list[str] = []
        taken, last = 0, None
        for count, match in enumerate(self.pattern.finditer(subject)):
            if match.span() == last:
                continue  # an empty one, which re2 gives twice
            if count >= MATCHES_MAX:
                raise MappingError(f"matches more than {MATCHES_MAX} times")
            last = start, end = match.span()
            made.append(subject[taken:start])
            made += [
                part if isinstance(part, str) else match.group(part) or "" for part in self.parts
            ]
            taken = end
        made.append(subject[taken:])
        return "".join(made)


class Mapping:
    """`rules` as they are set."""

    def __init__(self, rules: str) -> None:
        """MappingError."""
        self._rules = _parse(rules)

    def name_of(self, subject: str) -> str | None:
        """None: no rule matches, or one of them very many times."""
        for rule in self._rules:
            try:
                name = rule.apply(subject)
            except MappingError:
                return None
            if name is not None:
                return name
        return None


def _parse(text: str) -> list[Rule]:
    rules, text, at = [], text.strip(), 0
    while at < len(text):
        match = _SPLITTER.match(text, at)
        assert match is not None, "its last alternative is anything"
        # The splitter's group, and within it the rule's: whether it is one, whole.
        default, pattern, replacement, case, other = match.groups()[1:6]
        if default is not None:
            rules.append(Rule())
        elif pattern is not None:
            if match.end("case") != match.end("rule"):
                raise MappingError(f"{match['rule']!r}: text behind the rule")
            rules.append(_rule(pattern, replacement, case))
        elif other:
            raise MappingError(f"{other!r} is no rule: expected DEFAULT or RULE:pattern/name/")
        at = match.end()
    if not rules:
        raise MappingError("no rule: nobody would have a name")
    return rules


def _rule(pattern: str, replacement: str, case: str) -> Rule:
    try:
        compiled = re2.compile(pattern, _OPTIONS)
    except re2.error as error:
        why = error.args[0]
        why = why.decode(errors="replace") if isinstance(why, bytes) else why
        raise MappingError(f"{pattern!r} is no regular expression: {why}") from None
    return Rule(compiled, _parts(replacement, compiled.groups), case)


def _parts(replacement: str, groups: int) -> tuple[str | int, ...]:
    parts: list[str | int] = []
    at = 0
    for match in _REFERENCE.finditer(replacement):
        parts.append(replacement[at : match.start()])
        at = match.end()
        if match["bad"] is not None:
            raise MappingError(f"{replacement!r}: behind $ a group's number is expected")
        if match["escaped"] is not None:
            if not match["escaped"]:
                raise MappingError(f"{replacement!r}: nothing behind the last \\")
            parts.append(match["escaped"])
            continue
        parts += _reference(match["number"], groups, replacement)
    parts.append(replacement[at:])
    return tuple(part for part in parts if part != "")


def _reference(digits: str, groups: int, replacement: str) -> list[str | int]:
    """As many digits as make the number of a group that there is; the others are text."""
    count = 1
    while count < len(digits) and int(digits[: count + 1]) <= groups:
        count += 1
    number = int(digits[:count])
    if number > groups:
        if not groups:
            raise MappingError(f"{replacement!r}: ${digits}, and the pattern has no groups")
        return [f"${digits}"]
    return [number, digits[count:]]
