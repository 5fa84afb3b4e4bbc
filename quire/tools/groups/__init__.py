"""`quire groups`: why a group of consumers does not go on, for operators."""
