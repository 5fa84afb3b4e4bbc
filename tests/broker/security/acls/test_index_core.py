"""The index of ACLs: against the rules one by one, and the cases of Kafka's StandardAuthorizer."""

import time
from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.authorization import AclOperation as Op
from broker.authorization import Extent
from broker.authorization import ResourceType as Type
from broker.security.acls.bindings import AclBinding, AclFilter, PatternType, Permission
from broker.security.acls.decisions_core import CHARACTERS_MAX, Decisions
from broker.security.acls.index_core import AclIndex, Reason
from broker.security.principal import Principal
from tests.broker.security.acls.naive import Naive

LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = Permission.ALLOW, Permission.DENY
TOPIC, GROUP = Type.TOPIC, Type.GROUP
HOST = "10.0.0.1"


def acl(name, who="User:bob", operation=Op.READ, permission=ALLOW, **more):
    return AclBinding(
        more.get("type", TOPIC),
        name,
        more.get("pattern", LITERAL),
        who,
        more.get("host", "*"),
        operation,
        permission,
    )


def index_of(*acls, super_users=(), everyone=False):
    index = AclIndex(super_users, allow_everyone_if_no_acl_found=everyone)
    for each in acls:
        assert index.add(each)
    return index


def may(index, name, who="User:bob", operation=Op.READ, kind=TOPIC, host=HOST):
    return index.decide(who, host, operation, kind, name).is_allowed


# -- against the rules one by one -----------------------------------------------------------------

NAMES = st.sampled_from(["*", "a", "ab", "abc", "b", "h", "hardcode", "**", "*a"])
WHO = st.sampled_from(["User:bob", "User:eve", "User:*", "Group:bob", "User:BOB", "User:bob "])
HOSTS = st.sampled_from(["10.0.0.1", "::ffff:10.0.0.1", "010.0.0.1", "::1", "0:0:0:0:0:0:0:1", "h"])
ACLS = st.builds(
    AclBinding,
    st.sampled_from([TOPIC, GROUP]),
    NAMES,
    st.sampled_from([LITERAL, PREFIXED]),
    WHO,
    st.one_of(st.just("*"), HOSTS),
    st.sampled_from(list(Op)),
    st.sampled_from(list(Permission)),
)
ASKED = st.tuples(WHO, HOSTS, st.sampled_from(list(Op)), st.sampled_from([TOPIC, GROUP]))
#: True adds, False removes.
CHANGES = st.lists(st.tuples(st.booleans(), ACLS), max_size=14)


@settings(max_examples=600, deadline=None)
@given(CHANGES, ASKED, NAMES, st.booleans(), st.sampled_from([(), ("User:bob",), ("User:*",)]))
def test_it_decides_as_the_rules_do(changes, asked, name, everyone, super_users):
    index = AclIndex(super_users, allow_everyone_if_no_acl_found=everyone)
    naive = Naive(super_users, allow_everyone=everyone)
    for is_added, one in changes:
        is_there = one in naive.acls
        before = index.generation
        if is_added:
            assert index.add(one) is not is_there
            naive.acls += [] if is_there else [one]
        else:
            assert index.remove(one) is is_there
            naive.acls = [each for each in naive.acls if each != one]
        assert (index.generation != before) == (is_added != is_there)
        assert (one in index, len(index)) == (one in naive.acls, len(naive.acls))
    assert index.decide(*asked, name).is_allowed == naive.decide(*asked, name)
    assert index.decide_any(*asked).is_allowed == naive.decide_any(*asked)
    assert index.decide_all(*asked).is_allowed == naive.decide_all(*asked)


@settings(max_examples=300, deadline=None)
@given(st.lists(ACLS, max_size=10, unique=True), st.data())
def test_nothing_is_left_of_what_was_removed(acls, data):
    index = index_of(*acls)
    for each in data.draw(st.permutations(acls)):
        assert index.remove(each)
    for of_type in index._types.values():
        assert not any(getattr(of_type, each.name) for each in fields(of_type))
    assert len(index) == 0


FILTERS = st.builds(
    AclFilter,
    st.sampled_from([1, TOPIC, GROUP, 99]),
    st.one_of(st.none(), NAMES),
    st.sampled_from([1, 2, LITERAL, PREFIXED, 99]),
    st.one_of(st.none(), WHO),
    st.one_of(st.none(), st.just("*"), HOSTS),
    st.sampled_from([1, Op.READ, Op.ALL, 99]),
    st.sampled_from([1, ALLOW, DENY, 99]),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(ACLS, max_size=10, unique=True), FILTERS)
def test_what_a_filter_matches_is_among_the_candidates(acls, wanted):
    found = [each for each in index_of(*acls).candidates(wanted) if wanted.matches(each)]
    assert sorted(found) == sorted(each for each in acls if wanted.matches(each))


# -- StandardAuthorizer's cases -------------------------------------------------------------------


@pytest.mark.parametrize("operation", [Op.DESCRIBE, Op.READ, Op.WRITE, Op.DELETE, Op.ALTER, Op.ALL])
def test_what_allows_describing(operation):
    assert may(index_of(acl("t", operation=operation)), "t", operation=Op.DESCRIBE)


@pytest.mark.parametrize("operation", [Op.CREATE, Op.DESCRIBE_CONFIGS, Op.ALTER_CONFIGS])
def test_what_does_not(operation):
    assert not may(index_of(acl("t", operation=operation)), "t", operation=Op.DESCRIBE)


@pytest.mark.parametrize("operation", [Op.READ, Op.WRITE, Op.DELETE, Op.ALTER])
def test_what_is_implied_is_not_denied_with_it(operation):
    allowed = acl("t", operation=Op.DESCRIBE)
    index = index_of(allowed, acl("t", operation=operation, permission=DENY))
    assert may(index, "t", operation=Op.DESCRIBE)
    assert not may(index, "t", operation=operation)
    index.add(acl("t", operation=Op.DESCRIBE, permission=DENY))
    assert not may(index, "t", operation=Op.DESCRIBE)


def test_configs_are_described_by_those_who_alter_them():
    index = index_of(acl("t", operation=Op.ALTER_CONFIGS))
    assert may(index, "t", operation=Op.DESCRIBE_CONFIGS)
    assert not may(index, "t", operation=Op.DESCRIBE)
    index.add(acl("t", operation=Op.ALTER_CONFIGS, permission=DENY))
    assert not may(index, "t", operation=Op.ALTER_CONFIGS)
    assert may(index, "t", operation=Op.DESCRIBE_CONFIGS)


def test_a_denial_of_all_counts_before_prefixes_that_allow():
    index = index_of(
        acl("foo", "User:alice", Op.ALL, DENY),
        acl("foo", "User:alice", pattern=PREFIXED),
        acl("foo", "User:*", Op.ALL, DENY),
        acl("foo", "User:*", Op.DESCRIBE, pattern=PREFIXED),
    )
    for who in ("User:alice", "User:bob"):
        for operation in (Op.WRITE, Op.READ, Op.DESCRIBE):
            assert not may(index, "foo", who, operation)
        assert may(index, "foobar", who, Op.DESCRIBE)
    assert may(index, "foobar", "User:alice")
    assert not may(index, "foobar", "User:bob")


def test_all_operations_of_one_topic_a_prefix_and_a_literal():
    index = index_of(
        acl("foo", "User:*", Op.ALL),
        acl("bar", "User:alice", Op.ALL, pattern=PREFIXED),
        acl("baz", "User:bob", Op.ALL),
    )
    asked = [("foo", Op.WRITE), ("bar", Op.DESCRIBE_CONFIGS), ("barn", Op.READ), ("baz", Op.READ)]
    expected = {
        "User:alice": [True, True, True, False],
        "User:bob": [True, False, False, True],
        "User:mallory": [True, False, False, False],
    }
    for who, answers in expected.items():
        assert [may(index, name, who, operation) for name, operation in asked] == answers


def test_prefixes_of_several_lengths():
    index = index_of(
        acl("fooa", "User:alice", Op.ALL, pattern=PREFIXED),
        acl("foobar", "User:bob", Op.ALL),
        acl("f", "User:bob", Op.ALL, pattern=PREFIXED),
    )
    assert [may(index, name) for name in ("foobarr", "goobar", "fooa", "f", "")] == [
        True, False, True, True, False,
    ]  # fmt: skip
    assert [may(index, name, "User:alice") for name in ("fooa", "foob", "bar")] == [
        True, False, False,
    ]  # fmt: skip


def test_many_acls_together():
    index = index_of(
        acl("green2", "User:*"),
        acl("green", pattern=PREFIXED),
        acl("betamax4"),
        acl("beta", "User:*", pattern=PREFIXED),
        acl("alpha", "User:*", pattern=PREFIXED),
        acl("alp", permission=DENY, pattern=PREFIXED),
        acl("*", operation=Op.WRITE, type=GROUP),
        acl("wheel", "User:*", Op.WRITE, DENY, type=GROUP),
    )
    assert may(index, "green1")
    assert not may(index, "green1", "User:eve")
    assert not may(index, "wheel", operation=Op.WRITE, kind=GROUP)
    assert may(index, "arbitrary", operation=Op.WRITE, kind=GROUP)
    assert not may(index, "alpha")
    assert may(index, "alpha", "User:eve")
    assert not may(index, "ala")
    # A pattern of topics says nothing of groups.
    assert not may(index, "green1", kind=GROUP)


def test_everyone_only_where_no_acl_is_about_the_resource():
    index = index_of(acl("topic1", "User:Alice"), everyone=True)
    assert not may(index, "topic1")
    assert may(index, "topic2")
    assert may(index, "topic1", kind=GROUP)
    assert not may(index_of(acl("topic1", "User:Alice")), "topic2")
    # Whoever it names, and whatever operation.
    index = index_of(acl("t", "User:x", Op.DELETE, DENY, pattern=PREFIXED), everyone=True)
    assert not may(index, "topic2")
    index.remove(acl("t", "User:x", Op.DELETE, DENY, pattern=PREFIXED))
    assert may(index, "topic2")


def test_the_rule_is_told():
    denied = acl("alp", permission=DENY, pattern=PREFIXED)
    index = index_of(denied, acl("t"), super_users=["User:root"])
    assert index.decide("User:bob", HOST, Op.READ, TOPIC, "alpha").rule == denied
    assert denied.describe() == (
        "StandardAcl(resourceType=TOPIC, resourceName=alp, patternType=PREFIXED,"
        " principal=User:bob, host=*, operation=READ, permissionType=DENY)"
    )
    assert index.decide("User:bob", HOST, Op.DESCRIBE, TOPIC, "t").rule == acl("t")
    assert index.decide("User:root", HOST, Op.READ, TOPIC, "t").rule is Reason.SUPER_USER
    assert index.decide("User:eve", HOST, Op.READ, TOPIC, "t").rule is Reason.DEFAULT_DENY
    open_index = index_of(everyone=True)
    assert open_index.decide("User:eve", HOST, Op.READ, TOPIC, "t").rule is Reason.DEFAULT_ALLOW


def test_some_topic_may_be_written_to():
    def some(*acls, **options):
        return index_of(*acls, **options).decide_any("User:bob", HOST, Op.WRITE, TOPIC).is_allowed

    def write(name, permission=ALLOW, pattern=LITERAL, **more):
        return acl(name, operation=Op.WRITE, permission=permission, pattern=pattern, **more)

    assert not some()
    assert some(everyone=True)
    assert some(super_users=["User:bob"])
    assert some(write("t"))
    assert not some(acl("t", operation=Op.READ))
    assert some(acl("t", operation=Op.ALL))
    assert not some(write("t"), write("t", DENY))
    assert not some(write("t"), write("t", DENY, PREFIXED))
    assert some(write("t", pattern=PREFIXED), write("t", DENY))
    assert not some(write("ta", pattern=PREFIXED), write("t", DENY, PREFIXED))
    assert some(write("t", pattern=PREFIXED), write("ta", DENY, PREFIXED))
    assert not some(write("t"), write("*", DENY))
    assert some(write("t"), write("*", DENY, PREFIXED))
    assert not some(write("t", host="10.0.0.2"))
    assert not some(write("t", type=GROUP))


# -- attacks --------------------------------------------------------------------------------------


def test_attack_34_a_topic_named_star_a_prefix_star_and_an_empty_prefix():
    index = index_of(acl("*", pattern=PREFIXED))
    assert may(index, "*")
    assert may(index, "*a")
    assert not may(index, "a"), "of a prefix the star is a character"
    index = index_of(acl("*"), acl("secret", permission=DENY, pattern=PREFIXED))
    assert may(index, "*")
    assert may(index, "a")
    assert not may(index, "secret.x"), "a prefix below a star that allows"
    index = index_of(acl("a", pattern=PREFIXED), acl("ab", permission=DENY, pattern=PREFIXED))
    assert [may(index, name) for name in ("a", "ac", "ab", "abc")] == [True, True, False, False]
    assert may(index_of(acl("", pattern=PREFIXED)), "x"), "none is stored; it would be all"


def test_attack_35_a_denial_before_and_after_a_super_user():
    denial = acl("*", "User:root", Op.ALL, DENY)
    index = index_of(denial, super_users=["User:root"])
    assert may(index, "t", "User:root")
    assert not may(index, "t", "User:roo")
    assert not may(index_of(denial), "t", "User:root")
    everybody = acl("*", "User:*", Op.ALL, DENY)
    assert may(index_of(everybody, super_users=["User:root"]), "t", "User:root")


@pytest.mark.parametrize(
    ("peer", "host", "is_same"),
    [
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("::ffff:a00:1", "10.0.0.1", True),
        ("10.0.0.1", "010.0.0.1", False),
        ("10.0.0.1", "8.0.0.1", False),
        ("10.0.0.1", "10.0.0.0/8", False),
        ("10.0.0.1", "10.0.0.*", False),
        ("127.0.0.1", "localhost", False),
        ("10.0.0.1", "1.0.0.10.in-addr.arpa", False),
        ("10.0.0.1", " 10.0.0.1", False),
        ("10.0.0.1", "167772161", False),
        ("::1", "0:0:0:0:0:0:0:1", True),
        ("fe80::1%eth0", "fe80::1", False),
        ("2001:DB8::1", "2001:db8:0:0::1", True),
    ],
)
def test_attack_36_hosts_are_addresses_and_nothing_else(peer, host, is_same):
    assert may(index_of(acl("t", host=host)), "t", host=peer) is is_same
    denied = index_of(acl("t"), acl("t", permission=DENY, host=host))
    assert may(denied, "t", host=peer) is not is_same


@pytest.mark.parametrize(
    "who",
    ["user:x", "User:x ", " User:x", "User:X", "Group:x", "User:*", "User:", "x", "User:x,CN=y"],
)
def test_attack_37_principals_that_look_alike_are_others(who):
    index = index_of(acl("t", "User:x"), super_users=["User:root"])
    assert may(index, "t", "User:x")
    assert not may(index, "t", who)
    assert not may(index, "u", who.replace("x", "root").replace("X", "ROOT") + " ")


def test_attack_37_a_login_called_star_has_what_everybody_has():
    index = index_of(acl("t", "User:x"), acl("u", "User:*"), acl("v", "User:*", permission=DENY))
    assert not may(index, "t", "User:*")
    assert may(index, "u", "User:*")
    assert not may(index, "v", "User:*")
    assert not may(index_of(acl("t", "Group:*")), "t", "Group:x"), "of users only"


def test_attack_37_distinguished_names_are_compared_whole():
    name = r"User:CN=a\,b,OU=x\\y,O=z"
    index = index_of(acl("t", name))
    assert may(index, "t", name)
    for other in (r"User:CN=a,b,OU=x\\y,O=z", r"User:CN=a\,b,OU=x\y,O=z", "User:CN=a"):
        assert not may(index, "t", other)


# -- what is remembered ---------------------------------------------------------------------------

BOB = Principal("User", "bob")


def test_a_change_counts_at_once():
    index = index_of()
    decisions = Decisions(index)
    asked = (BOB, HOST, Op.READ, TOPIC)
    assert not decisions.of(*asked, "t").is_allowed
    assert not decisions.of(*asked, Extent.ANY).is_allowed
    index.add(acl("t"))
    assert decisions.of(*asked, "t").is_allowed
    assert decisions.of(*asked, Extent.ANY).is_allowed
    assert not decisions.of(*asked, Extent.ALL).is_allowed
    assert decisions.of(*asked, "t") is decisions.of(*asked, "t")
    index.remove(acl("t"))
    assert not decisions.of(*asked, "t").is_allowed
    index.add(acl("*"))
    assert decisions.of(*asked, Extent.ALL).is_allowed


@pytest.mark.parametrize(
    ("place", "other"),
    [
        (0, Principal("User", "eve")),
        (0, Principal("Group", "bob")),
        (1, "10.0.0.2"),
        (2, Op.WRITE),
        (3, GROUP),
        (4, "u"),
        (4, Extent.ALL),
    ],
)
def test_what_is_remembered_is_of_who_asked_from_where_and_for_what(place, other):
    allowed = [BOB, HOST, Op.READ, TOPIC, "t"]
    refused = [*allowed[:place], other, *allowed[place + 1 :]]
    for first, second in ((allowed, refused), (refused, allowed)):
        decisions = Decisions(index_of(acl("t", host=HOST)))
        for asked in (first, second, first):
            assert decisions.of(*asked).is_allowed == (asked is allowed)


def test_what_is_remembered_is_bounded_in_number_and_by_names():
    decisions = Decisions(index_of(acl("t", pattern=PREFIXED)), decisions_max=10)
    for number in range(1000):
        assert decisions.of(BOB, HOST, Op.READ, TOPIC, f"t{number}").is_allowed
        assert len(decisions) <= 10
    before = len(decisions)
    assert decisions.of(BOB, HOST, Op.READ, TOPIC, "t" * (CHARACTERS_MAX + 1)).is_allowed
    assert len(decisions) == before


def test_a_group_called_star_is_not_all_groups():
    decisions = Decisions(index_of(acl("*", pattern=PREFIXED, type=GROUP)))
    assert decisions.of(BOB, HOST, Op.READ, GROUP, "*").is_allowed
    assert not decisions.of(BOB, HOST, Op.READ, GROUP, Extent.ALL).is_allowed


def test_whether_some_topic_may_be_written_to_does_not_take_longer_with_many_acls():
    """With 100,000 and one denial it took 0.15 s, again after each change of an ACL."""
    index = index_of(*(acl(f"t{number}") for number in range(20_000)))
    index.add(acl("t", operation=Op.WRITE, permission=DENY))
    for number in range(20_000):
        index.add(acl(f"w{number}", operation=Op.WRITE))
    began = time.thread_time()
    assert index.decide_any("User:bob", HOST, Op.WRITE, TOPIC).is_allowed
    assert time.thread_time() - began < 0.005
