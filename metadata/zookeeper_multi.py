"""A multi as ZooKeeper has it: the parents of `make_parents` are ops of the same transaction.

Which parents are missing is read before. If that changes till the transaction comes to it, it is
refused, and planned anew (`Plan.is_stale`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kazoo import exceptions as kazoo_errors  # type: ignore[import-untyped]

from metadata.rules import ROOT, split_path
from metadata.store import CheckOp, CreateOp, DeleteOp, PutOp
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from metadata.store import Op
    from metadata.zookeeper_handler import Result

#: How ZooKeeper marks the ops that were fine, and those after the one that was refused.
_BYSTANDERS = (kazoo_errors.RolledBackError, kazoo_errors.RuntimeInconsistency)


@dataclass(slots=True, frozen=True)
class Step:
    op: Op
    #: The caller's op that needs it; `op` itself, or the one whose parent it makes
    origin: Op

    @property
    def is_parent(self) -> bool:
        return self.op is not self.origin

    def is_stale(self, error: Exception) -> bool:
        """Whether this refusal only says that the parents are not what they were."""
        if self.is_parent:
            return isinstance(error, (kazoo_errors.NodeExistsError, kazoo_errors.NoNodeError))
        needs_parents = isinstance(self.op, CreateOp) and self.op.make_parents
        return needs_parents and isinstance(error, kazoo_errors.NoNodeError)


def parents(path: str) -> list[str]:
    """From the highest down, without the root."""
    found = []
    parent = split_path(path)[0]
    while parent not in (ROOT, ""):
        found.append(parent)
        parent = split_path(parent)[0]
    return found[::-1]


def parents_to_look_for(ops: Sequence[Op]) -> list[str]:
    wanted = [
        parent
        for op in ops
        if isinstance(op, CreateOp) and op.make_parents
        for parent in parents(op.path)
    ]
    return list(dict.fromkeys(wanted))


def plan(ops: Sequence[Op], exists: Mapping[str, bool]) -> list[Step]:
    """`exists` tells of all `parents_to_look_for`."""
    there = dict(exists)
    steps = []
    for op in ops:
        if isinstance(op, CreateOp):
            for parent in parents(op.path) if op.make_parents else ():
                if not there[parent]:
                    there[parent] = True
                    steps.append(Step(CreateOp(parent), op))
        if isinstance(op, (CreateOp, DeleteOp)):
            there[op.path] = isinstance(op, CreateOp)
        steps.append(Step(op, op))
    return steps


def commit(
    client: Any,  # noqa: ANN401
    steps: Sequence[Step],
    full_path: Callable[[str], str],
) -> Result:
    """Gives the transaction to kazoo."""
    transaction = client.transaction()
    for step in steps:
        path = full_path(step.op.path)
        match step.op:
            case CreateOp(data=data, ephemeral=ephemeral):
                transaction.create(path, bytes(data), ephemeral=ephemeral)
            case PutOp(data=data, version=version):
                transaction.set_data(path, bytes(data), version)
            case DeleteOp(version=version):
                transaction.delete(path, version)
            case CheckOp(version=version):
                transaction.check(path, version)
    return transaction.commit_async()  # type: ignore[no-any-return]


def create_numbered(client: Any, full: str, count: int) -> Result:  # noqa: ANN401
    """So many ephemeral sequence nodes; the answer has their paths."""
    transaction = client.transaction()
    for _ in range(count):
        transaction.create(full, ephemeral=True, sequence=True)
    return transaction.commit_async()  # type: ignore[no-any-return]


def delete_all(client: Any, paths: Sequence[str]) -> Result:  # noqa: ANN401
    transaction = client.transaction()
    for path in paths:
        transaction.delete(path)
    return transaction.commit_async()  # type: ignore[no-any-return]


def refusal(steps: Sequence[Step], answers: Sequence[object]) -> tuple[Step, Exception] | None:
    """The step that was refused and why, from kazoo's answer; None if all was done."""
    for step, answer in zip(steps, answers, strict=False):
        if isinstance(answer, Exception) and not isinstance(answer, _BYSTANDERS):
            return step, answer
    refused = [answer for answer in answers if isinstance(answer, Exception)]
    return (steps[0], refused[0]) if refused else None
