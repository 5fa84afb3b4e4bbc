"""Faults in random order on real processes, judged by what those were told who wrote.

    python -m compat_tests.chaos bookies --minutes 5 --seed 7
    python -m compat_tests.chaos cluster --minutes 30 --seed 1 --network

`world` starts the processes; `workloads`, `kafka_writers` and `kafka_groups` write, read and note
what they were told; `nemeses`, `broker_nemeses` and `network_nemeses` break and mend, `catalogue`
says which of them can be had; `network` and `delay` are the lines between the servers; `checkers`
judge; `tables` tell; `run` puts a run together.
"""

import sys
from pathlib import Path

# The tests' own root, also when this is started from elsewhere; and for sim.history, whose words
# judge a run, the project's.
_COMPAT = Path(__file__).resolve().parent.parent
for _root in (str(_COMPAT), str(_COMPAT.parent)):
    if _root not in sys.path:
        sys.path.append(_root)
