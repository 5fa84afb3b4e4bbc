"""The import contract of the cores, which `make lint` checks (pyproject.toml, import-linter).

A core is a module whose name ends with `_core`: it decides, and others wait, send and store. So it
may lead to no loop, socket, clock, entropy or store, not even by way of others. A new core is held
to that by its name alone; import-linter's own contracts would need a list.
"""

from importlinter import Contract, ContractCheck, fields, output


class PureCores(Contract):
    """No core leads to one of `forbidden_modules`, unless by one of `ignore_imports`."""

    type_name = "pure_cores"

    forbidden_modules = fields.ListField(subfield=fields.StringField())
    ignore_imports = fields.ListField(subfield=fields.ImportExpressionField())

    def check(self, graph, verbose):
        for ignored in self.ignore_imports:
            # Both are modules; an error if there is no such import, as it would be forgotten.
            importer, imported = ignored.importer.expression, ignored.imported.expression
            if imported not in graph.find_modules_directly_imported_by(importer):
                raise ValueError(f"{importer} does not import {imported}")
            graph.remove_import(importer=importer, imported=imported)
        chains = [
            chain
            for core in cores(graph.modules)
            for banned in self.forbidden_modules
            if banned in graph.modules
            for chain in sorted(graph.find_shortest_chains(core, banned, as_packages=True))
        ]
        return ContractCheck(kept=not chains, metadata={"chains": chains})

    def render_broken_contract(self, check):
        for chain in check.metadata["chains"]:
            output.print_error(" -> ".join(chain), bold=False)


def cores(modules):
    """The names of those that are cores."""
    return sorted(name for name in modules if name.endswith("_core"))
