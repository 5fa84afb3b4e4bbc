"""Classic consumer groups and committed offsets: pure cores (`*_core`) and their coordinator."""
