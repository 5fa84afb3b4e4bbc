"""A partition on ledgers: chain, segments, offset index, producer state, retention."""
