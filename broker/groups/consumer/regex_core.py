"""Patterns that members subscribe by: when to look again, and what follows from it. Pure.

A heartbeat only stores the text. What it stands for is found out beside the requests, once for each
pattern of a group, and comes back here: the group's epoch is raised if it stands for other topics
than before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.groups.consumer.changes import Changes
from broker.groups.consumer.events import RegexSet
from broker.groups.consumer.types import ResolvedRegex

if TYPE_CHECKING:
    from collections.abc import Mapping

    from broker.groups.consumer.group import ConsumerGroup
    from broker.groups.consumer.types import Context

#: Topics that are created one after the other are looked at together. With a heartbeat's interval
#: of 5 s a new topic is seen within 10.
REFRESH_LEAST_MS = 5_000


def is_due(
    group: ConsumerGroup,
    resolved_at_ms: int,
    now_ms: int,
    refresh_interval_ms: int,
    *,
    topics_changed: bool,
) -> bool:
    """Whether patterns are to be matched now, given when that was done last."""
    age_ms = now_ms - resolved_at_ms
    if age_ms >= refresh_interval_ms or (topics_changed and age_ms >= REFRESH_LEAST_MS):
        return True
    return len(group.regexes) < len(group.regex_members) and not all(
        regex in group.regexes for regex in group.regex_members
    )


def resolved(
    group: ConsumerGroup, found: Mapping[str, frozenset[str]], version: int, context: Context
) -> Changes:
    """What was found for patterns, some of which may be nobody's by now."""
    changes = Changes(group)
    before = group.subscribed_topics()
    has_changed = False
    for regex, topics in found.items():
        if regex not in group.regex_members:
            continue
        known = group.regexes.get(regex)
        if known is None or known.topics != topics:
            has_changed = has_changed or topics != (known.topics if known else frozenset())
            changes.add(RegexSet(regex, ResolvedRegex(topics, version, context.now_ms)))
    if has_changed or before != group.subscribed_topics():
        changes.bump(context)
    return changes
