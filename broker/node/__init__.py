"""The broker put together: its parts in order, its table of APIs, its part in a cluster."""
