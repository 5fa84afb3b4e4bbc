"""`quire bookie`: looking after a storage node, as `bookkeeper shell` does.

Commands that a running server answers go to its administration pages (quire/tools/admin); the
others, and those when no server runs, work on the directories, with the bookie's locks.
"""
