"""Files of one secret: who may read them, and what is in them."""

import stat

import pytest

from runtime.secret_files import (
    SecretFileError,
    is_others_to_read,
    new_token,
    read_secret,
    write_secret,
)

TOKEN = "a" * 15 + "b"


def test_what_is_written_is_its_owners_only_and_read_again(tmp_path):
    path = tmp_path / "token"
    path.write_text("another")
    path.chmod(0o644)
    write_secret(str(path), TOKEN)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_secret(str(path)) == TOKEN
    assert [each.name for each in tmp_path.iterdir()] == ["token"]


def test_what_others_may_read_is_refused(tmp_path):
    path = tmp_path / "token"
    write_secret(str(path), TOKEN)
    assert not is_others_to_read(str(path))
    for mode in (0o640, 0o604, 0o620, 0o666):
        path.chmod(mode)
        assert is_others_to_read(str(path))
        with pytest.raises(SecretFileError, match="chmod 600"):
            read_secret(str(path))
    assert not is_others_to_read(str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "16 characters"),
        (b"short\n", "16 characters"),
        (b"two words of it all\n", "printable"),
        (b"\xff" * 20, "printable"),
        (b"a" * 5000, "one line"),
    ],
)
def test_what_is_no_token_is_refused_without_being_shown(tmp_path, text, words):
    path = tmp_path / "token"
    path.write_bytes(text)
    path.chmod(0o600)
    with pytest.raises(SecretFileError, match=words) as caught:
        read_secret(str(path))
    assert text.strip() == b"" or text.strip().decode("latin-1") not in str(caught.value)
    with pytest.raises(SecretFileError, match="No such file"):
        read_secret(str(tmp_path / "none"))


def test_two_made_tokens_differ():
    assert len({new_token() for _ in range(100)}) == 100
    assert len(new_token()) == 64
