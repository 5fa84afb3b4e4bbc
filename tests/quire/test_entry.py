"""What the command does before its imports."""

import subprocess
import sys

COUNTED = """
import gc, sys
looks = []
gc.callbacks.append(lambda phase, info: looks.append(info["generation"]) if phase == "stop" else 0)
from quire.entry import main
sys.argv = ["quire", "--version"]
try:
    main()
except SystemExit:
    pass
print(looks.count(2), gc.isenabled(), "quire.cli" in sys.modules)
"""


def test_imports_are_hardly_looked_through_and_later_garbage_is():
    done = subprocess.run(
        [sys.executable, "-c", COUNTED], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split()[-3:] == ["0", "True", "True"]
