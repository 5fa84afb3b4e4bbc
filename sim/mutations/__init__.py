"""Mutations: rules of the code, broken on purpose, and how soon the nets find each.

    python -m sim.mutations                       # all of them; what was found already is kept
    python -m sim.mutations --only fence-early    # one

`mutation` says what one is, `ledger_rules`, `bookie_rules`, `broker_rules` and `edge_rules` list
them, `mutant` runs a module of Python with one in force, `hunt` looks for it with seeds and tests,
`table` keeps and prints what was found. Nothing here imports the code under test: that is for the
mutant's own process, after the patch is in place.
"""
