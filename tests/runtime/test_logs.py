"""Log lines: what is in them, and what a peer cannot put there."""

import io
import logging
import re

import pytest

from runtime.logs import format_value, kv, parse_levels, setup_logging


@pytest.fixture
def lines():
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    stream = io.StringIO()
    setup_logging("info,quiet.room=error", stream)
    yield lambda: stream.getvalue().splitlines()
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("quiet.room").setLevel(logging.NOTSET)


def test_pairs_of_both_styles(lines):
    logger = logging.getLogger("bookie.journal.journal")
    logger.info("journal rolled", kv(file_id=7, path="/a b", clean=True, mark=None))
    logger.info("journal rolled file_id=%d path=%s", 7, "/a")
    logger.debug("not written %s", 1)
    first, second = lines()
    assert re.fullmatch(
        r"time=\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z level=info logger=bookie\.journal\.journal "
        r'event="journal rolled" file_id=7 path="/a b" clean=true mark=none',
        first,
    )
    assert second.endswith('logger=bookie.journal.journal event="journal rolled" file_id=7 path=/a')


def test_levels_by_logger(lines):
    logging.getLogger("quiet.room").warning("no")
    logging.getLogger("quiet.room.deeper").error("yes")
    logging.getLogger("other").info("yes")
    assert [line.split("event=")[1] for line in lines()] == ["yes", "yes"]
    with pytest.raises(ValueError, match="'loud' is none of debug, info"):
        parse_levels("info,broker=loud")


def test_no_value_forges_a_line(lines):
    logger = logging.getLogger("broker")
    evil = "x\ntime=0 level=error\u2028\x9b2K"
    logger.info("client left", kv(client_id=evil))
    logger.info("client left client_id=%s", evil)
    logger.info(evil)
    assert len(lines()) == 3
    for line in lines():
        assert "\x9b" not in line
        assert "\u2028" not in line


def test_traceback_is_indented(lines):
    try:
        {}["missing"]
    except KeyError:
        logging.getLogger("broker").exception("request failed", extra={})
    first, *rest = lines()
    assert 'event="request failed"' in first
    assert len(rest) >= 3
    assert all(line.startswith("\t") for line in rest)


@pytest.mark.parametrize(
    ("value", "text"),
    [(1, "1"), ("", '""'), ("a=b", '"a=b"'), ('q"', '"q\\""'), (1.5, "1.5"), (False, "false")],
)
def test_values(value, text):
    assert format_value(value) == text
