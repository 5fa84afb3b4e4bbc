"""compat_tests is no package that is installed: it is found from the tree's root."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
