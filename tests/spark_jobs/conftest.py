"""A real server whose bookie serves others, as pyspark_quire's tests have it; and jobs that set
logging up in the tests' process."""

import pytest

from tests.pyspark_quire.conftest import served, topic

__all__ = ["served", "topic"]


@pytest.fixture(autouse=True)
def _quiet_logs(quiet_logs):
    """Of all tests here: what a job leaves would be that of other rooms' tests, too."""
