"""The transaction coordinator: what a transactional id is doing, and who is told."""
