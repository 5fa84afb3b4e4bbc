"""Passwords from files: whole, nobody else's to read, and never shown."""

import io
import stat
import sys

import click
import pytest

from quire.passwords import PASSWORD_BYTES_MAX, read_password, write_password


@pytest.fixture
def written(tmp_path):
    def write(data, mode=0o600):
        path = tmp_path / "password"
        path.write_bytes(data)
        path.chmod(mode)
        return str(path)

    return write


@pytest.mark.parametrize(
    ("data", "password"),
    [
        (b"wonder land", "wonder land"),
        (b" wonder \n", " wonder "),
        (b"wonder\r\n", "wonder"),
        ("wönder\n".encode(), "wönder"),
        (b"w" * PASSWORD_BYTES_MAX + b"\n", "w" * PASSWORD_BYTES_MAX),
    ],
)
def test_one_line_is_a_password(written, data, password):
    assert read_password(written(data), "--file") == password


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "one line"),
        (b"\n", "one line"),
        (b"wonder\nland\n", "one line"),
        (b"w" * (PASSWORD_BYTES_MAX + 1), "one line"),
        (b"won\0der", "one line"),
        (b"\xffwonder", "not UTF-8"),
    ],
)
def test_what_is_none_is_refused_and_not_shown(written, data, match):
    with pytest.raises(click.UsageError, match=match) as raised:
        read_password(written(data), "--file")
    assert "wonder" not in str(raised.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_others_must_not_read_it(written, mode):
    with pytest.raises(click.UsageError, match="others may read it"):
        read_password(written(b"wonder", mode), "--file")


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(click.UsageError, match=r"--file .*missing: No such file"):
        read_password(str(tmp_path / "missing"), "--file")


def test_of_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"wonder\n")))
    assert read_password("-", "--file") == "wonder"


def test_what_is_written_is_read_by_nobody_else_and_not_put_over(tmp_path):
    path = tmp_path / "new"
    write_password(str(path), "wonder")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_password(str(path), "--file") == "wonder"
    with pytest.raises(FileExistsError):
        write_password(str(path), "other")
