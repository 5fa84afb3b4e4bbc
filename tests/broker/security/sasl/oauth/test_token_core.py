"""Tokens: every attack on their form, signature and claims, by its number, and any bytes at all."""

import json
import time

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from broker.security.sasl.oauth.json_core import decode_base64url
from broker.security.sasl.oauth.message_core import TOKEN_BYTES_MAX
from broker.security.sasl.oauth.token_core import (
    OBJECTS_MAX,
    InvalidTokenError,
    TokenRules,
    UnknownKeyError,
    ValidToken,
    validate,
)
from tests.broker.security.sasl.oauth.conftest import (
    KINDS,
    NOW,
    base64url,
    by_hand,
    claims,
    jwks,
    octets,
    parse_jwks,
    private_key,
    public,
    signed,
)
from tests.turns import check_turn

KEYS = parse_jwks(jwks(*map(public, KINDS)))
RULES = TokenRules()
STRICT = TokenRules("https://issuer", frozenset({"logs", "other"}))


def check(token, rules=RULES, now=NOW, keys=KEYS):
    return validate(token, keys, rules, now * 1000)


def refused(token, match=None, rules=RULES, now=NOW, keys=KEYS):
    with pytest.raises(InvalidTokenError, match=match) as raised:
        check(token, rules, now, keys)
    assert token not in str(raised.value)
    return raised.value


@pytest.mark.parametrize(
    ("kid", "algorithm"), [(kid, each) for kid, (_, all_) in KINDS.items() for each in all_]
)
def test_each_algorithm(kid, algorithm):
    token = signed(claims(), kid, algorithm)
    assert check(token) == ValidToken("alice", (NOW + 600) * 1000)
    head, payload, signature = token.split(".")
    refused(f"{head}.{payload}.{signature[:-6]}AAAAAA", "another signature")
    refused(f"{head}.{payload}.{signature[:8]}", "another signature")
    refused(f"{head}.{base64url(json.dumps(claims(sub='bob')).encode())}.{signature}", "another")


# -- the header


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "", "nOnE", None, 7, ["RS256"]])
def test_20_no_algorithm(algorithm):
    """Attack 20."""
    head = json.dumps({"alg": algorithm, "kid": "rsa"})
    payload = base64url(json.dumps(claims()).encode())
    good = signed(claims()).split(".")[2]
    for signature in ("", base64url(b"x"), good):
        refused(f"{base64url(head.encode())}.{payload}.{signature}")
    refused(by_hand(head, json.dumps(claims()), private_key("rsa"), "RS256"))
    refused(f"{base64url(json.dumps({'kid': 'rsa'}).encode())}.{payload}.{good}", "no alg")


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
def test_21_signed_by_the_public_key_as_a_secret(algorithm):
    """Attack 21."""
    key = private_key("rsa").public_key
    secrets = [
        key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        public("rsa")["n"].encode(),
    ]
    for secret in secrets:
        head = json.dumps({"alg": algorithm, "kid": "rsa"})
        refused(by_hand(head, json.dumps(claims()), octets_of(secret), algorithm), "no key")
        lie = json.dumps({"alg": "RS256", "kid": "rsa"})
        refused(by_hand(lie, json.dumps(claims()), octets_of(secret), algorithm), "another sig")


def octets_of(secret):
    """As joserfc refuses to take a PEM for a secret."""
    key = octets(b"s" * 32)
    return type("Secret", (), {"get_op_key": lambda self, _: secret, "key_type": key.key_type})()


def test_21_a_symmetric_key_of_the_set_is_none():
    secret = octets(b"s" * 32)
    keys = parse_jwks(jwks({**secret.as_dict(private=True), "kid": "oct"}, public("rsa")))
    token = by_hand('{"alg":"HS256","kid":"oct"}', json.dumps(claims()), secret, "HS256")
    assert isinstance(refused(token, keys=keys), UnknownKeyError)


@pytest.mark.parametrize("kid", ["../../x", "", "rsa\n", "RSA", "k" * 1000, "'; drop"])
def test_22_kid_of_nobody(kid):
    """Attack 22."""
    error = refused(signed_as(kid), "no key")
    assert isinstance(error, UnknownKeyError)
    assert error.kid == kid
    assert len(str(error)) < 100


def signed_as(kid, **more):
    head = json.dumps({"alg": "RS256", "kid": kid, **more})
    return by_hand(head, json.dumps(claims()), private_key("rsa"), "RS256")


@pytest.mark.parametrize("kid", ["k" * 1001, "k" * 1_000_000, 7, ["rsa"], {"rsa": 1}, True])
def test_22_what_is_no_kid_asks_for_nothing(kid):
    assert not isinstance(refused(signed_as(kid)), UnknownKeyError)


def test_a_key_of_another_kid_or_type():
    refused(signed(claims(), "rsa", kid="p256"), "no key for its alg")
    refused(by_hand('{"alg":"ES256","kid":"p256"}', "{}", private_key("p384"), "ES384"), "another")
    other = parse_jwks(jwks(public("p256", kid="rsa")))
    refused(signed(claims()), "no key for its alg", keys=other)


def test_without_a_kid_one_key_alone_may_be_meant():
    assert check(signed(claims(), "p256", kid=None)).name == "alice"
    refused(signed(claims(), "ed", kid=None), "or several")


def test_a_key_s_own_alg_is_the_only_one():
    keys = parse_jwks(jwks(public("rsa", alg="RS512")))
    assert check(signed(claims(), "rsa", "RS512"), keys=keys).name == "alice"
    refused(signed(claims(), "rsa", "RS256"), "no key for its alg", keys=keys)


def test_23_keys_that_a_token_brings():
    """Attack 23: they are not looked at, and the signature is checked by the known key."""
    brought = {
        "jwk": public("rsa"),
        "jku": "https://evil.example/keys",
        "x5u": "https://evil.example/certificate",
        "x5c": ["MIIB"],
    }
    only_ed = parse_jwks(jwks(public("ed")))
    for name, value in brought.items():
        refused(signed(claims(), "rsa", **{name: value}), "no key", keys=only_ed)
        refused(signed(claims(), "rsa", kid="ed", **{name: value}), "no key", keys=only_ed)
        assert check(signed(claims(), "rsa", **{name: value})).name == "alice"


def test_extensions_that_must_be_understood():
    refused(signed(claims(), crit=["b64"], b64=False), "crit")
    refused(signed(claims(), crit=[]), "crit")


def test_a_header_is_small():
    assert check(signed(claims(), x5c=["M" * 5000])).name == "alice"
    refused(signed(claims(), x5c=["M" * 7000]), "a very large header")


# -- times


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"exp": None}, "exp: no time"),
        ({"iat": None}, "iat: no time"),
        ({"exp": str(NOW + 600)}, "exp: no time"),
        ({"exp": True}, "exp: no time"),
        ({"exp": []}, "exp: no time"),
        ({"exp": -1}, "exp: no time"),
        ({"exp": 10**15}, "exp: no time"),
        ({"exp": 10**400}, "exp: no time"),
        ({"exp": NOW - 31}, "expired"),
        ({"exp": NOW - 30}, "expired"),
        ({"iat": NOW + 31}, "issued in the future"),
        ({"iat": "1"}, "iat: no time"),
        ({"nbf": NOW + 31}, "not valid yet"),
        ({"nbf": None, "iat": NOW + 20, "exp": NOW + 10}, "expires before"),
        ({"nbf": NOW + 20, "exp": NOW + 10}, "expires before"),
        ({"nbf": "soon"}, "nbf: no time"),
    ],
)
def test_24_times(more, match):
    """Attack 24."""
    error = refused(signed(claims(**more)), match)
    assert error.name == "alice"


@pytest.mark.parametrize("text", ["1e400", "-1e400", "NaN", "Infinity", "null", '{"exp": 1}'])
def test_24_odd_numbers(text):
    refused(signed(f'{{"sub": "alice", "iat": {NOW}, "exp": {text}}}'))
    refused(signed(f'{{"sub": "alice", "exp": {NOW + 9}, "iat": {text}}}'))
    refused(signed(f'{{"sub": "alice", "exp": {NOW + 9}, "iat": {NOW}, "nbf": {text}}}'))


def test_clocks_may_differ():
    assert check(signed(claims(iat=NOW - 60, exp=NOW - 29))).expires_ms == (NOW - 29) * 1000
    assert check(signed(claims(iat=NOW + 30, nbf=NOW + 30))).name == "alice"
    exact = TokenRules(skew_seconds=0)
    refused(signed(claims(exp=NOW)), "expired", exact)
    assert check(signed(claims(exp=NOW + 0.5, iat=NOW)), exact).expires_ms == NOW * 1000 + 500


# -- for whom, by whom, who


@pytest.mark.parametrize(
    ("audience", "match"),
    [
        (None, "for no audience"),
        ("log", "another audience"),
        ("logs ", "another audience"),
        ([], "another audience"),
        (["a", "b"], "another audience"),
        ({"logs": 1}, "aud: no audience"),
        (["logs", 7], "aud: no audience"),
        (7, "aud: no audience"),
    ],
)
def test_25_audience(audience, match):
    """Attack 25."""
    refused(signed(claims(iss="https://issuer", aud=audience)), match, STRICT)


def test_25_audience_that_is_right():
    for audience in ("logs", ["logs"], ["a", "other"]):
        assert check(signed(claims(iss="https://issuer", aud=audience)), STRICT).name == "alice"
    refused(signed(claims(aud="logs")), "another audience")  # nobody said who we are


@pytest.mark.parametrize(
    "issuer", [None, "", "https://issuer/", "http://issuer", ["https://issuer"]]
)
def test_issuer(issuer):
    refused(signed(claims(iss=issuer, aud="logs")), "another issuer", STRICT)


@pytest.mark.parametrize(
    "text",
    [
        '{"sub": "bob", "sub": "alice", %s}',
        '{"sub": "alice", "sub": "alice", %s}',
        '{"sub": "alice", %s, "exp": 99999999999}',
        '{"sub": "alice", %s, "more": {"a": 1, "a": 2}}',
        '{"sub": "alice", %s, "more": [[{"a": 1, "a": 2}]]}',
        '{"sub": "bob", "s\\u0075b": "alice", %s}',
    ],
)
def test_26_claims_that_come_twice(text):
    """Attack 26; of the header, too."""
    times = f'"iat": {NOW}, "exp": {NOW + 9}'
    refused(signed(text % times), "a name comes twice")
    head = '{"alg": "RS256", "kid": "rsa", "alg": "none"}'
    token = by_hand(head, json.dumps(claims()), private_key("rsa"), "RS256")
    refused(token, "a name comes twice")


@pytest.mark.parametrize(
    "name",
    [
        None,
        "",
        " ",
        "admin\n",
        "admin ",
        " admin",
        "\tadmin",
        "ad\0min",
        "ad\x1b[31mmin",
        "ad\u2028min",
        "admin\u00a0",
        "admin\ud800",  # half of a character: no UTF-8, and no message could hold it
        {"sub": "admin"},
        ["admin"],
        7,
        True,
        "x" * 1025,
    ],
)
def test_26_names(name):
    error = refused(signed(claims(sub=name)), "sub: ")
    assert error.name == ""


def test_names_that_are_some():
    for name in ("admin", "Ad Min", "ü", "a,b=c", "x" * 1024):
        assert check(signed(claims(sub=name))).name == name


def test_other_claims_may_have_name_and_scope():
    rules = TokenRules(sub_claim="email", scope_claim="scp")
    assert check(signed(claims(email="a@b", scope=7)), rules).name == "a@b"
    refused(signed(claims()), "email: no name", rules)
    refused(signed(claims(email="a@b", scp=7)), "scp: no scopes", rules)


@pytest.mark.parametrize("scope", ["", " ", [""], ["a", " a"], ["a", 7], 7, {"a": 1}])
def test_scopes_that_are_none(scope):
    refused(signed(claims(scope=scope)), "scope: ")


def test_scopes_that_are_some():
    for scope in ("a", "a b", ["a", "b"], []):
        assert check(signed(claims(scope=scope))).name == "alice"


# -- form


@pytest.mark.parametrize(
    "token",
    [
        "",
        ".",
        "..",
        "a.b",
        "a.b.c.d",
        "a.b.c.d.e",
        "a.b.",
        ".a.b",
        "a b.c.d",
        "e30=.e30.e30",
        "e30+.e30.e30",
        "e30.e30.e30",
        "e.e.e",
        "ÿ.a.b",
        "e30.e30.e30\n",
        f"{base64url(b'[]')}.e30.e30",
        f"{base64url(b'{')}.e30.e30",
        f"{base64url(b'[' * 5000)}.e30.e30",
        f"{base64url(b'{' * 9000)}.e30.e30",
        "a" * (TOKEN_BYTES_MAX + 1),
    ],
)
def test_what_is_no_token(token):
    with pytest.raises(InvalidTokenError):
        check(token)


@pytest.mark.parametrize("payload", [" ", "[]", '"alice"', "{", "[" * 30_000, "9" * 5000, "\udcff"])
def test_what_is_no_payload(payload):
    refused(signed(payload))


def claims_with(more: str) -> str:
    return f'{{"sub": "alice", "iat": {NOW}, "exp": {NOW + 9}, "more": {more}}}'


#: What 23 KB of a payload can be, each as many as fit; objects as many as are let in.
LARGE_CLAIMS = {
    "objects": "[" + ",".join(["{}"] * (OBJECTS_MAX - 1)) + ',"' + "a" * 19_500 + '"]',
    "names": "{" + ",".join(f'"{n:x}":0' for n in range(2_800)) + "}",
    "objects and names": "["
    + ",".join([f'{{"{n:x}":0}}' for n in range(OBJECTS_MAX - 1)] + ["0"] * 6_000)
    + "]",
    "arrays": "[" + ",".join(["[]"] * 7_600) + "]",
    "texts": "[" + ",".join(['""'] * 7_600) + "]",
    "escapes": '"' + "\\u00e9" * 3_800 + '"',
    "numbers": "[" + ",".join(["1e1"] * 5_700) + "]",
    "digits": "[" + ",".join(["9" * 3_700] * 6) + "]",
}


@pytest.mark.turns
@pytest.mark.parametrize("kind", LARGE_CLAIMS)
def test_a_login_is_short(kind):
    """However large a token is, whatever it is made of, and whatever key it is checked by, the loop
    is held for less than 5 ms."""
    text = claims_with(LARGE_CLAIMS[kind])
    for kid, (_, (algorithm, *_)) in KINDS.items():
        token = signed(text, kid, algorithm)
        assert TOKEN_BYTES_MAX - 4000 < len(token) <= TOKEN_BYTES_MAX
        check(token)
        took = []
        for _ in range(7):
            before = time.thread_time()
            check(token)
            took.append(time.thread_time() - before)
        check_turn(min(took), 0.005, kid)


def test_objects_are_counted_and_not_only_bytes():
    check(signed(claims_with("[" + ",".join(["{}"] * (OBJECTS_MAX - 1)) + "]")))
    refused(signed(claims_with("[" + ",".join(["{}"] * OBJECTS_MAX) + "]")))


@given(st.data())
def test_no_changed_token_is_believed(data):
    """Any change of a good token: refused with the error for it, and nothing else."""
    good = signed(claims(), data.draw(st.sampled_from(list(KINDS))))
    at = data.draw(st.integers(0, len(good)))
    cut = data.draw(st.integers(0, 4))
    put = data.draw(st.text("abcXYZ019-_.=é\n", max_size=4))
    changed = good[:at] + put + good[at + cut :]
    if decoded(changed) == decoded(good):
        return
    with pytest.raises(InvalidTokenError):
        check(changed)


def decoded(token):
    """The bits at a signature's end that base64url drops say nothing."""
    signed_part, _, signature = token.rpartition(".")
    try:
        return signed_part, decode_base64url(signature)
    except ValueError:
        return token


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["sub", "exp", "iat", "nbf", "aud", "iss", "scope"]), JSON))
def test_any_claims(more):
    """Whatever is signed: a name and a time of the future, or refused."""
    token = signed(json.dumps({**claims(), **more}))
    try:
        valid = check(token)
    except InvalidTokenError:
        return
    assert valid.name == valid.name.strip() != ""
    assert valid.expires_ms > (NOW - RULES.skew_seconds) * 1000
