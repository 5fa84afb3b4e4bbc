"""A whole cluster in one process under virtual time: faults from a seed, a history to judge."""
