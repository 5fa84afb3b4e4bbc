"""What operators have: the commands `quire dump|bookie|ledger|cluster`, and the pages of HTTP."""
