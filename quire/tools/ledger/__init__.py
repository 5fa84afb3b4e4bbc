"""`quire ledger`, and what of `quire bookie` works on a cluster: `bookkeeper shell` for any
BookKeeper cluster, ours or Java's.

    options         what all commands take; BookKeeper's spellings; errors and exit codes
    cluster         the connection to a cluster
    command         the commands of `quire ledger`
    ledgers, entries, checks, under_replicated      what they do
"""
