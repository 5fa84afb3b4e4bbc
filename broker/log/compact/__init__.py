"""Compaction: of each key the newest record stays (cleanup.policy=compact)."""
