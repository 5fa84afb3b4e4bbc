"""Bytes <-> values. Pure: no trio, sockets, clocks or entropy; imports nothing of ours."""
