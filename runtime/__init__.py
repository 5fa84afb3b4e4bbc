"""The only rooms that touch the operating system: clock, entropy, network, disk, logs, metrics."""
