"""From an offset to record batches."""
