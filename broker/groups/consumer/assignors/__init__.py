"""Who is to have which partitions: pure functions, one module for each assignor."""
