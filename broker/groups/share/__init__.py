"""Share groups (KIP-932): pure cores, their records, and the shell beside the requests."""
