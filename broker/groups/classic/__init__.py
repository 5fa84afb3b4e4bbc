"""Classic consumer groups: a pure core, its members and its values."""
