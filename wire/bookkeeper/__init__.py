"""BookKeeper's bytes: entries, both bookie protocols, ledger metadata, the store's records."""
