"""Groups of the consumer protocol (KIP-848): pure cores, their records, the shell."""
