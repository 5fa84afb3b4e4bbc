"""Auto-recovery: who notices that copies of entries are missing, and who makes them again.

    auditor_election.py    one of the candidates audits, as long as its session lives
    auditor.py             follows the bookies, has checks done, marks ledgers
    checks.py              the checks of all ledgers
    lost_bookies.py        which bookies are lost, and since when; pure
    session.py             what must not outlive a session
    copy_check.py          which copies of a fragment are missing, by asking for some of them
    replicas_check.py      the same by the bookies' own lists of entries
    placement_check.py     ensembles on too few racks; pure
    replication_worker.py  takes marked ledgers one by one
    repair.py              what is done to one of them
    report.py              what cannot be repaired, and why; pure
    service.py             all of these in one process; config.py, statistics.py

features 37-40; invariants A. The records are BookKeeper's (ledger/underreplication.py), so
that Java's auditor and workers can stand beside ours.
"""
