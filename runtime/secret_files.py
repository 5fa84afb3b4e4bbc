"""Files that hold one secret: a password or a token, on a line of its own."""

from __future__ import annotations

import os
import random
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runtime.env import Rng

SECRET_BYTES_MAX = 4096
#: Shorter ones could be tried out.
TOKEN_CHARACTERS_MIN = 16
_TOKEN_BITS = 256
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class SecretFileError(ValueError):
    """It cannot be read, others can, or there is no secret in it; says which. Never the secret."""


def is_others_to_read(path: str) -> bool:
    """Whether its group or everybody may read or change it. False if it is not there."""
    try:
        return bool(os.stat(path).st_mode & _OTHERS)
    except OSError:
        return False


def read_secret(path: str, least: int = TOKEN_CHARACTERS_MIN) -> str:
    """The first line's text, of `least` printable ASCII characters or more. SecretFileError."""
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if mode & _OTHERS:
                raise SecretFileError(
                    f"{path}: others than its owner may read it (mode {mode & 0o777:04o}):"
                    " chmod 600"
                )
            data = file.read(SECRET_BYTES_MAX + 1)
    except OSError as error:
        raise SecretFileError(f"{path}: {error.strerror}") from None
    text = data.partition(b"\n")[0].strip().decode("latin-1")
    if len(data) > SECRET_BYTES_MAX or not text.isascii() or not text.isprintable() or " " in text:
        raise SecretFileError(f"{path}: expected one line of printable characters, without blanks")
    if len(text) < least:
        raise SecretFileError(f"{path}: expected {least} characters or more")
    return text


def write_secret(path: str, secret: str) -> None:
    """A new file that is its owner's only, in the place of what was there. OSError."""
    unfinished = f"{path}.tmp"
    if os.path.lexists(unfinished):
        os.unlink(unfinished)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(f"{secret}\n")
    os.replace(unfinished, path)


def new_token(rng: Rng | None = None) -> str:
    """One that cannot be guessed. `rng`: None is the operating system's entropy."""
    bits = (random.SystemRandom() if rng is None else rng).getrandbits(_TOKEN_BITS)
    return f"{bits:0{_TOKEN_BITS // 4}x}"
