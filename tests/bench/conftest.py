"""The benchmarks are no installed package: they are found in the checkout."""

import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

with warnings.catch_warnings():
    # kafka-python 3.0 reads its schemas with a function that Python 3.11 calls deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.record  # noqa: F401
