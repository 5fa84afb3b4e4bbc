"""A partition's chain of ledgers: taken over, kept, rolled, cut off in front, let go."""
