"""A real server whose bookie serves others, as pyspark_quire's tests have it; and what a job leaves
of its logs."""

import logging

import pytest

from tests.pyspark_quire.conftest import served, topic

__all__ = ["served", "topic"]


@pytest.fixture(autouse=True)
def quiet_logs():
    """A job sets logging up for its own process; here that is the tests', also of other rooms."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
