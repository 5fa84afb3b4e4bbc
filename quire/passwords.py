"""Passwords that a command is given: in a file that nobody else may read, or on standard input."""

from __future__ import annotations

import os
import stat
import sys

import click

PASSWORD_BYTES_MAX = 4096
STANDARD_INPUT = "-"


def read_password(path: str, option: str) -> str:
    """One line; `-`: of standard input. UsageError, which names `option` and never shows it."""
    try:
        if path == STANDARD_INPUT:
            data = sys.stdin.buffer.read(PASSWORD_BYTES_MAX + 2)
        else:
            with open(path, "rb") as file:
                _check_mode(os.fstat(file.fileno()).st_mode, path, option)
                data = file.read(PASSWORD_BYTES_MAX + 2)
    except OSError as error:
        raise click.UsageError(f"{option} {path}: {error.strerror}") from None
    line = data.removesuffix(b"\n").removesuffix(b"\r")
    try:
        password = line.decode()
    except UnicodeDecodeError:
        raise click.UsageError(f"{option} {path}: not UTF-8") from None
    if not password or len(line) > PASSWORD_BYTES_MAX or "\n" in password or "\0" in password:
        raise click.UsageError(
            f"{option} {path}: expected one line, of 1 to {PASSWORD_BYTES_MAX} bytes"
        )
    return password


def _check_mode(mode: int, path: str, option: str) -> None:
    if stat.S_ISREG(mode) and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise click.UsageError(
            f"{option} {path}: others may read it (mode {stat.S_IMODE(mode):04o}): chmod 600 it"
        )


def write_password(path: str, password: str) -> None:
    """Into a new file, which is on the disk when it returns. OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, f"{password}\n".encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
