"""Share sessions: which partitions a member of a share group fetches from this broker."""
