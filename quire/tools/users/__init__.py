"""`quire user`: who logs in by SCRAM, for an operator whom nobody lets in."""
