"""docs/testing.md as its readers use it: every block is a test module of another project, run by a
pytest of its own, with the plugin, confluent-kafka and aiokafka."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCUMENT = Path(__file__).parent.parent / "docs" / "testing.md"
PLUGIN = "quire.testing.pytest_plugin"


def blocks():
    """(the heading above it, the text) for each block of Python."""
    heading = ""
    found = []
    for match in re.finditer(
        r"^## ([^\n]*)$|^```python\n(.*?)^```$", DOCUMENT.read_text(encoding="utf-8"), re.M | re.S
    ):
        if match[1]:
            heading = match[1]
        else:
            found.append(pytest.param(match[2], id=f"{len(found)} {heading}"))
    return found


def test_the_document_has_blocks():
    assert len(blocks()) >= 5


@pytest.mark.parametrize("block", blocks())
def test_block(block, tmp_path):
    project, scratch = tmp_path / "project", tmp_path / "scratch"
    project.mkdir()
    scratch.mkdir()
    (project / "pytest.ini").write_text("[pytest]\n")
    (project / "test_block.py").write_text(block, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", PLUGIN, "-p", "no:cacheprovider", "-q"]
    result = subprocess.run(
        command,
        cwd=project,
        env={**os.environ, "TMPDIR": str(scratch)},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"^[1-9]\d* passed", result.stdout, re.M), result.stdout
    assert [name for name in os.listdir(scratch) if name.startswith("quire")] == []
