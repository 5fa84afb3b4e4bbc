"""A bookie that is crashed or damaged at every place on its disk, and what must hold afterwards.

Tests run a part of it; `python -m checks.crash_points` and `python -m checks.damage` all.
`python -m checks.house` is no check: it counts how large the project is, to compare two revisions.
"""
