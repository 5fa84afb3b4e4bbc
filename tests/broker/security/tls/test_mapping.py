"""Rules that make names of subjects. rules.json: rules -> {subject: what Kafka 4.3 made of it}, or
«!» and the exception (compat_tests/java/kafka/Names.java)."""

import json
import time
from pathlib import Path

import pytest

from broker.security.tls.mapping import SUBJECT_CHARACTERS_MAX, Mapping, MappingError

VECTORS = json.loads((Path(__file__).parent / "rules.json").read_text())
#: Rules that Kafka refuses, or fails for every client by: here they end the start.
REFUSED = {
    "!IllegalArgumentException",
    "!IndexOutOfBoundsException",
    "!PatternSyntaxException",
}


@pytest.mark.parametrize("rules", VECTORS)
def test_names_are_kafkas(rules):
    wanted = VECTORS[rules]
    try:
        mapping = Mapping(rules)
    except MappingError:
        # Nobody gets in with it at Kafka's, or it does not start.
        assert not [one for one in wanted.values() if not one.startswith("!")]
        return
    for subject, name in wanted.items():
        assert (mapping.name_of(subject) or "") == ("" if name.startswith("!") else name), subject


def test_there_are_vectors_of_every_kind():
    kinds = {name for names in VECTORS.values() for name in names.values() if name.startswith("!")}
    assert kinds >= REFUSED - {"!PatternSyntaxException"}
    assert "!NoMatchingRule" in kinds


def test_it_replaces_behind_the_whole_match_too():
    assert Mapping("RULE:(.*)/$1@x/").name_of("CN=a") == "CN=a@x@x"
    assert Mapping("RULE:CN=(.*)/$1$4/").name_of("CN=a") == "a$4"


@pytest.mark.parametrize(
    ("rules", "match"),
    [
        ("RULE:CN=.*/$1/", r"\$1, and the pattern has no groups"),
        ("RULE:(?=CN).*/x/", "is no regular expression"),
        ("RULE:(a/x/", "is no regular expression"),
        ("RULE:a/x", "is no rule"),
        ("RULE:a/x/Lower", "text behind the rule"),
        ("RULE:a/$x/", "a group's number"),
        ("nobody", "'nobody' is no rule"),
        (" , ", "nobody would have a name"),
    ],
)
def test_a_bad_rule_says_what_is_wrong(rules, match):
    with pytest.raises(MappingError, match=match):
        Mapping(rules)


def test_a_client_cannot_make_matching_long():
    mapping = Mapping(r"RULE:(.*a)*(.*b)*c/$1/,RULE:((a|aa)+)+$/x/")
    began = time.process_time()
    assert mapping.name_of("CN=" + "a" * (SUBJECT_CHARACTERS_MAX - 3)) is None
    assert time.process_time() - began < 0.05


def test_a_client_cannot_make_replacing_long():
    """Each match starts anew: 4,000 of them took 0.1 s. The next rule is not asked instead."""
    mapping = Mapping("RULE:.*?/x/,DEFAULT")
    began = time.process_time()
    assert mapping.name_of("CN=" + "é" * (SUBJECT_CHARACTERS_MAX - 3)) is None
    assert time.process_time() - began < 0.05
    assert mapping.name_of("ab") == "xaxbx"
