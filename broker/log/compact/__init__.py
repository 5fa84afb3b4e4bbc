"""Compaction by key: which records stay, and their bytes."""
