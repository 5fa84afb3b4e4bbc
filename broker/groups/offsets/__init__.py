"""Committed offsets of groups, whatever kind they are of."""
