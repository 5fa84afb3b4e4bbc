"""A real server whose bookie serves others, as pyspark_quire's tests have it."""

from tests.pyspark_quire.conftest import served, topic

__all__ = ["served", "topic"]
