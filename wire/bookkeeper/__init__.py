"""BookKeeper's bytes: entries and digests, status codes, ledger metadata; the protocols later."""
