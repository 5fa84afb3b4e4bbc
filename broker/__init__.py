"""The Kafka server: a request's way in and out, and the rooms behind it."""
