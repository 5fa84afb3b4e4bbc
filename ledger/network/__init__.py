"""The ledger client's way to bookies over the network, in BookKeeper's protocol."""
