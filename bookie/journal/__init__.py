"""What makes an add durable: the journal, its files, groups and replay."""
