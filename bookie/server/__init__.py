"""A bookie on the network: BookKeeper's protocol in front of `bookie.bookie.Bookie`."""
