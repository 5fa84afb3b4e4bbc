"""The counts of a tree whose every count is known."""

from checks.house import PACKAGES, counts

CONFIG = """
class ConfigKey:
    def __init__(self, name, default=None, has_effect=True):
        self.name, self.default, self.has_effect = name, default, has_effect


class ConfigTable(tuple):
    pass
"""
DECLARED = """
from runtime.config import ConfigKey, ConfigTable

KEYS = ConfigTable((ConfigKey("a.b", "1"), ConfigKey("c"), ConfigKey("idle", has_effect=False)))
FIELDS = {"c": "x"}


class OneConfig:
    a_b: int = 1


class Many:
    def __init__(self, a, b, c, d, e, f, g, h):
        try:
            FIELDS["c"]
        except Exception:
            pass
"""


def test_every_count(tmp_path):
    for package in PACKAGES:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("")
    (tmp_path / "runtime" / "config.py").write_text(CONFIG)
    (tmp_path / "bookie" / "declared.py").write_text(DECLARED)
    long = "import bookie.declared\ndef long():\n" + "    f()\n" * 50
    (tmp_path / "quire" / "cli.py").write_text(long)
    lines = sum(len(text.splitlines()) for text in (CONFIG, DECLARED, long))
    # Packages, modules, arrows; settings, those written twice; lines, long functions; constructors
    # and others with many parameters, catch-alls; large files, small ones.
    found = list(counts(tmp_path).values())
    assert found == [8, 11, 2, 2, 2, lines, 1, 1, 0, 1, 0, 3]
