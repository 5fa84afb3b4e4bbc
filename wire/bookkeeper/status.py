"""A bookie's answers, as BookKeeper's v2 protocol numbers them (BookieProtocol.java)."""

from enum import IntEnum


class Status(IntEnum):
    EOK = 0
    ENOLEDGER = 1
    ENOENTRY = 2
    EBADREQ = 100
    EIO = 101
    EUA = 102
    EBADVERSION = 103
    EFENCED = 104
    EREADONLY = 105
    ETOOMANYREQUESTS = 106
    EUNKNOWNLEDGERSTATE = 107


#: Request flags of the v2 protocol.
FLAG_DO_FENCING = 0x1
FLAG_RECOVERY_ADD = 0x2
FLAG_HIGH_PRIORITY = 0x4

#: Asks a bookie for the entry with the highest id that it holds.
LAST_ADD_CONFIRMED_ENTRY = -1
