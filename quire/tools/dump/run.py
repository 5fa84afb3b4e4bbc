"""What the commands do: find the structures, show one after the other, survive the bad ones."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from bookie.errors import CorruptionError
from bookie.journal.journal_format import file_name
from bookie.storage.checkpoint import CHECKPOINT_NAME, LAST_MARK_NAME
from broker.log.append.entry_format import (
    KIND_ABORTED,
    KIND_BATCHES,
    KIND_INDEX,
    KIND_SNAPSHOT,
)
from quire.tools.dump.at_offset import show_at_offset
from quire.tools.dump.batches import show_batch_file
from quire.tools.dump.entry_log import EntryLogDump
from quire.tools.dump.files import (
    STDIN,
    Found,
    ReadFile,
    Stdin,
    error_words,
    find_structures,
    kind_of,
)
from quire.tools.dump.index import show_index
from quire.tools.dump.journal import Chain, JournalDump
from quire.tools.dump.metadata import show_metadata
from quire.tools.dump.options import BatchOptions, EntryOptions, OutputOptions
from quire.tools.dump.rows import make_output
from quire.tools.dump.small_files import (
    load_checkpoint,
    load_last_mark,
    show_checkpoint,
    show_cookie,
    show_last_mark,
)
from quire.tools.output import progress

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bookie.journal.journal_format import Position
    from quire.tools.output import Output, Step

EXIT_DAMAGED = 1
#: What a shell says of a process that SIGPIPE ended.
EXIT_BROKEN_PIPE = 141

_SHOW_SMALL = {
    "checkpoint": show_checkpoint,
    "lastMark": show_last_mark,
    "cookie": show_cookie,
}


@contextmanager
def running(options: OutputOptions) -> Iterator[Run]:
    """SystemExit with 1 if anything was damaged; with 141 if nobody reads the output any more."""
    run = Run(make_output(options))
    try:
        try:
            yield run
        finally:
            run.out.flush()
    except BrokenPipeError:
        # The interpreter flushes stdout once more at its end, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(EXIT_BROKEN_PIPE) from None
    if run.out.failed:
        raise SystemExit(EXIT_DAMAGED)


class Run:
    """One command. Each method shows all that it finds under `paths`."""

    def __init__(self, out: Output) -> None:
        self.out = out
        #: A bar would stand between the lines if both go to the terminal.
        self._shows_progress = not sys.stdout.isatty()

    def journals(self, paths: Sequence[str], options: EntryOptions, checkpoint: str | None) -> None:
        found = find_structures(paths, "journal", self.out)
        mark = self._mark(paths, checkpoint)
        if checkpoint is None:
            self._check_marked(found, mark)
        self._show_journals(options, found, mark)

    def entry_logs(self, paths: Sequence[str], options: EntryOptions) -> None:
        for each in find_structures(paths, "entrylog", self.out):
            self._show_entry_log(options, each.path)

    def indexes(self, paths: Sequence[str], options: EntryOptions) -> None:
        for each in find_structures(paths, "index", self.out):
            self._show_index(options, each.path)

    def metadata(self, paths: Sequence[str], node: str, show_secrets: bool) -> None:
        for each in find_structures(paths, "metadata", self.out):
            self._show_metadata(each.path, node, show_secrets)

    def batches(self, paths: Sequence[str], options: BatchOptions, at: int | None) -> None:
        for each in find_structures(paths, "batch", self.out):
            self._show_batches(options, each.path, at)

    def snapshots(self, paths: Sequence[str], options: EntryOptions, at: int | None) -> None:
        inside = replace(
            options, payload_kinds=frozenset((KIND_INDEX, KIND_SNAPSHOT, KIND_ABORTED))
        )
        for each in find_structures(paths, "snapshot", self.out):
            self._show_inside(inside, each.path, at)

    def small_files(self, paths: Sequence[str], command: str) -> None:
        for each in find_structures(paths, command, self.out):
            self._show_small(each)

    def everything(self, paths: Sequence[str], options: EntryOptions) -> None:
        found = find_structures(paths, "all", self.out)
        mark = self._mark(paths, None)
        journals = [each for each in found if each.kind == "journal"]
        self._check_marked(journals, mark)
        for each in found:
            if each.kind == "journal":
                if each is journals[0]:
                    self._show_journals(options, journals, mark)
            elif each.kind == "entrylog":
                self._show_entry_log(options, each.path)
            elif each.kind == "index":
                self._show_index(options, each.path)
            elif each.kind == "metadata":
                self._show_metadata(each.path, "/", options.show_secrets)
            elif each.kind == "batch":
                self._show_batches(options.batches, each.path, None)
            else:
                self._show_small(each)

    def _check_marked(self, journals: Sequence[Found], mark: Position | None) -> None:
        """The journal that a checkpoint names must be there."""
        if mark is None or not mark.journal_id or not journals:
            return
        name = file_name(mark.journal_id)
        if all(os.path.basename(each.path) != name for each in journals):
            path = os.path.join(os.path.dirname(journals[-1].path), name)
            self.out.damage(path, None, "it is missing: the checkpoint needs the journal from here")

    # One structure.

    @contextmanager
    def _file(self, path: str) -> Iterator[None]:
        """What one file cannot give is told, and does not keep the others from being shown."""
        try:
            yield
        except BrokenPipeError:
            raise
        except CorruptionError as error:
            self.out.damage(path, error.offset, error.reason)
        except OSError as error:
            self.out.damage(path, None, error_words(error))

    @contextmanager
    def _opened(self, path: str, what: str) -> Iterator[tuple[ReadFile, Step]]:
        with ReadFile(path) as file:
            name = f"{what} {os.path.basename(path)}"
            with progress(name, file.size, enabled=self._shows_progress) as step:
                yield file, step

    def _show_journals(
        self, options: EntryOptions, found: Sequence[Found], mark: Position | None
    ) -> None:
        """In order: groups are numbered over all journals of a directory."""
        chains: dict[str, Chain] = {}
        for each in found:
            chain = chains.setdefault(os.path.dirname(each.path), Chain(mark))
            with self._file(each.path), self._opened(each.path, "journal") as (file, step):
                JournalDump(self.out, options, file, chain, step).run()

    def _show_entry_log(self, options: EntryOptions, path: str) -> None:
        with self._file(path), self._opened(path, "entry log") as (file, step):
            EntryLogDump(self.out, options, file, step).run()

    def _show_index(self, options: EntryOptions, path: str) -> None:
        with self._file(path):
            show_index(self.out, options, path)

    def _show_metadata(self, path: str, node: str, show_secrets: bool) -> None:
        with self._file(path):
            show_metadata(self.out, path, node, show_secrets)

    def _show_small(self, found: Found) -> None:
        with self._file(found.path):
            _SHOW_SMALL[found.kind](self.out, found.path)

    def _show_batches(self, options: BatchOptions, path: str, at: int | None) -> None:
        if path == STDIN:
            with self._file("stdin"):
                show_batch_file(self.out, options, Stdin(), None, at or 0)
            return
        with self._file(path):
            if kind_of(path) in ("journal", "entrylog"):
                kinds = frozenset((KIND_BATCHES,))
                inside = EntryOptions(
                    decoded=True, payload=True, payload_kinds=kinds, batches=options
                )
                self._show_inside(inside, path, at)
                return
            with self._opened(path, "batches") as (file, step):
                show_batch_file(self.out, options, file, step, at or 0)

    def _show_inside(self, options: EntryOptions, path: str, at: int | None) -> None:
        """Entries' payloads: of the whole file, or of the one entry at an offset."""
        with self._file(path):
            kind = kind_of(path)
            if at is not None or kind not in ("journal", "entrylog"):
                alone = replace(options, payload_kinds=frozenset())
                with ReadFile(path) as file:
                    show_at_offset(self.out, alone, file, kind, at)
            elif kind == "journal":
                self._show_journals(options, [Found("journal", path)], None)
            else:
                self._show_entry_log(options, path)

    def _mark(self, paths: Sequence[str], given: str | None) -> Position | None:
        """Where a replay would start, as the bookie decides it: `checkpoint`, or if there is none,
        `lastMark`. None if there is neither, or more than one bookie's."""
        if given is not None:
            with self._file(given):
                if os.path.basename(given) == LAST_MARK_NAME:
                    return load_last_mark(given)
                return load_checkpoint(given).mark
        checkpoints: list[Position] = []
        last_marks: list[Position] = []
        last_mark_path = ""
        for top in (path for path in paths if path != STDIN and os.path.isdir(path)):
            for directory, _, names in os.walk(top):
                # Damage in these files is told by their own command.
                try:
                    if CHECKPOINT_NAME in names:
                        path = os.path.join(directory, CHECKPOINT_NAME)
                        checkpoints.append(load_checkpoint(path).mark)
                    if LAST_MARK_NAME in names:
                        last_mark_path = os.path.join(directory, LAST_MARK_NAME)
                        last_marks.append(load_last_mark(last_mark_path))
                except (OSError, CorruptionError):
                    continue
        if len(checkpoints) > 1 or len(last_marks) > 1:
            return None
        if checkpoints and last_marks and last_marks[0][:2] > checkpoints[0][:2]:
            self.out.damage(
                last_mark_path, 0, "`lastMark` is ahead of `checkpoint`: no bookie starts so"
            )
        return next(iter(checkpoints or last_marks), None)
