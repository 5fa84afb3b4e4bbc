"""A process that runs cases for another: a line of JSON in is a case, one out is its summary.

One process for many seeds, so that imports and compiled codecs are paid for once. With a number of
seconds as its argument it ends, by SIGVTALRM, in a case that takes more of the processor's: a
mutation may go round for ever within one moment of virtual time.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from dataclasses import asdict, dataclass, field

from sim.case import Case
from sim.runner import Outcome


@dataclass(slots=True)
class Summary:
    """What is told of a run that another process made."""

    seed: int
    outcome: Outcome
    digest: str
    events: int
    cpu_seconds: float
    virtual_seconds: float
    story: str
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def line(self) -> str:
        return (
            f"seed {self.seed} {self.outcome.name} {self.digest} events={self.events} "
            f"virtual={self.virtual_seconds:.1f}s cpu={self.cpu_seconds:.2f}s {self.story}"
        ).rstrip()


def run(case: Case) -> Summary:
    result = case.run()
    return Summary(
        result.seed,
        result.outcome,
        result.digest,
        result.events,
        result.cpu_seconds,
        result.virtual_seconds,
        result.story,
        dict(result.counts),
    )


def encode_case(case: Case) -> str:
    return json.dumps(asdict(case))


def decode_case(text: str) -> Case:
    values = json.loads(text)
    for name in ("kinds", "only"):
        if values[name] is not None:
            values[name] = tuple(values[name])
    values["shape"] = tuple((name, value) for name, value in values["shape"])
    return Case(**values)


def decode_summary(text: str) -> Summary:
    values = json.loads(text)
    values["outcome"] = Outcome(values["outcome"])
    return Summary(**values)


def main() -> None:
    gc.freeze()  # modules stay: each run ends with a collection, and need not look at them
    gc.disable()  # else the collector comes between its end and that collection, for nothing
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who gives the cases ends this process
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 0.0
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
        answer = json.dumps(asdict(run(decode_case(line))))
        try:
            print(answer, flush=True)
        except BrokenPipeError:  # it is gone, and the interpreter's end would try once more
            os._exit(0)


if __name__ == "__main__":
    main()
