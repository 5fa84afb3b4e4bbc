"""MetadataStore: a small tree of versioned values, with the meaning of ZooKeeper's znodes."""
