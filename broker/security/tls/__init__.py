"""TLS of the listeners: keys and certificates as Kafka's users have them, and who a client is."""
