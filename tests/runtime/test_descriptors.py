"""The limit of a process's descriptors, raised, and what of it listeners take."""

import resource
import subprocess
import sys

import pytest

from runtime import descriptors

RAISED = """
import resource
from runtime.descriptors import accepted_below, raise_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (300, 1000))
print(accepted_below())
raise_limit()
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], accepted_below())
"""


def test_it_is_raised_to_what_the_system_allows():
    done = subprocess.run(
        [sys.executable, "-c", RAISED], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["225", "1000", "750"]


@pytest.mark.parametrize(
    ("soft", "below"),
    [
        (1_024, 768),
        (20_000, 15_904),
        (1 << 20, (1 << 20) - 4_096),
        (resource.RLIM_INFINITY, 1 << 31),
    ],
)
def test_some_are_left_to_files(monkeypatch, soft, below):
    monkeypatch.setattr(descriptors.resource, "getrlimit", lambda _: (soft, soft))
    assert descriptors.accepted_below() == below
