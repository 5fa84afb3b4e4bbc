"""Streams groups (KIP-1071): pure cores, their records, and the shell beside the requests."""
