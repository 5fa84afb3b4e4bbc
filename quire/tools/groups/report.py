"""`quire groups why GROUP`: everything about one group, and what it means.

A report has `is_stuck`, `verdict` (sentences, the cause first), `facts` (name and value), `members`
and `partitions`. What only the coordinator's page tells is null where there is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from quire.tools.groups.verdict import verdict
from quire.tools.output import show, show_one

if TYPE_CHECKING:
    from collections.abc import Mapping

    from quire.tools.groups.facts import GroupFacts


def report(facts: GroupFacts, page: Mapping[str, Any] | None) -> dict[str, Any]:
    result = verdict(facts, page)
    rebalance = None if page is None else page["rebalance"]
    lags = [each.lag for each in facts.partitions.values() if each.lag is not None]
    behind = [each.behind_ms for each in facts.partitions.values() if each.behind_ms is not None]
    return {
        "group": facts.name,
        "is_stuck": result.is_stuck,
        "verdict": result.words,
        "facts": {
            "type": facts.kind,
            "state": facts.state,
            "epoch": facts.epoch if page is None else page["epoch"],
            "assignment_epoch": facts.assignment_epoch,
            "assignor": facts.assignor,
            "coordinator": f"{facts.coordinator[0]}:{facts.coordinator[1]}",
            "last_rebalance": None if rebalance is None else rebalance["reason"],
            "last_rebalance_ago_ms": None if rebalance is None else rebalance["ago_ms"],
            "lag": sum(lags),
            "behind_ms": max(behind, default=0),
        },
        "members": _members(facts, page),
        "partitions": _partitions(facts),
    }


def _members(facts: GroupFacts, page: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    known = {} if page is None else {each["member"]: each for each in page["members"]}
    waits = {} if page is None else {each["member"]: each for each in page["waits_for"]}
    rows = []
    for member in facts.members:
        of_page = known.get(member.member_id, {})
        waited = waits.get(member.member_id, {})
        lags = [facts.partitions[each].lag or 0 for each in member.assigned]
        rows.append(
            {
                "member": member.member_id,
                "client": member.client_id,
                "host": member.client_host,
                "instance": member.instance_id,
                "state": of_page.get("state"),
                "epoch": of_page.get("epoch", member.epoch),
                "has": _short(member.assigned),
                "is_to_have": None if member.target is None else _short(member.target),
                "late_with": waited.get("what"),
                "late_ms": waited.get("for_ms"),
                "silent_ms": of_page.get("silent_ms"),
                "lag": sum(lags),
            }
        )
    return rows


def _partitions(facts: GroupFacts) -> list[dict[str, Any]]:
    rows = []
    for (topic, number), each in sorted(facts.partitions.items()):
        holder = facts.holder((topic, number))
        rows.append(
            {
                "partition": f"{topic}-{number}",
                "member": None if holder is None else holder.member_id,
                "committed": each.committed,
                "end": each.end,
                "lag": each.lag,
                "behind_ms": each.behind_ms,
                "error": each.error,
            }
        )
    return rows


def _short(partitions: list[tuple[str, int]]) -> str:
    """As «t-0,2 u-1»."""
    by_topic: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        by_topic.setdefault(topic, []).append(number)
    return " ".join(f"{topic}-{','.join(map(str, own))}" for topic, own in by_topic.items())


def show_report(told: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        show_one(told, as_json=True)
        return
    show_one(told["facts"], as_json=False)
    for name in ("members", "partitions"):
        if told[name]:
            click.echo(f"\n{name}:")
            show(told[name], as_json=False)
    click.echo(f"\n{told['group']}: {'STUCK' if told['is_stuck'] else 'not stuck'}")
    for sentence in told["verdict"]:
        click.echo(f"  {sentence}")
