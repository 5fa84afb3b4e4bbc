"""A partition on ledgers, split by what happens to it: append, read, life."""
