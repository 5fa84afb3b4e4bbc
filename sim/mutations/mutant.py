"""`python -m sim.mutations.mutant NAME MODULE ARGUMENT...`: MODULE as a program, in a process of
which one rule is broken.

The patched modules' source is changed on its way into the interpreter: no file is written, and no
bytecode of it is kept. They are imported before MODULE is run, so that a patch is never without
effect.
"""

from __future__ import annotations

import importlib
import runpy
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from typing import TYPE_CHECKING

from sim.mutations.rules import MUTATIONS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType, ModuleType


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, source: str) -> None:
        super().__init__(name, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._source, self.path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    def __init__(self, sources: dict[str, str]) -> None:
        self._sources = sources

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        source = self._sources.get(fullname)
        if source is None:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None:
            raise ImportError(f"{fullname} has no file")
        spec.loader = _Loader(fullname, spec.origin, source)
        return spec


def install(sources: dict[str, str]) -> None:
    """From now on these modules are made of these sources; none is imported yet."""
    if early := [name for name in sources if name in sys.modules]:
        raise ImportError(f"imported before they were patched: {', '.join(early)}")
    sys.meta_path.insert(0, _Finder(sources))
    for name in sources:
        importlib.import_module(name)


def main() -> None:
    name, module = sys.argv[1:3]
    install(MUTATIONS[name].sources())
    sys.argv = sys.argv[2:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
