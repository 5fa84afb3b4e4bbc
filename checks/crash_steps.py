"""Names for what a bookie does to its disk and index: by what, and on behalf of which function."""

from __future__ import annotations

from bookie.journal.journal_format import (
    EXPLICIT_LAC,
    FORCE,
    GROUP_HEADER_SIZE,
    LEDGER_DELETED,
    LEDGER_FENCED,
    parse_group_header,
    records,
)

#: The first whose functions all called for the operation names it. A rule may be for some kinds of
#: operations only.
_RULES: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("journal: group", ("Journal._write",), ()),
    ("journal: group", ("Journal._start_sync",), ()),
    ("journal: new file", ("JournalFiles._make_file",), ()),
    ("journal: preparation", ("JournalFiles.prepare",), ()),
    ("journal: recycling", ("JournalFiles.recycle",), ()),
    ("journal: before replay", ("JournalReplay.make_durable",), ()),
    ("compaction: new log", ("EntryLogCompactor._append", "EntryLogs.create"), ()),
    ("compaction: map", ("EntryLogCompactor._finish", "EntryLogs.write_map"), ()),
    ("compaction: copy", ("EntryLogCompactor._write",), ()),
    ("compaction: re-point", ("EntryLogCompactor._repoint_slice",), ()),
    ("compaction: publish", ("EntryLogCompactor._switch", "EntryLogs.publish"), ()),
    ("compaction: re-point", ("EntryLogCompactor._switch",), ()),
    ("compaction: old log", ("EntryLogCompactor._remove_copied",), ()),
    ("compaction: thrown away", ("EntryLogCompactor._discard",), ()),
    ("gc: examined log", ("LogExaminer.examine",), ()),
    ("settle", ("settle_logs",), ()),
    ("unfinished copy", ("EntryLogs.load",), ()),
    ("gc: dead log", ("EntryLogs.remove", "EntryLogs._remove_dead"), ()),
    ("gc: dead log", ("RemovedFiles.sync_names",), ()),
    ("freed file", ("RemovedFiles._free",), ()),
    ("gc: range delete", ("Checkpointer.store_ledgers",), ("index delete",)),
    ("checkpoint: ledgers", ("Checkpointer.store_ledgers",), ()),
    ("checkpoint: file", ("write_checkpoint",), ()),
    ("log roll: new log", ("EntryLogWriter.start_log", "EntryLogs.create"), ()),
    ("log roll: map", ("EntryLogWriter._complete", "EntryLogs.write_map"), ()),
    ("log roll: empty log", ("EntryLogWriter._complete", "EntryLogs.remove"), ()),
    ("adopted journal: link", ("AdoptedJournals._adopt",), ()),
    ("adopted journal: end", ("AdoptedJournals.complete",), ()),
    ("flush: log", ("EntryLogWriter.write",), ()),
    ("flush: log", ("EntryLogWriter.sync",), ()),
    ("flush: index", ("Flusher._flush",), ()),
    ("cookie", ("check_cookies",), ()),
    ("directories", ("lock_directories",), ()),
)
#: No operation is called that; a new one needs a rule.
OTHER = "other"
_RECORD_NAMES = {
    LEDGER_DELETED: "deletion",
    LEDGER_FENCED: "fence",
    EXPLICIT_LAC: "explicit LAC",
    FORCE: "attestation",
}
#: Each of them happens at least once in the scenario.
REQUIRED_OF_ADOPTED = (
    "adopted journal: link: link",
    "adopted journal: link: directory sync",
    "adopted journal: end: truncate",
    "adopted journal: end: write",
    "adopted journal: end: sync",
    "gc: dead log: remove",
)
REQUIRED = (
    "journal: group, entries: write",
    "journal: group, part of it: write",
    "journal: group, fence: write",
    "journal: group, explicit LAC: write",
    "journal: group, deletion: write",
    "journal: group, attestation: write",
    "journal: group: sync",
    "journal: new file: create",
    "journal: new file: write",
    "journal: new file: sync",
    "journal: preparation: rename",
    "journal: preparation: write",
    "journal: preparation: sync",
    "journal: preparation: directory sync",
    "journal: recycling: rename",
    "journal: recycling: remove",
    "journal: recycling: directory sync",
    "flush: log: write",
    "flush: log: sync",
    "flush: index: index put",
    "flush: index: index sync, locations",
    "log roll: new log: create",
    "log roll: new log: write",
    "log roll: new log: sync",
    "log roll: new log: directory sync",
    "log roll: map: write",
    "log roll: map: sync",
    "log roll: empty log: remove",
    "checkpoint: ledgers: index put",
    "checkpoint: ledgers: index sync, ledgers",
    *(
        f"checkpoint: {name}: {kind}"
        for name in ("checkpoint", "lastMark")
        for kind in ("create", "write", "sync", "rename", "directory sync")
    ),
    "gc: range delete: index delete, locations",
    "gc: range delete: index delete, ledgers",
    "gc: dead log: remove",
    "gc: dead log: directory sync",
    "compaction: new log: create",
    "compaction: new log: write",
    "compaction: new log: sync",
    "compaction: new log: directory sync",
    "compaction: copy: write",
    "compaction: copy: sync",
    "compaction: map: write",
    "compaction: map: sync",
    "compaction: re-point: index put",
    "compaction: re-point: index sync, locations",
    "compaction: publish: rename",
    "compaction: publish: directory sync",
    "compaction: old log: remove",
    "compaction: old log: directory sync",
)
#: And these in the starts after its crashes.
REQUIRED_AT_START = (
    "start: flush: log: write",
    "start: flush: log: sync",
    "start: flush: index: index put",
    "start: flush: index: index sync, locations",
    "start: unfinished copy: remove",
    "start: settle: truncate",
    "start: settle: write",
    "start: settle: sync",
    "start: settle: remove",
    "start: settle: directory sync",
    "start: gc: range delete: index delete, locations",
    "start: checkpoint: ledgers: index put",
    "start: checkpoint: checkpoint: rename",
    "start: checkpoint: lastMark: rename",
    "start: journal: preparation: rename",
    "start: journal: recycling: directory sync",
    "gc: examined log: write",
    "gc: examined log: rename",
    "gc: examined log: remove",
)


def step_of(kind: str, path: str, data: bytes, names: set[str]) -> str:
    """What an operation is called. `path`: of the directory, or of the one file in it that it is
    synced for. `names`: the functions of the bookie that led to it."""
    title = _title(kind, names)
    if title == "checkpoint: file":
        title = f"checkpoint: {path.rpartition('/')[2].removesuffix('.tmp')}"
    elif kind == "write" and title == "journal: group":
        title = f"{title}, {_record_name(data)}"
    elif kind in ("index delete", "index sync"):
        kind = f"{kind}, {path}"
    prefix = "start: " if names & {"Bookie._open", "lock_directories"} else ""
    return f"{prefix}{title}: {kind}"


def _title(kind: str, names: set[str]) -> str:
    for title, functions, kinds in _RULES:
        if names.issuperset(functions) and (not kinds or kind in kinds):
            return title
    return f"{OTHER} {sorted(names)}"


def _record_name(data: bytes) -> str:
    parsed = parse_group_header(data)
    if parsed is None or len(data) < GROUP_HEADER_SIZE + parsed[1].body_size:
        return "part of it"
    header = parsed[1]
    body = memoryview(data)[GROUP_HEADER_SIZE : GROUP_HEADER_SIZE + header.body_size]
    kinds = {entry_id for _, entry_id, _ in records(body, header.record_count)}
    for kind, name in _RECORD_NAMES.items():
        if kind in kinds:
            return name
    return "entries"
