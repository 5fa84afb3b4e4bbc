"""Options that the command line's roles have in common."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from runtime.config import PropertiesError, parse_properties
from runtime.logs import kv, parse_levels
from runtime.secret_files import is_others_to_read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

logger = logging.getLogger(__name__)

Command = TypeVar("Command", bound="Callable[..., None]")


class Address(click.ParamType[tuple[str, int]]):
    """HOST:PORT, where an IPv6 address stands in brackets."""

    name = "HOST:PORT"

    def convert(
        self,
        value: str | tuple[str, int],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        host, colon, port = value.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            self.fail(f"{value!r}: write an IPv6 address in brackets, as [::1]:9092", param, ctx)
        if not colon or not host or not port.isascii() or not port.isdigit():
            self.fail(f"{value!r} is no HOST:PORT", param, ctx)
        if int(port) > 65535:
            self.fail(f"{value!r}: a port is at most 65535", param, ctx)
        return host, int(port)


def parse_settings(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    settings = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not equals or not key.strip():
            raise click.BadParameter(f"{value!r} is no KEY=VALUE", ctx, param)
        settings[key.strip()] = text
    return settings


def check_levels(ctx: click.Context, param: click.Parameter, value: str) -> str:
    try:
        parse_levels(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from error
    return value


def role_options(command: Command) -> Command:
    """--set and --log-level."""
    for option in reversed(
        (
            click.option(
                "--set",
                "settings",
                multiple=True,
                metavar="KEY=VALUE",
                callback=parse_settings,
                help="One setting; wins over the file. May be repeated.",
            ),
            click.option(
                "--log-level",
                default="info",
                show_default=True,
                metavar="LEVEL[,LOGGER=LEVEL]",
                callback=check_levels,
                help="debug, info, warning or error.",
            ),
        )
    ):
        command = option(command)
    return command


def read_config(path: str | None) -> str:
    if path is None:
        return ""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"--config {path}: {error}") from error
    if is_others_to_read(path):
        _warn_of_secrets_in(path, text)
    return text


def _warn_of_secrets_in(path: str, text: str) -> None:
    try:
        names = _secret_names(parse_properties(text))
    except PropertiesError:
        return  # whoever loads it says so
    if names:
        logger.warning(
            "secrets_readable",
            kv(file=path, settings=",".join(names), reason="others may read the file: chmod 600"),
        )


def warn_of_arguments(settings: Mapping[str, str]) -> None:
    """Who sees the list of processes sees what stands on a command line."""
    if names := _secret_names(settings):
        logger.warning(
            "secrets_on_command_line",
            kv(settings=",".join(names), reason="everybody on this machine sees it: use a file"),
        )


def _secret_names(names: Iterable[str]) -> list[str]:
    """Those whose values are secrets, of Kafka's settings: a broker's, a listener's."""
    from broker.cluster.config_listener import setting_key  # of no use to --help

    keys = ((name, setting_key(name)) for name in names)
    return sorted(name for name, key in keys if key is not None and key.sensitive)
