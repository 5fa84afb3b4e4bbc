"""Compaction by key: of records with one key the newest stays (Kafka's log cleaner)."""
