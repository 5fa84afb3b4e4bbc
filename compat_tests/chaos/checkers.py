"""What must be true after a run, whatever happened in it; each returns what is wrong, in words."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator

from harness import paths

from sim.history import History, Violation

from .kafka_writers import Rows, TopicWorkload
from .workloads import LedgerWriting

COPIES_WITHIN_S = 600.0


def check_ledgers(work: LedgerWriting, found: dict[int, dict]) -> list[str]:
    """Every acked entry is readable, and as it was written; a ledger has one end, for everybody;
    after another's recovery nothing is acked that was not there by then."""
    wrong = list(work.wrong)
    for ledger in work.ledgers.values():
        wrong += (f"ledger {ledger.ledger_id}: {words}" for words in _ledger(ledger, found))
    return wrong


def check_copies(uri: str, look_after: Callable[[], None]) -> tuple[str, list[str]]:
    """(how it went, what is wrong). Every entry of every ledger is there as often as the write
    quorum says, or becomes so within `COPIES_WITHIN_S`; nobody writes meanwhile."""
    started = time.monotonic()
    script = str(paths.python_script("quire"))
    command = [script, "ledger", "check", "--metadata-service-uri", uri, "--json"]
    while True:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            took_s = time.monotonic() - started
            return f"copies: all there, {took_s:.0f} s after the last write", []
        if time.monotonic() > started + COPIES_WITHIN_S:
            return "copies: some miss", [f"copies miss after {COPIES_WITHIN_S} s: {_short(done)}"]
        look_after()
        time.sleep(1)


def _short(done: subprocess.CompletedProcess) -> list[str]:
    """The ledgers that are not whole; what was said instead, if it is no list."""
    try:
        rows = json.loads(done.stdout)
    except ValueError:
        return [(done.stdout + done.stderr)[-1000:]]
    return [f"{row['ledger']}: {row['missing']}" for row in rows if row["missing"] or row["error"]]


def _ledger(ledger, found: dict[int, dict]) -> Iterator[str]:
    read = found.get(ledger.ledger_id)
    if read is None:
        yield "could not be read"
        return
    last = read["last"]
    if ledger.last_acked > last:
        yield f"entry {ledger.last_acked} was acked, and it ends at {last}: lost"
    if read["good"] != last + 1 or read["wrong"]:
        yield f"{read['good']} of {last + 1} entries are as they were written: {read['wrong']}"
    for name, end in (("closed", ledger.closed_at), ("recovered", ledger.recovered_at)):
        if end is not None and end != last:
            yield f"was {name} at entry {end}, and ends at {last}"
    if ledger.recovered_at is not None and ledger.last_sent_at > ledger.fenced_at:
        late_ms = 1000 * (ledger.last_sent_at - ledger.fenced_at)
        yield f"acked an entry that was added {late_ms:.0f} ms after it was fenced"


def check_topics(topics: list[TopicWorkload], rows: dict[str, Rows]) -> list[str]:
    """By the history that judges the simulation: lost, duplicated, reordered, diverging, phantom,
    gap. It stops at the first that is wrong, of each topic."""
    wrong = []
    for work in topics:
        heard = History()
        try:
            work.tell(heard)
            final = {(work.topic, n): (0, row) for n, row in rows[work.name].items()}
            heard.check(final)
        except Violation as violation:
            wrong.append(f"{work.name}: {violation}")
    return wrong
