"""`python guard.py COMMAND...`: runs it, and lets nothing of it outlive who wanted it.

It leads the process group of a part. Its standard input is a pipe of the runner's: when that ends,
the runner is gone, however it went (SIGKILL tells nobody), and the whole group is killed, this
process as well. Ctrl-C is handed on; SIGTERM is for the others of the group. The exit code is the
command's, or 128 and a signal's number.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys


def main(command: list[str]) -> int:
    # A shell starts what it puts into the background with this ignored, and it would be inherited.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    # Functions, not SIG_IGN: what is ignored would be inherited by those who come later.
    signal.signal(signal.SIGINT, lambda *_: process.send_signal(signal.SIGINT))
    signal.signal(signal.SIGTERM, lambda *_: None)
    standard_input, ended = sys.stdin.fileno(), os.pidfd_open(process.pid)
    ready, _, _ = select.select([standard_input, ended], [], [])
    if ended not in ready:
        os.killpg(0, signal.SIGKILL)
    code = process.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
