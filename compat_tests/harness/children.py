"""Processes that a server started, and what is left of them."""

import time
from pathlib import Path


def children_of(pid):
    """By the name of the directory that each has its settings in: those that run now."""
    pids = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_text().split("\0")
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid and "--child-of" in words:
            pids[Path(words[words.index("--config") + 1]).parent.name] = int(folder.name)
    return pids


def wait_for(condition, timeout_s, what):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def is_gone(pid):
    """A zombie counts: in a container nobody may reap an orphan."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
