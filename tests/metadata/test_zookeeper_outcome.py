"""Verdicts on lost replies, against a model that knows what happened.

The model is one node with ZooKeeper's numbers. Rivals do anything to it before and after the loss;
our own change is carried out at any moment after the loss, or never. Rivals write other bytes.
"""

from hypothesis import given
from hypothesis import strategies as st

from metadata.store import ANY_VERSION, CheckOp, CreateOp, DeleteOp, PutOp
from metadata.zookeeper_outcome import Outcome, Seen, of_create, of_delete, of_multi, of_put

HAPPENED, NOT_HAPPENED, UNKNOWN = Outcome.HAPPENED, Outcome.NOT_HAPPENED, Outcome.UNKNOWN
OURS, SESSION, RIVAL = b"ours", 7, 8

rival_acts = st.sampled_from(["create", "create ephemeral", "put", "delete"])
acts = st.lists(rival_acts, max_size=6)


class World:
    def __init__(self):
        self.zxid = 0
        self.node = None

    def create(self, data, owner=0):
        if self.node is None:
            self.zxid += 1
            self.node = Seen(data, 0, self.zxid, self.zxid, owner)
            return True
        return False

    def put(self, data, version=ANY_VERSION):
        if self.node is not None and version in (ANY_VERSION, self.node.version):
            self.zxid += 1
            self.node = self.node._replace(
                data=data, version=self.node.version + 1, modified_zxid=self.zxid
            )
            return True
        return False

    def delete(self, version=ANY_VERSION):
        if self.node is not None and version in (ANY_VERSION, self.node.version):
            self.zxid += 1
            self.node = None
            return True
        return False

    def rival(self, act):
        match act:
            case "create":
                self.create(b"rival")
            case "create ephemeral":
                self.create(b"rival", RIVAL)
            case "put":
                self.put(b"rival %d" % self.zxid)
            case "delete":
                self.delete()


def play(before, after, ours):
    """(world, zxid at the loss, whether ours happened, whether a rival deleted after the loss)"""
    world = World()
    for act in before:
        world.rival(act)
    lost_zxid, happened = world.zxid, False
    for act in after:
        if act == "ours":
            happened = ours(world)
        else:
            world.rival(act)
    return world, lost_zxid, happened, "delete" in after


def with_ours(draw_after, position, is_lost):
    after = list(draw_after)
    if not is_lost:
        after.insert(position % (len(after) + 1), "ours")
    return after


@given(acts, acts, st.integers(0, 6), st.booleans(), st.booleans())
def test_creates(before, after, position, is_lost, is_ephemeral):
    session = SESSION if is_ephemeral else None
    world, lost_zxid, happened, deleted = play(
        before, with_ours(after, position, is_lost), lambda w: w.create(OURS, session or 0)
    )
    match of_create(world.node, OURS, session, lost_zxid):
        case Outcome.HAPPENED:
            assert happened
        case Outcome.NOT_HAPPENED:
            # The one way to be wrong: somebody deleted it since.
            assert not happened or deleted
        case Outcome.UNKNOWN:
            assert not is_ephemeral
            assert "put" in after
            assert world.node.version > 0


@given(acts, acts, st.integers(0, 6), st.booleans(), st.sampled_from([-1, 0, 1, 2]))
def test_puts(before, after, position, is_lost, version):
    world, lost_zxid, happened, deleted = play(
        ["create", *before],
        with_ours(after, position, is_lost),
        lambda w: w.put(OURS, version),
    )
    match of_put(world.node, OURS, version, lost_zxid):
        case Outcome.HAPPENED:
            assert happened
        case Outcome.NOT_HAPPENED:
            assert not happened or deleted
        case Outcome.UNKNOWN:
            # If nobody else did anything, it is known.
            assert world.node is None or any(act != "ours" for act in after)


@given(acts, acts, st.integers(0, 6), st.booleans())
def test_deletes(before, after, position, is_lost):
    world, lost_zxid, happened, deleted = play(
        ["create", *before], with_ours(after, position, is_lost), World.delete
    )
    match of_delete(world.node, lost_zxid):
        case Outcome.HAPPENED:
            assert world.node is None
        case Outcome.NOT_HAPPENED:
            assert not happened
            assert not deleted or world.node.created_zxid <= lost_zxid
        case Outcome.UNKNOWN:
            assert any(act.startswith("create") for act in after)


def test_alone_everything_is_known():
    old = Seen(b"old", 3, 5, 9, 0)
    assert of_put(old, OURS, 3, 9) is NOT_HAPPENED
    assert of_put(old._replace(data=OURS, version=4, modified_zxid=10), OURS, 3, 9) is HAPPENED
    assert of_put(old._replace(data=b"x", version=4, modified_zxid=10), OURS, 3, 9) is NOT_HAPPENED
    assert of_put(old._replace(data=b"x", version=5, modified_zxid=11), OURS, 3, 9) is UNKNOWN
    assert of_put(old._replace(data=b"x", version=4, modified_zxid=10), OURS, -1, 9) is UNKNOWN
    assert of_put(None, OURS, 3, 9) is UNKNOWN
    assert of_create(old, b"old", None, 9) is NOT_HAPPENED
    assert of_create(Seen(OURS, 0, 10, 10, 0), OURS, None, 9) is HAPPENED
    assert of_create(Seen(OURS, 0, 10, 10, RIVAL), OURS, None, 9) is NOT_HAPPENED
    assert of_create(Seen(OURS, 0, 10, 10, RIVAL), OURS, SESSION, 9) is NOT_HAPPENED
    assert of_create(Seen(b"put over", 2, 10, 12, SESSION), OURS, SESSION, 9) is HAPPENED
    assert of_delete(old, 9) is NOT_HAPPENED


def test_of_a_multi_one_certain_op_is_enough():
    old, made = Seen(b"old", 0, 5, 5, 0), Seen(OURS, 0, 10, 10, 0)
    put = Seen(OURS, 1, 5, 10, 0)

    def verdict(ops, seen, lost_zxid=9):
        return of_multi(ops, seen, SESSION, lost_zxid)

    ops = [PutOp("/a", OURS, 0), DeleteOp("/b"), CreateOp("/c", OURS)]
    assert verdict(ops, {"/a": put, "/b": None, "/c": made}) is HAPPENED
    assert verdict(ops, {"/a": old, "/b": old, "/c": None}) is NOT_HAPPENED
    # /b was deleted by somebody else, or /c deleted since: the put tells.
    assert verdict(ops, {"/a": old, "/b": None, "/c": None}) is NOT_HAPPENED
    assert verdict(ops, {"/a": put, "/b": None, "/c": None}) is HAPPENED
    # What contradicts itself, or was put over, tells nothing.
    assert verdict(ops, {"/a": put, "/b": old, "/c": None}) is UNKNOWN
    over = put._replace(data=b"x", version=3, modified_zxid=12)
    # A rival's like multi may have deleted /b.
    assert verdict(ops[:2], {"/a": over, "/b": None}) is UNKNOWN
    assert verdict(ops[:2], {"/a": None, "/b": None}) is UNKNOWN
    assert verdict(ops[:1], {"/a": over}) is UNKNOWN
    assert verdict(ops[1:], {"/b": None, "/c": None}) is UNKNOWN
    assert verdict([DeleteOp("/b")], {"/b": None}) is HAPPENED
    assert verdict([CreateOp("/c", OURS)], {"/c": None}) is NOT_HAPPENED


def test_in_a_multi_the_last_op_on_a_path_is_judged():
    twice = [PutOp("/a", b"1", 0), PutOp("/a", OURS, 1)]
    seen = Seen(OURS, 2, 5, 10, 0)
    assert of_multi(twice, {"/a": seen}, SESSION, 9) is HAPPENED
    assert of_multi(twice, {"/a": seen._replace(modified_zxid=9)}, SESSION, 9) is NOT_HAPPENED
    made = [CreateOp("/n", b"1", ephemeral=True), PutOp("/n", OURS, 0)]
    assert of_multi(made, {"/n": Seen(OURS, 1, 10, 10, SESSION)}, SESSION, 9) is HAPPENED
    assert of_multi(made, {"/n": None}, SESSION, 9) is NOT_HAPPENED
    again = [DeleteOp("/a"), CreateOp("/a", OURS)]
    assert of_multi(again, {"/a": Seen(OURS, 0, 10, 10, 0)}, SESSION, 9) is HAPPENED
    assert of_multi(again, {"/a": Seen(b"old", 0, 5, 5, 0)}, SESSION, 9) is NOT_HAPPENED


@given(acts, acts, acts, st.integers(0, 9), st.booleans(), st.data())
def test_multis(before, after_a, after_b, position, is_lost, data):
    """Two nodes, changed together; rivals act on each of them, and one does the like."""
    first, second = World(), World()
    shape = data.draw(st.sampled_from(["put+delete", "put+create", "put+put"]))

    def both(bytes_of):
        """The multi of `shape`; False, and nothing done, if it is refused."""
        first.zxid = second.zxid = max(first.zxid, second.zxid)
        a, b = first.node, second.node
        if a is None or a.version != version:
            return False
        if (b is not None) if shape == "put+create" else (b is None):
            return False
        first.put(bytes_of, version)
        match shape:
            case "put+delete":
                second.delete()
            case "put+create":
                second.create(bytes_of)
            case "put+put":
                second.put(bytes_of)
        return True

    for act in ["create", *before]:
        first.rival(act)
        second.zxid = first.zxid
        second.rival(act)
        first.zxid = second.zxid
    version = first.node.version if first.node is not None else 0
    lost_zxid, happened = max(first.zxid, second.zxid), False
    after = [(first, act) for act in after_a] + [(second, act) for act in after_b]
    after.insert(position % (len(after) + 1), (None, b"rival multi"))
    after = data.draw(st.permutations(after))
    if not is_lost:
        after.insert(position % (len(after) + 1), (None, OURS))
    for world, act in after:
        first.zxid = second.zxid = max(first.zxid, second.zxid)
        if world is None:
            done = both(act)
            happened = happened or (done and act == OURS)
        else:
            world.rival(act)
    last = {
        "put+delete": DeleteOp("/b"),
        "put+create": CreateOp("/b", OURS),
        "put+put": PutOp("/b", OURS, ANY_VERSION),
    }
    ops = [PutOp("/a", OURS, version), last[shape]]
    seen = {"/a": first.node, "/b": second.node}
    deleted = "delete" in after_a + after_b or shape == "put+delete"
    match of_multi(ops, seen, SESSION, lost_zxid):
        case Outcome.HAPPENED:
            assert happened
        case Outcome.NOT_HAPPENED:
            assert not happened or deleted
        case Outcome.UNKNOWN:
            pass


def test_checks_in_a_multi_tell_nothing():
    """The node that is checked may be put over at any time, by anybody."""
    theirs = Seen(b"theirs", 5, 1, 90, 0)
    ops = [CheckOp("/id", 0), PutOp("/a", OURS, 0)]
    done = {"/id": theirs, "/a": Seen(OURS, 1, 1, 20, 0)}
    assert of_multi(ops, done, SESSION, 10) is HAPPENED
    untouched = {"/id": theirs, "/a": Seen(b"", 0, 1, 9, 0)}
    assert of_multi(ops, untouched, SESSION, 10) is NOT_HAPPENED
    assert of_multi([CheckOp("/id", 0)], {"/id": theirs}, SESSION, 10) is NOT_HAPPENED
