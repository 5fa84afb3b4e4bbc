"""Descriptors of this process: how many it may have, and which of them connections leave to files.

Who connects takes a descriptor, and a bookie that gets none for its next file ends. So listeners
take no more than the most but RESERVED_SHARE of it. Linux gives the lowest number that is free: a
socket with a number tells how many there are.
"""

from __future__ import annotations

import logging
import resource

from runtime.logs import kv

logger = logging.getLogger(__name__)

#: For files, and for connections that this process itself opens.
RESERVED_SHARE = 1 / 4
RESERVED_MAX = 4_096


def raise_limit() -> None:
    """As many as the system allows this process, as Java's virtual machine takes, too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        logger.warning("descriptors_not_raised", kv(soft=soft, hard=hard, error=error))


def accepted_below() -> int:
    """A connection whose descriptor has this number, or a higher one, is one too many."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 1 << 31
    return soft - min(int(soft * RESERVED_SHARE), RESERVED_MAX)
