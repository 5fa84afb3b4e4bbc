"""Where things are. Nothing in here creates anything."""

import os
import sys
from pathlib import Path

COMPAT = Path(__file__).resolve().parent.parent
ROOT = COMPAT.parent


def cache_dir() -> Path:
    """The folder that peers.sh fills: QUIRE_CACHE, else quire/ in the user's cache folder."""
    explicit = os.environ.get("QUIRE_CACHE")
    if explicit:
        return Path(explicit)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "quire"


def jars(profile: str) -> Path:
    """The jars of one Maven profile; raises FileNotFoundError naming the command that gets them."""
    return needed(cache_dir() / "jars" / profile, "jars")


def needed(path: Path, step: str) -> Path:
    """`path`, once peers.sh has made it.

    A missing peer is an error and never a skipped test: a run that proves nothing must not pass.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path} is not there: run compat_tests/peers.sh {step}")
    return path


def python_script(name: str) -> Path:
    """A console script installed next to the running interpreter."""
    return Path(sys.executable).parent / name
