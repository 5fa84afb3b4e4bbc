"""A real data set that every Debian or Ubuntu machine has: the index of all packages.

`apt-cache dumpavail` prints some 60,000 records of "Field: value" lines, 50 MB of text. Here they
become dictionaries with the fields that the jobs use.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

TEXT_FIELDS = ("Package", "Version", "Architecture", "Maintainer", "Section", "Priority")
NUMBER_FIELDS = ("Installed-Size", "Size")  # KiB on disk; bytes of the archive


def paragraphs(lines: Iterable[str]) -> Iterator[dict[str, str]]:
    """Records between empty lines; a line that starts with a space goes on with the last field."""
    fields: dict[str, str] = {}
    name = ""
    for line in lines:
        line = line.rstrip("\n")
        if not line:
            if fields:
                yield fields
            fields = {}
        elif line[0] in " \t":
            fields[name] += "\n" + line.strip()
        else:
            name, _, value = line.partition(":")
            fields[name] = value.strip()
    if fields:
        yield fields


def package(fields: dict[str, str]) -> dict[str, Any]:
    """One package as the jobs know it; keys in lower case with underscores.

    `section` is without the archive area ("contrib/net" is "net"); `depends` are the names alone,
    without versions, the first of alternatives.
    """
    record: dict[str, Any] = {key.lower(): fields.get(key, "") for key in TEXT_FIELDS}
    for key in NUMBER_FIELDS:
        record[key.lower().replace("-", "_")] = int(fields.get(key, "0"))
    record["section"] = record["section"].rpartition("/")[2]
    depends = fields.get("Depends", "")
    record["depends"] = [
        part.split("|")[0].split("(")[0].strip() for part in depends.split(",") if part.strip()
    ]
    return record


def packages(limit: int | None = None) -> list[dict[str, Any]]:
    """The first `limit` packages that apt knows, or all, in apt's order, one version of each.

    Raises RuntimeError where apt has no lists (`apt-get update` fetches them).
    """
    found: dict[str, dict[str, Any]] = {}
    command = ["apt-cache", "dumpavail"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace") as apt:
        assert apt.stdout is not None
        for fields in paragraphs(apt.stdout):
            if "Package" in fields:
                found.setdefault(fields["Package"], package(fields))
            if limit is not None and len(found) >= limit:
                apt.terminate()
                break
    if not found:
        raise RuntimeError("apt knows no packages: run apt-get update")
    return list(found.values())
