"""What operators have: the commands `quire dump|bookie|ledger|cluster`, and the pages of HTTP.

All of them show rows, JSON and progress by way of output.py.
"""
