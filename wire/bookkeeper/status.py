"""A bookie's answers and the requests' flags, as both protocol versions number them.

`Status` has v2's numbers (BookieProtocol.java) and is what all our code uses; v3's (StatusCode of
BookkeeperProtocol.proto) exist only on the wire. Every code of one version has its twin in the
other.
"""

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


#: v2's number on the wire -> status.
STATUS_OF_V2 = {int(status): status for status in Status}
#: status -> v3's number on the wire.
V3_OF_STATUS = {
    Status.EOK: 0,
    Status.ENOLEDGER: 402,
    Status.ENOENTRY: 403,
    Status.EBADREQ: 404,
    Status.EIO: 501,
    Status.EUA: 502,
    Status.EBADVERSION: 503,
    Status.EFENCED: 504,
    Status.EREADONLY: 505,
    Status.ETOOMANYREQUESTS: 506,
    Status.EUNKNOWNLEDGERSTATE: 507,
}
#: v3's number on the wire -> status.
STATUS_OF_V3 = {number: status for status, number in V3_OF_STATUS.items()}

#: Request flags of the v2 protocol; v3 has the same in other fields.
FLAG_DO_FENCING = 0x1
FLAG_RECOVERY_ADD = 0x2
FLAG_HIGH_PRIORITY = 0x4

#: `write_flags` of an add (v3 only): answer before the entry is synced; FORCE_LEDGER syncs.
WRITE_FLAG_DEFERRED_SYNC = 0x1
#: The same among the flags of an add, beyond what v2's 16 bits of them can say.
FLAG_DEFERRED_SYNC = 0x10000

#: What a GET_BOOKIE_INFO asks for.
BOOKIE_INFO_TOTAL_SPACE = 0x1
BOOKIE_INFO_FREE_SPACE = 0x2

#: Asks a bookie for the entry with the highest id that it holds.
LAST_ADD_CONFIRMED_ENTRY = -1
