"""The exchange in front of dispatch, against a model of it: whatever comes in whatever order, each
frame gets the answer that it must get, nothing is dispatched for whom nobody knows, and what an
earlier login was is never what a later request is served as.

Sans-IO: a real connection and a real front, with time that is moved by hand.
"""

import dataclasses
import heapq
import itertools
import struct
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.api import ConnectionInfo
from broker.connection import KafkaConnection
from broker.security.sasl.front import FRAME_BYTES_MAX, STEPS_MAX, State
from broker.security.sasl.limits import SaslLimits
from broker.security.sasl.oauth.key_source import KeyTimes
from broker.security.sasl.oauth.mechanism import OAuthMechanism
from broker.security.sasl.oauth.message_core import INVALID_TOKEN
from broker.security.sasl.oauth.token_core import TokenRules
from broker.security.sasl.plain import PlainMechanism
from broker.security.sasl.server import SaslServer
from broker.unsent import UnsentAnswers
from runtime.receive import WINDOW_BYTES, ReceiveChunks
from runtime.request_memory import RequestMemory
from runtime.turn import Turn
from tests.broker.security.sasl.conftest import plain
from tests.broker.security.sasl.oauth.conftest import (
    NOW,
    Hand,
    claims,
    jwks,
    message,
    parse_jwks,
    public,
    signed,
)
from tests.turns import check_turn
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode
from wire.kafka.headers import decode_response, encode_request
from wire.kafka.messages import ApiVersionsRequest, MetadataRequest
from wire.kafka.messages.security import SaslAuthenticateRequest, SaslHandshakeRequest

PASSWORDS = {"alice": "wonder", "bob": "builder"}
#: Less than a token that is sent whole, or in pieces.
RECEIVE_BYTES_MAX = 60_000
REAUTH_SECONDS = 20
TOKEN_SECONDS = 30
KEYS = parse_jwks(jwks(public("ed")))


class HandTimers:
    def __init__(self, hand):
        self.hand = hand
        self.heap = []
        self.order = itertools.count()

    def after(self, seconds, function):
        timer = HandTimer(self.hand.now + seconds, function)
        heapq.heappush(self.heap, (timer.deadline, next(self.order), timer))
        return timer

    def advance(self, seconds):
        end = self.hand.now + seconds
        while self.heap and self.heap[0][0] <= end:
            deadline, _, timer = heapq.heappop(self.heap)
            self.hand.now = max(deadline, self.hand.now)
            if timer.function is not None:
                timer.function()
        self.hand.now = end


@dataclasses.dataclass
class HandTimer:
    deadline: float
    function: object

    def cancel(self):
        self.function = None


class Wire:
    """The driver below a connection."""

    peer = "10.0.0.7:1"
    unsent_bytes = 0

    def __init__(self):
        self.written = bytearray()
        self.is_closed = self.is_paused = False

    def write(self, buffers):
        for buffer in buffers:
            self.written += buffer

    def pause_reading(self):
        self.is_paused = True

    def resume_reading(self):
        self.is_paused = False

    def close(self):
        self.is_closed = True


class Source:
    """As KeySource, with what it knows."""

    keys = KEYS
    times = KeyTimes(1, 1, 1)

    def missing(self, kid):
        raise AssertionError(f"{kid} is known")


class Behind:
    """What is behind the login: writes down what came to it, and as whom."""

    is_stopped = False

    def __init__(self, turn):
        self.turn = turn
        self.got = []

    def dispatch(self, connection, frame):
        self.got.append((bytes(frame), str(connection.info.principal)))

    def connection_closed(self, connection):
        pass

    def frame_bytes_max(self, key, version, *, is_known):
        return 1 << 20


class Peer:
    """One client, and the server that it speaks to."""

    def __init__(self):
        self.hand = Hand()
        self.timers = HandTimers(self.hand)
        mechanisms = [
            PlainMechanism(PASSWORDS),
            OAuthMechanism(Source(), TokenRules(skew_seconds=0), self.hand),
        ]
        limits = SaslLimits(RECEIVE_BYTES_MAX, reauthentication_ms={"PLAIN": REAUTH_SECONDS * 1000})
        self.server = SaslServer(
            {each.name: each for each in mechanisms}, limits, self.timers, self.hand
        )
        self.turn = Turn()
        self.behind = Behind(self.turn)
        self.wire = Wire()
        self.memory = RequestMemory(1 << 24)
        self.connection = KafkaConnection(
            self.wire, self.behind, self.memory, ReceiveChunks(),
            ConnectionInfo(id="1", peer_host="10.0.0.7", listener="CLIENTS"), 100 << 20,
            UnsentAnswers(),
        )  # fmt: skip
        self.front = self.server.begin(self.connection, self.behind)
        self.connection.dispatcher = self.front
        self.told = False

    def feed(self, data):
        view = memoryview(data)
        while view and not self.wire.is_closed and not self.wire.is_paused:
            self.turn.begin()
            buffer = self.connection.receive_buffer()
            count = min(len(buffer), len(view))
            buffer[:count] = view[:count]
            view = view[count:]
            self.connection.received(count)
            self.turn.run()
            self._go_on()
        self.end()

    def _go_on(self):
        """As Turn.serve: frames that were put off to a later turn."""
        while self.turn._later:
            self.turn.spent_units = 0
            self.turn._later.popleft()()
            self.turn.run()

    def end(self):
        if self.wire.is_closed and not self.told:
            self.told = True
            self.connection.closed()

    def answers(self):
        """Frames that were written since the last time."""
        frames, data = [], self.wire.written
        while data:
            (size,) = struct.unpack_from(">i", data)
            frames.append(bytes(data[4 : 4 + size]))
            assert len(frames[-1]) == size
            del data[: 4 + size]
        return frames


# -- what a client sends


@dataclasses.dataclass(frozen=True, repr=False)
class Token:
    mechanism: str
    #: None: it is not right. `is_message`: it has the form, at least.
    user: str | None
    data: bytes
    is_message: bool = True

    def __repr__(self):
        return f"Token({self.mechanism}, {self.user}, {self.data[:30]!r})"


def oauth_token(user, seconds):
    return signed(claims(sub=user, iat=NOW - 5, exp=NOW + seconds), "ed")


TOKENS = [
    Token("PLAIN", "alice", plain("alice", "wonder")),
    Token("PLAIN", "bob", plain("bob", "builder")),
    Token("PLAIN", None, plain("alice", "builder")),
    Token("PLAIN", None, plain("alice", "wonder", "bob")),
    Token("OAUTHBEARER", "alice", message(oauth_token("alice", TOKEN_SECONDS))),
    Token("OAUTHBEARER", "bob", message(oauth_token("bob", TOKEN_SECONDS))),
    Token("OAUTHBEARER", None, message(oauth_token("alice", TOKEN_SECONDS)[:-9] + "AAAAAAAAA")),
    Token("OAUTHBEARER", None, message(oauth_token("alice", 10**6), "bob"), is_message=False),
    Token("", None, b"", is_message=False),
    Token("", None, b"\1", is_message=False),
    Token("", None, b"\0" * 70_000, is_message=False),
]


@dataclasses.dataclass(frozen=True, repr=False)
class Frame:
    key: int
    version: int
    #: With the size in front.
    data: bytes
    what: object = None
    is_whole: bool = True

    @property
    def size(self):
        return len(self.data) - 4

    def __repr__(self):
        return f"Frame({self.key}, {self.version}, {self.size} bytes, {self.what})"


SIZES = (0, -1, (1 << 31) - 1, 101 << 20)


def frame(body, version, what=None, client_id="model"):
    return Frame(body.INFO.key, version, encode_request(body, version, 7, client_id), what)


def cut(one, count):
    """It ends too early, and its size says so."""
    data = one.data[4 : max(4, len(one.data) - count)]
    whole = struct.pack(">i", len(data)) + data
    return Frame(one.key, one.version, whole, one.what, is_whole=False)


def other(key, body):
    data = struct.pack(">hhi", key, 0, 7) + body
    return Frame(key, 0, struct.pack(">i", len(data)) + data)


HANDSHAKES = st.builds(
    lambda name, version: frame(SaslHandshakeRequest(name), version, name),
    st.sampled_from(["PLAIN", "OAUTHBEARER", "PLAIN", "OAUTHBEARER", "SCRAM-SHA-256", "plain"]),
    st.sampled_from([1, 1, 0]),
)
AUTHENTICATES = st.builds(
    lambda token, version: frame(SaslAuthenticateRequest(token.data), version, token),
    st.sampled_from(TOKENS),
    st.integers(0, 2),
)
VERSIONS = st.integers(0, 4).map(
    lambda version: frame(
        ApiVersionsRequest(client_software_name="m", client_software_version="1"), version
    )
)
RAW = (
    st.sampled_from(TOKENS)
    .filter(lambda token: token.data)
    .map(lambda token: Frame(-1, 0, struct.pack(">i", len(token.data)) + token.data, token))
)
OTHERS = st.builds(
    other,
    st.sampled_from([0, 1, 3, 19, 22, 37, 58, 83, 9999, -1]),
    st.binary(max_size=30),
)
LONG = st.just(frame(SaslHandshakeRequest("PLAIN"), 1, "PLAIN", "x" * FRAME_BYTES_MAX))
CUT = st.builds(
    cut, HANDSHAKES | AUTHENTICATES.filter(lambda one: one.what.data), st.integers(2, 9)
)
FRAMES = HANDSHAKES | AUTHENTICATES | VERSIONS | RAW | OTHERS | LONG | CUT


# -- what must come of it


@dataclasses.dataclass
class Model:
    """`answers` and `dispatched` are what is expected since the last look."""

    hand: Hand
    state: State = State.FIRST
    mechanism: str | None = None
    user: str | None = None
    refused: bool = False
    steps: int = 0
    last_anew: float | None = None
    ends_at: float | None = None
    late_at: float = 0.0
    #: When a failed login is answered and closed, and how.
    fails_at: float | None = None
    fails_as: int | None = None
    answers: list = dataclasses.field(default_factory=list)
    dispatched: list = dataclasses.field(default_factory=list)

    def __post_init__(self):
        self.late_at = self.hand.now + 10

    @property
    def is_over(self):
        return self.state is State.CLOSED

    def take(self, one):
        if self.is_over:
            return
        if not one.size:
            self.state = State.CLOSED
            return
        if self.state is State.DONE:
            is_anew = one.key == ApiKey.SASL_HANDSHAKE and one.size >= 2
            now = self.hand.now
            if not is_anew or (self.last_anew is not None and now - self.last_anew < 1):
                if self.ends_at is not None and now > self.ends_at:
                    self.state = State.CLOSED
                else:
                    self.dispatched.append((one.data[4:], f"User:{self.user}"))
                return
            self.last_anew, self.state, self.late_at = now, State.HANDSHAKE, now + 10
        if one.size > RECEIVE_BYTES_MAX:
            self.state = State.CLOSED
        elif self.state is State.RAW_TOKENS:
            self.step(one.data[4:], None)
        elif self.state is State.TOKENS:
            if one.key == ApiKey.SASL_AUTHENTICATE and one.is_whole:
                self.step(one.what.data, one.version)
            else:
                self.state = State.CLOSED
        elif one.size > FRAME_BYTES_MAX:
            self.state = State.CLOSED
        elif one.key == ApiKey.API_VERSIONS and self.state is State.FIRST:
            self.state = State.HANDSHAKE
            self.dispatched.append((one.data[4:], "User:ANONYMOUS"))
        elif one.key == ApiKey.SASL_HANDSHAKE and one.is_whole:
            self.handshake(one)
        else:
            self.state = State.CLOSED

    def handshake(self, one):
        is_known = one.what in ("PLAIN", "OAUTHBEARER")
        if is_known and self.user is not None and one.what != self.mechanism:
            self.fail(None)
            return
        error = ErrorCode.NONE if is_known else ErrorCode.UNSUPPORTED_SASL_MECHANISM
        self.answers.append((ApiKey.SASL_HANDSHAKE, one.version, int(error)))
        if not is_known:
            self.fail(None)
            return
        self.mechanism, self.refused, self.steps = one.what, False, 0
        self.state = State.TOKENS if one.version else State.RAW_TOKENS

    def step(self, data, version):
        token = next((each for each in TOKENS if each.data == data), None)
        self.steps += 1
        assert self.steps <= STEPS_MAX
        if self.refused or token is None or token.mechanism != self.mechanism:
            self.fail(version)
            return
        expires_at = NOW + TOKEN_SECONDS if self.mechanism == "OAUTHBEARER" else None
        is_right = token.user is not None and (expires_at is None or self.hand.now < expires_at)
        if not is_right and self.mechanism == "OAUTHBEARER" and token.is_message:
            self.refused = True
            self.answered(version, INVALID_TOKEN, 0)
            return
        if not is_right or (self.user is not None and token.user != self.user):
            self.fail(version)
            return
        self.user, self.state = token.user, State.DONE
        seconds = REAUTH_SECONDS
        if expires_at is not None:
            seconds = max(int(expires_at * 1000) - int(self.hand.now * 1000), 1) / 1000
        self.ends_at = self.hand.now + seconds
        self.answered(version, b"", round(seconds * 1000))

    def answered(self, version, data, lifetime_ms):
        if version is None:
            self.answers.append(data)
        else:
            self.answers.append(
                (ApiKey.SASL_AUTHENTICATE, version, 0, data, lifetime_ms if version else 0)
            )

    def fail(self, version):
        self.state = State.CLOSED
        self.fails_at, self.fails_as = self.hand.now + 0.1, version

    def advance(self, now):
        if self.fails_at is not None and now >= self.fails_at:
            if self.fails_as is not None:
                error = int(ErrorCode.SASL_AUTHENTICATION_FAILED)
                self.answers.append((ApiKey.SASL_AUTHENTICATE, self.fails_as, error, b"", 0))
            self.fails_at = None
        elif self.state not in (State.DONE, State.CLOSED) and now >= self.late_at:
            self.state = State.CLOSED


class FrontMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.connect()

    def connect(self):
        self.peer = Peer()
        self.model = Model(self.peer.hand)

    @precondition(lambda self: self.peer.wire.is_closed)
    @rule()
    def connect_again(self):
        self.connect()

    @precondition(lambda self: not self.peer.wire.is_closed)
    @rule(frames=st.lists(FRAMES, min_size=1, max_size=4), cuts=st.lists(st.integers(1, 90_000)))
    def send(self, frames, cuts):
        """All of them behind each other, in pieces of any size."""
        for one in frames:
            self.model.take(one)
        data = b"".join(one.data for one in frames)
        for count in cuts:
            self.peer.feed(data[:count])
            data = data[count:]
        self.peer.feed(data)
        self.compare()

    @precondition(lambda self: not self.peer.wire.is_closed)
    @rule(token=st.sampled_from(TOKENS[:-3]), version=st.integers(-1, 2))
    def log_in(self, token, version):
        """A request is pipelined behind it."""
        first = frame(SaslHandshakeRequest(token.mechanism), int(version >= 0), token.mechanism)
        if version >= 0:
            second = frame(SaslAuthenticateRequest(token.data), version, token)
        else:
            second = Frame(-1, 0, struct.pack(">i", len(token.data)) + token.data, token)
        self.send([first, second, frame(MetadataRequest(topics=[]), 12)], [])

    @precondition(lambda self: not self.peer.wire.is_closed)
    @rule(size=st.sampled_from(SIZES), more=st.binary(min_size=8, max_size=20))
    def send_a_size_that_is_none(self, size, more):
        """Attack 1."""
        self.peer.feed(struct.pack(">i", size) + more)
        self.model.state = State.CLOSED
        self.compare()

    @precondition(lambda self: not self.peer.wire.is_closed)
    @rule(key=st.sampled_from([17, 18, 36]), size=st.integers(RECEIVE_BYTES_MAX + 1, 90 << 20))
    def begin_a_large_one(self, key, size):
        """Attack 1: none of it is waited for."""
        if self.model.state is State.DONE and key != ApiKey.SASL_HANDSHAKE:
            return
        self.peer.feed(struct.pack(">ihhi", size, key, 1, 7))
        self.model.state = State.CLOSED
        self.compare()

    @precondition(lambda self: not self.peer.wire.is_closed)
    @rule(seconds=st.sampled_from([0.01, 0.1, 0.5, 1, 3, 9.95, 21]))
    def wait(self, seconds):
        self.peer.timers.advance(seconds)
        self.peer.end()
        self.model.advance(self.peer.hand.now)
        self.compare()

    def compare(self):
        peer, model = self.peer, self.model
        got, wanted = peer.answers(), model.answers
        assert len(got) == len(wanted)
        for data, expected in zip(got, wanted, strict=True):
            if isinstance(expected, bytes):
                assert data == expected
                continue
            key, version, error, *rest = expected
            correlation_id, body = decode_response(key, version, data)
            assert (correlation_id, body.error_code) == (7, error)
            if rest:
                assert [body.auth_bytes, body.session_lifetime_ms] == rest
        assert peer.behind.got == model.dispatched
        model.answers, model.dispatched = [], []
        peer.behind.got.clear()
        assert peer.wire.is_closed == (model.is_over and model.fails_at is None)
        assert peer.front._state is model.state or peer.wire.is_closed

    @invariant()
    def little_is_kept(self):
        peer = self.peer
        assert peer.connection._receiver.held_bytes <= WINDOW_BYTES
        assert peer.server.waiting_count <= 1
        if peer.wire.is_closed:
            assert peer.server.waiting_count == 0
            assert peer.memory.unfinished_bytes == peer.memory.requests_bytes == 0
            live = [each for *_, each in peer.timers.heap if each.function is not None]
            assert live == []


@given(
    st.sampled_from([each for each in TOKENS if each.user]),
    st.lists(
        st.sampled_from([None, "again"] * 3 + [0.5, 1, 5, 21, 31, *TOKENS[:-3]]),
        min_size=4,
        max_size=10,
    ),
)
def test_sessions(right, steps):
    """Somebody who is logged in: requests (None), time that goes by, and logins anew."""
    talk = FrontMachine()
    for step in (right, *steps):
        if talk.peer.wire.is_closed:
            break
        if step is None:
            talk.send([frame(MetadataRequest(topics=[]), 12)], [])
        elif isinstance(step, float | int):
            talk.wait(step)
        else:
            talk.log_in(right if step == "again" else step, 2)
        talk.little_is_kept()


def test_a_token_that_is_too_large_closes_whole_or_in_pieces():
    large = frame(SaslAuthenticateRequest(TOKENS[-1].data), 2, TOKENS[-1])
    for cuts in ([], [100], [40_000]):
        talk = FrontMachine()
        talk.send([frame(SaslHandshakeRequest("PLAIN"), 1, "PLAIN")], [])
        talk.send([large], cuts)
        assert talk.peer.wire.is_closed


TestFront = FrontMachine.TestCase
TestFront.settings = settings(stateful_step_count=15, deadline=None)


@pytest.mark.turns
def test_many_who_log_in_at_once_do_not_hold_the_loop():
    """Each step counts, by its bytes; the poller ends a burst once the turn is spent."""
    large = message("e30." + "A" * 50_000 + ".AA")
    for data, most in ((plain("alice", "no"), 20), (large, 2)):
        peers = [Peer() for _ in range(most)]
        turn = peers[0].turn
        for peer in peers:
            peer.behind.turn = turn
        one = frame(SaslHandshakeRequest("OAUTHBEARER"), 1)
        two = frame(SaslAuthenticateRequest(data), 2)
        for peer in peers:
            peer.feed(one.data)
        turn.spent_units = 0
        before = time.thread_time()
        for peer in peers:
            peer.front.dispatch(peer.connection, memoryview(bytearray(two.data[4:])))
        took = time.thread_time() - before
        assert turn.is_spent
        check_turn(took, 0.02)
