"""The cookie: a bookie's identity, kept in each of its directories (invariants K).

An empty disk must not come back as a bookie that answers «no such entry» for all it once had, and
a disk of another bookie or cluster must not be served. So all directories have the same cookie, or
none has one and none has anything else: then it is a new bookie.

The text is BookKeeper's (Cookie.java): a version line, then a protobuf text.
"""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING

from bookie.errors import BookieStartError
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Collection

    from runtime.disk import Disk

FILE_NAME = "VERSION"
LOCK_NAME = "LOCK"
VERSION = 5
_FIELD = re.compile(r'^([A-Za-z]+): "((?:[^"\\]|\\.)*)"$')
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", '"': '"', "\\": "\\", "'": "'"}


@dataclass(frozen=True, slots=True)
class Cookie:
    bookie_id: str
    journal_directory: str
    ledger_directory: str
    instance_id: str
    more_ledger_directories: tuple[str, ...] = ()

    @property
    def ledger_directories(self) -> tuple[str, ...]:
        return (self.ledger_directory, *self.more_ledger_directories)

    def encode(self) -> str:
        fields = [
            ("bookieHost", self.bookie_id),
            ("journalDir", self.journal_directory),
            (
                "ledgerDirs",
                "\t".join((str(len(self.ledger_directories)), *self.ledger_directories)),
            ),
        ]
        if self.instance_id:
            fields.append(("instanceId", self.instance_id))
        lines = [f'{name}: "{_escape(value)}"' for name, value in fields]
        return "\n".join([str(VERSION), *lines, ""])


def parse_cookie(text: str) -> Cookie:
    """ValueError says what is wrong."""
    version, _, rest = text.partition("\n")
    if version.strip() != str(VERSION):
        raise ValueError(f"cookie version {version!r}, known is {VERSION}")
    fields: dict[str, str] = {}
    for number, line in enumerate(rest.splitlines(), 2):
        if not line.strip():
            continue
        match = _FIELD.match(line.strip())
        if match is None:
            raise ValueError(f"line {number} is no field: {line!r}")
        fields[match[1]] = _unescape(match[2])
    missing = [name for name in ("bookieHost", "journalDir", "ledgerDirs") if name not in fields]
    if missing:
        raise ValueError(f"no {', '.join(missing)}")
    count, _, rest = fields["ledgerDirs"].partition("\t")
    directories = [rest] if count == "1" else rest.split("\t")
    if count != str(len(directories)):
        raise ValueError(f"ledgerDirs says {count} directories, and names {len(directories)}")
    return Cookie(
        fields["bookieHost"],
        fields["journalDir"],
        directories[0],
        fields.get("instanceId", ""),
        tuple(directories[1:]),
    )


def check_cookies(
    disk: Disk, expected: Cookie, directories: list[str], *, new: Collection[str] = ()
) -> bool:
    """Compares the cookies in `directories` (each the `current` of a configured one) with the
    configuration; writes them if this is a new bookie, and returns whether it is. BookieStartError.

    `new` (allowStorageExpansion): directories that may be missing in the cookies, and then must be
    empty. When all is well every cookie names them; a crash in between is no harm, for then some
    cookies name fewer still."""
    present = [path for path in directories if disk.exists(f"{path}/{FILE_NAME}")]
    outdated = [path for path in present if _check_one(disk, expected, path, bool(new))]
    known = {each.rstrip("/") for path in present for each in _read(disk, path).ledger_directories}
    added = [path for path in new if path not in present and posixpath.dirname(path) not in known]
    for path in added:
        if any(map(_is_data, disk.list(path))):
            raise BookieStartError(
                f"{path} is to be added to the ledger directories, but it is not empty"
            )
    absent = [path for path in directories if path not in present and path not in added]
    # A crash may have come between the cookies of a new bookie: a directory that has nothing at
    # all next to one that has only a cookie is new too.
    used = [path for path in directories if any(map(_is_data, disk.list(path)))]
    if absent and used:
        raise BookieStartError(
            f"{absent[0]}/{FILE_NAME} is missing, but {used[0]} has data: is a disk empty or not "
            "mounted? Refusing to start as if nothing had ever been stored there"
        )
    for path in (*absent, *added, *outdated):
        disk.write_file(f"{path}/{FILE_NAME}", expected.encode().encode())
    return not used


def _is_data(name: str) -> bool:
    # An unfinished cookie has the cookie's name in its own.
    return name != LOCK_NAME and not name.startswith(FILE_NAME)


def _read(disk: Disk, directory: str) -> Cookie:
    path = f"{directory}/{FILE_NAME}"
    file = disk.open(path)
    try:
        return parse_cookie(file.pread(file.size(), 0).decode())
    except ValueError as error:
        raise BookieStartError(f"{path}: {error}") from error
    finally:
        file.close()


def _check_one(disk: Disk, expected: Cookie, directory: str, may_grow: bool) -> bool:
    """Whether the cookie names fewer directories, which `may_grow` allows. BookieStartError."""
    path = f"{directory}/{FILE_NAME}"
    found = _read(disk, directory)
    grows = set(found.more_ledger_directories) < set(expected.more_ledger_directories)
    for name in (
        "bookie_id",
        "instance_id",
        "journal_directory",
        "ledger_directory",
        "more_ledger_directories",
    ):
        ours, theirs = getattr(expected, name), getattr(found, name)
        if name == "more_ledger_directories" and grows and may_grow:
            continue
        if ours != theirs:
            raise BookieStartError(
                f"{path}: {name} is {theirs!r} there and {ours!r} in the configuration: these are "
                "another bookie's data, or the configuration was changed"
                + ("; see allowStorageExpansion" if grows else "")
            )
    return grows


def _escape(text: str) -> str:
    for character, letter in (("\\", "\\"), ('"', '"'), ("\t", "t"), ("\n", "n"), ("\r", "r")):
        text = text.replace(character, f"\\{letter}")
    return text


def _unescape(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), text)
