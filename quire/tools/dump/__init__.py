"""`quire dump`: every structure on disk, for a person or as JSON. Reads only, never writes."""
