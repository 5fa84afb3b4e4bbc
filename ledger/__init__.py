"""The ledger client: create, append, read, recover, delete, on any bookies behind BookieClient."""
