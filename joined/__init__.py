"""What needs a bookie's rooms and the ledger's both: a bookie in the client's own process, what a
bookie learns of its ledgers from metadata, and the settings, metadata and placement of a node that
has a ledger client."""
