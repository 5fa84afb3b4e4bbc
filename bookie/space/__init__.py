"""Space: garbage collection, compaction, disks that fill and recover."""
