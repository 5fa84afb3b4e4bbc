"""Transactions in the simulated world: producers, readers, their history and its judges."""
