"""A group of commands of which only the one that runs is imported."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Mapping


class ImportingGroup(click.Group):
    """Beside commands of its own it has those of `places`: by name, the module that has a command
    under that name. `--help` imports them all."""

    def __init__(self, *, places: Mapping[str, str], **options: Any) -> None:  # noqa: ANN401
        super().__init__(**options)
        self.places = places

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *self.places])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.places:
            return super().get_command(ctx, cmd_name)
        command = getattr(import_module(self.places[cmd_name]), cmd_name)
        assert isinstance(command, click.Command)
        return command
