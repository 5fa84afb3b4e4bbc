"""Consumer groups and committed offsets: pure cores, and their coordinator."""
