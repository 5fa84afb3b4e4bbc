"""Share groups' records (KIP-932): who holds which of them, and where that is kept."""
