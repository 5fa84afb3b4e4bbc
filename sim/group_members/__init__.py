"""Members of groups of the simulation: what each protocol's clients do."""
