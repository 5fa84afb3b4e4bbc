"""A coordinator on an internal topic, which knows nothing of what it coordinates."""
