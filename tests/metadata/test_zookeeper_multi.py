"""How a multi with `make_parents` becomes one ZooKeeper transaction."""

from kazoo.exceptions import (
    BadVersionError,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
)

from metadata.limits import multi_bytes
from metadata.store import CreateOp, DeleteOp, PutOp
from metadata.zookeeper_multi import parents, parents_to_look_for, plan, refusal


def paths(steps):
    return [step.op.path for step in steps]


def test_parents_are_made_once_and_from_above():
    ops = [
        CreateOp("/a/b/c", make_parents=True),
        CreateOp("/a/b/d/e", make_parents=True),
        CreateOp("/other"),
    ]
    assert parents_to_look_for(ops) == ["/a", "/a/b", "/a/b/d"]
    nothing = dict.fromkeys(["/a", "/a/b", "/a/b/d"], False)
    steps = plan(ops, nothing)
    assert paths(steps) == ["/a", "/a/b", "/a/b/c", "/a/b/d", "/a/b/d/e", "/other"]
    assert [step.is_parent for step in steps] == [True, True, False, True, False, False]
    assert paths(plan(ops, nothing | {"/a": True})) == paths(steps)[1:]
    assert parents("/a") == []


def test_what_the_multi_itself_makes_and_deletes_is_seen():
    ops = [
        DeleteOp("/x/y"),
        DeleteOp("/x"),
        CreateOp("/x/z", make_parents=True),
        CreateOp("/n"),
        CreateOp("/n/m", make_parents=True),
    ]
    steps = plan(ops, {"/x": True, "/n": False})
    assert paths(steps) == ["/x/y", "/x", "/x", "/x/z", "/n", "/n/m"]


def test_who_was_refused_and_whether_to_plan_anew():
    ops = [CreateOp("/a/b", make_parents=True), PutOp("/p", b"", 3)]
    steps = plan(ops, {"/a": False})
    assert refusal(steps, ["/a", "/a/b", object()]) is None
    answers = [RolledBackError(), RolledBackError(), BadVersionError()]
    step, error = refusal(steps, answers)
    assert step.origin is ops[1]
    assert not step.is_stale(error)
    step, error = refusal(steps, [NodeExistsError(), *[RuntimeInconsistency()] * 2])
    assert step.origin is ops[0]
    assert step.is_stale(error)
    step, error = refusal(steps, [RolledBackError(), NoNodeError(), RuntimeInconsistency()])
    assert step.is_stale(error)
    step, error = refusal(steps, [RolledBackError(), NodeExistsError(), RuntimeInconsistency()])
    assert not step.is_stale(error)
    # Nothing but bystanders is a refusal all the same.
    assert refusal(steps, [RuntimeInconsistency()] * 3) is not None


def test_the_size_counts_names_and_data():
    assert multi_bytes([PutOp("/a", bytes(1000), 0), DeleteOp("/b")]) > 1000
