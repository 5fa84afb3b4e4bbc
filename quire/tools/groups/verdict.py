"""What is wrong with a group, in sentences, the cause first. Pure: facts in, words out.

A member is *late* when the group waits for it: it has still to give partitions back, to join or to
sync. A partition *stands still* when nobody has it, or when nothing of it was committed although it
has records that are older than `STILL_MS`; one look cannot tell slow from still, so the words say
what was seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from quire.tools.groups.facts import GroupFacts

#: A group that commits every five seconds, as clients do by default, is not this far behind.
STILL_MS = 30_000
#: Names in a sentence.
NAMED_MAX = 5

NOBODY = ("Empty", "Dead")


@dataclass(frozen=True)
class Verdict:
    is_stuck: bool
    words: list[str]


def seconds(ms: int) -> str:
    if ms < 120_000:
        return f"{ms / 1000:.1f} s"
    return f"{ms // 60_000} min"


def verdict(facts: GroupFacts, page: Mapping[str, Any] | None) -> Verdict:
    """`page`: the coordinator's (quire/tools/admin/groups.py); None: it was not found."""
    words = [*_late(page), *_silent(page), *_without_holder(facts), *_behind(facts)]
    is_stuck = bool(words)
    if not words:
        words.append(
            f"{len(facts.members)} members have what they are to have, and none is far behind."
            if facts.members
            else "Nobody is in the group."
        )
    words += _about_rebalance(facts, page)
    if page is None:
        words.append(
            "Who is late, since when, and why the last rebalance began, its coordinator's pages"
            " tell: --url, or --metadata-service-uri of a cluster with --metrics."
        )
    return Verdict(is_stuck, words)


def _named(names: list[str]) -> str:
    shown = ", ".join(names[:NAMED_MAX])
    return shown if len(names) <= NAMED_MAX else f"{shown} and {len(names) - NAMED_MAX} more"


def _late(page: Mapping[str, Any] | None) -> list[str]:
    words = []
    for each in [] if page is None else page["waits_for"]:
        left = each["left_ms"]
        end = "" if left is None else f"; in {seconds(left)} it is removed"
        words.append(
            f"The group waits for {each['member']}: {each['what']}, since"
            f" {seconds(each['for_ms'])}{end}."
        )
    if len(words) > NAMED_MAX:
        words[NAMED_MAX:] = [f"It waits for {len(words) - NAMED_MAX} more members."]
    return words


def _silent(page: Mapping[str, Any] | None) -> list[str]:
    """Half of a session without a heartbeat is more than clients leave."""
    late = [
        f"{each['member']} ({seconds(each['silent_ms'])} of {seconds(each['session_timeout_ms'])})"
        for each in ([] if page is None else page["members"])
        if each["silent_ms"] is not None and 2 * each["silent_ms"] > each["session_timeout_ms"]
    ]
    return [f"Not heard of for more than half of their session: {_named(late)}."] if late else []


def _without_holder(facts: GroupFacts) -> list[str]:
    if not facts.members:
        return []
    without = [
        f"{topic}-{number}"
        for (topic, number), each in sorted(facts.partitions.items())
        if each.lag and facts.holder((topic, number)) is None
    ]
    if not without:
        return []
    return [
        f"Nobody has {_named(without)}, which the group has offsets of, and records wait there."
    ]


def _behind(facts: GroupFacts) -> list[str]:
    by_member: dict[str, list[str]] = {}
    for (topic, number), each in sorted(facts.partitions.items()):
        holder = facts.holder((topic, number))
        if holder is None or each.behind_ms is None or each.behind_ms < STILL_MS:
            continue
        words = f"{topic}-{number} ({each.lag} records, {seconds(each.behind_ms)})"
        by_member.setdefault(holder.member_id, []).append(words)
    return [
        f"{member_id} is behind: {_named(partitions)}."
        for member_id, partitions in by_member.items()
    ]


def _about_rebalance(facts: GroupFacts, page: Mapping[str, Any] | None) -> list[str]:
    if page is None:
        return []
    rebalance = page["rebalance"]
    if rebalance is None:
        return ["No rebalance has begun since the coordinator has the group."]
    ago = seconds(rebalance["ago_ms"])
    return [f"The last rebalance began {ago} ago: {rebalance['reason']}."]
