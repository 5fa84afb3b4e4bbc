"""A share partition: one partition as one share group sees it, at the partition's leader."""
