"""Where entries are: write cache, entry logs, index, and what brings one to the other."""
