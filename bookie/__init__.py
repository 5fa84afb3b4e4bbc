"""A storage node: journal, write cache, entry log, index, checkpoint, replay, fencing, cookie."""
