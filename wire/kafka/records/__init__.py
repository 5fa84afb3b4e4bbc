"""Record batches and what is inside them: Kafka's log format, as bytes and as values."""
