"""Figures that a run prints after its summary: counts, times, sizes worth keeping."""

LINES: list[str] = []


def add(line: str) -> None:
    LINES.append(line)
