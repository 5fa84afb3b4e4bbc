"""`quire topics`: what operators do to topics that Kafka's own tools have no words for."""
