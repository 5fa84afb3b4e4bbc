"""What is decided for a client, and what the audit log is told of it."""

import io
import logging

import pytest

from broker.api import ConnectionInfo
from broker.authorization import AclOperation as Op
from broker.authorization import ResourceType as Type
from broker.rights import DENIALS_TOLD_MAX, Rights
from broker.security.acls.authorizer import StandardAuthorizer
from broker.security.acls.index_core import AclIndex
from broker.security.principal import Principal
from runtime.logs import KeyValueFormatter
from tests.broker.rules import Rules
from tests.broker.security.acls.conftest import acl_of

AUDIT = "kafka.authorizer.logger"


def rights(*texts, user="alice", host="10.0.0.1", super_users=(), request="Fetch"):
    index = AclIndex(super_users)
    for text in texts:
        index.add(acl_of(text))
    connection = ConnectionInfo("1", host, "CLIENTS", principal=Principal("User", user))
    return Rights(StandardAuthorizer(index, Rules()), connection, request)


@pytest.fixture
def lines():
    """What the audit log says, as it is written."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(KeyValueFormatter())
    logger = logging.getLogger(AUDIT)
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield lambda: [line.partition(f"logger={AUDIT} ")[2] for line in stream.getvalue().splitlines()]
    logger.removeHandler(handler)
    logger.setLevel(before)


def test_a_refusal_says_who_what_where_and_by_which_rule(lines):
    mine = rights("-alice READ TOPIC secret*")
    assert not mine.allows(Op.READ, Type.TOPIC, "secret-plan")
    assert not mine.allows(Op.WRITE, Type.TRANSACTIONAL_ID, "x")
    assert lines() == [
        "event=Denied principal=User:alice operation=READ host=10.0.0.1"
        " resource=Topic:LITERAL:secret-plan request=Fetch"
        ' rule="StandardAcl(resourceType=TOPIC, resourceName=secret, patternType=PREFIXED,'
        ' principal=User:alice, host=*, operation=READ, permissionType=DENY)"',
        "event=Denied principal=User:alice operation=WRITE host=10.0.0.1"
        " resource=TransactionalId:LITERAL:x request=Fetch rule=DefaultDeny",
    ]


def test_what_is_allowed_is_told_at_debug(lines):
    mine = rights("alice READ TOPIC t")
    assert mine.allows(Op.READ, Type.TOPIC, "t")
    assert lines() == []
    logging.getLogger(AUDIT).setLevel(logging.DEBUG)
    assert mine.allows(Op.READ, Type.TOPIC, "t")
    assert rights(user="root", super_users=["User:root"]).allows(Op.ALL, Type.GROUP, "g")
    assert [line.partition(" ")[0] for line in lines()] == ["event=Allowed"] * 2
    assert lines()[1].endswith("rule=SuperUser")


def test_names_forge_no_line(lines):
    """Attack 61."""
    name = 'x"\ntime=2026 level=info logger=kafka.authorizer.logger event=Allowed principal=a\r\x1b'
    mine = rights(user="eve\nlevel=error")
    assert not mine.allows(Op.READ, Type.TOPIC, name)
    [line] = lines()
    assert "\\n" in line
    assert line.startswith("event=Denied ")
    assert not {"\r", "\x1b"} & set(line)


def test_a_request_for_very_many_does_not_fill_the_log(lines):
    mine = rights()
    for number in range(3 * DENIALS_TOLD_MAX):
        assert not mine.allows(Op.READ, Type.TOPIC, f"t{number}")
    assert len(lines()) == DENIALS_TOLD_MAX


def test_a_name_that_nobody_could_have_does_not_fill_the_log(lines):
    """Of a hundred names of 32 KB in one request 19 MB came, and held the loop for 0.2 s."""
    mine = rights()
    assert not mine.allows(Op.READ, Type.TOPIC, "\x7f" * 32_000)
    assert not mine.allows(Op.READ, Type.TOPIC, "t" * 249)
    first, second = lines()
    assert "(32000 characters)" in first
    assert len(first) < 2000
    assert "Topic:LITERAL:" + "t" * 249 + " " in second


def test_what_the_client_did_not_name_is_no_denial(lines):
    mine = rights("alice DESCRIBE TOPIC t")
    assert mine.describes_topic("t")
    assert not mine.describes_topic("u")
    assert mine.operations(Type.TOPIC, "t") == 1 << Op.DESCRIBE
    assert mine.operations(Type.TOPIC, "u") == 0
    assert lines() == []


def test_a_super_user_is_one_before_and_after_a_denial():
    """Attack 35."""
    denied = "-root ALL TOPIC *"
    root = rights(denied, user="root", super_users=["User:root"])
    assert root.allows(Op.READ, Type.TOPIC, "t")
    assert not rights(denied, "root READ TOPIC t", user="root").allows(Op.READ, Type.TOPIC, "t")


@pytest.mark.parametrize("user", ["Root", "root ", " root", "*", "User:root", "root\0"])
def test_a_super_user_is_spelled_so(user):
    """Attack 37: and a login as «*» is nobody's wildcard."""
    mine = rights("* READ TOPIC t", user=user, super_users=["User:root"])
    assert not mine.allows(Op.WRITE, Type.TOPIC, "t")
    assert mine.allows(Op.READ, Type.TOPIC, "t"), "everybody may"
    assert not rights("bob READ TOPIC t", user=user).allows(Op.READ, Type.TOPIC, "t")


@pytest.mark.parametrize(
    ("host", "may"),
    [
        ("10.0.0.1", True),
        ("::ffff:10.0.0.1", True),
        ("010.0.0.1", False),
        ("10.0.0.10", False),
        ("10.0.0.1.example.org", False),
        ("::1", False),
    ],
)
def test_hosts_are_addresses(host, may):
    """Attack 36."""
    mine = rights("alice@10.0.0.1 READ TOPIC t", host=host)
    assert mine.allows(Op.READ, Type.TOPIC, "t") is may


def test_patterns_that_look_like_others():
    """Attack 34: a topic of the name «*», the prefix «*», and a prefix below a denial."""
    mine = rights("alice READ TOPIC **", "alice READ TOPIC t*", "-alice READ TOPIC t-secret*")
    assert mine.allows(Op.READ, Type.TOPIC, "*x"), "PREFIXED «*» is the character"
    assert not mine.allows(Op.READ, Type.TOPIC, "x")
    assert mine.allows(Op.READ, Type.TOPIC, "t-open")
    assert not mine.allows(Op.READ, Type.TOPIC, "t-secret-1")
    assert rights("alice READ TOPIC *").allows(Op.READ, Type.TOPIC, "anything")


def test_a_change_counts_for_the_next_question():
    index = AclIndex()
    connection = ConnectionInfo("1", "::1", "X", principal=Principal("User", "alice"))
    mine = Rights(StandardAuthorizer(index, Rules()), connection, "Fetch")
    acl = acl_of("alice READ TOPIC t")
    before = mine.state
    assert not mine.allows(Op.READ, Type.TOPIC, "t")
    index.add(acl)
    assert mine.allows(Op.READ, Type.TOPIC, "t")
    assert mine.state != before
    index.remove(acl)
    assert not mine.allows(Op.READ, Type.TOPIC, "t")
