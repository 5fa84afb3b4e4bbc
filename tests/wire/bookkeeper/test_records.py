"""The metadata store's small records: round trips, old forms, and bytes that are none."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wire.bookkeeper import records
from wire.bookkeeper.ledger_metadata import MetadataFormatError

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
int64 = st.integers(-(2**63), 2**63 - 1)
endpoints = st.builds(
    records.Endpoint,
    texts,
    texts,
    st.integers(0, 65535),
    texts,
    st.lists(texts, max_size=2).map(tuple),
    st.lists(texts, max_size=2).map(tuple),
)


@given(
    st.builds(
        records.BookieServiceInfo,
        st.lists(endpoints, min_size=1, max_size=3).map(tuple),
        st.dictionaries(texts, texts, max_size=3),
    )
)
def test_service_info_round_trip(info):
    assert records.parse_service_info(records.encode_service_info(info), "x") == info


def test_bookies_without_service_info():
    info = records.parse_service_info(b"", "host.example:3181")
    assert info.bookie_endpoint == records.Endpoint("bookie", "host.example", 3181)
    for bookie_id in ("88d2da4f", ":3181", "host:", "host:x", "host:70000", "host:²"):
        with pytest.raises(MetadataFormatError, match="no host:port"):
            records.parse_service_info(b"", bookie_id)


def test_a_bookie_may_have_no_endpoint_for_clients():
    http = records.Endpoint("httpserver", "h", 80, "http")
    assert records.BookieServiceInfo((http,)).bookie_endpoint is None


@given(
    st.builds(
        records.UnderreplicatedLedger,
        st.lists(texts, max_size=3).map(tuple),
        st.one_of(st.none(), int64),
    )
)
def test_underreplicated_round_trip(ledger):
    assert records.parse_underreplicated(records.encode_underreplicated(ledger)) == ledger


@given(texts, int64, st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1))
def test_small_records_round_trip(text, time_ms, delay_s, ledger_id):
    assert records.parse_holder(records.encode_holder(text)) == text
    assert records.parse_check_time(records.encode_check_time(time_ms)) == time_ms
    assert records.parse_recovery_delay(records.encode_recovery_delay(delay_s)) == delay_s
    path = records.underreplicated_path(ledger_id)
    assert records.parse_underreplicated_name(path) == ledger_id
    assert len(path.split("/")) == 5


def test_what_need_not_be_said():
    assert records.parse_holder(b"") is None
    assert records.parse_check_time(b"") is None
    assert records.parse_underreplicated(b"") == records.UnderreplicatedLedger(())


def test_instance_ids():
    instance_id = "88d2da4f-c7c3-4081-b1cd-0deae3b4485d"
    assert records.parse_instance_id(instance_id.encode()) == instance_id
    for data in (b"", b"88d2da4f", b"\xff" * 36):
        with pytest.raises(MetadataFormatError, match="INSTANCEID"):
            records.parse_instance_id(data)


@pytest.mark.parametrize(
    ("parse", "data"),
    [
        (lambda data: records.parse_service_info(data, "b"), b"\xff"),
        (lambda data: records.parse_service_info(data, "b"), bytes.fromhex("32030a0162")),
        (
            lambda data: records.parse_service_info(data, "b"),
            bytes.fromhex("320b0a01ff10001a0162220163"),
        ),
        (records.parse_underreplicated, b"\xff"),
        (records.parse_underreplicated, b"replica: 5\n"),
        (records.parse_underreplicated, b"other: 5\n"),
        (records.parse_underreplicated, b'replica: "\\377"\n'),
        (records.parse_holder, b"bookieId"),
        (records.parse_check_time, b"\xff"),
        (records.parse_recovery_delay, b""),
        (records.parse_recovery_delay, b"-5"),
        (lambda data: records.parse_underreplicated_name(data.decode()), b"L13"),
    ],
)
def test_bytes_that_are_none(parse, data):
    with pytest.raises(MetadataFormatError):
        parse(data)


@settings(max_examples=300)
@given(
    st.one_of(
        st.binary(max_size=60),
        st.text('replicatmbookId: {}<>"\\0129x\n', max_size=40).map(str.encode),
    )
)
def test_nothing_but_format_errors(data):
    for parse in (
        lambda data: records.parse_service_info(data, "b"),
        records.parse_instance_id,
        records.parse_underreplicated,
        records.parse_holder,
        records.parse_check_time,
        records.parse_recovery_delay,
    ):
        with contextlib.suppress(MetadataFormatError):
            parse(data)
