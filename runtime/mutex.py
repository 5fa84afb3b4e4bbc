"""Mutex: what worker threads (`Disk.run`) do one at a time.

The event loop's thread must not wait for one; it may ask with `acquire(blocking=False)`.
"""

from __future__ import annotations

from threading import Lock as Mutex

__all__ = ["Mutex"]
