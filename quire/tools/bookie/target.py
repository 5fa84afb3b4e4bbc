"""What a command works on: a running server's administration pages, or directories.

In this order: `--url`, the environment's QUIRE_ADMIN_URL, and the note that a running server left
(quire/tools/admin/serve.py) in its data directory, or in the first ledger directory of `--conf`.
Without any of them: the directories, those of `--conf` or of the data directory.

The token of the pages is in `--token-file`, or in what QUIRE_ADMIN_TOKEN_FILE names, or beside the
note; that one goes nowhere but to where the note says.
"""

from __future__ import annotations

import os
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

URL_VARIABLE = "QUIRE_ADMIN_URL"
NOTE_NAME = "admin.url"
NOTED_TOKEN_NAME = "admin.token"
TOKEN_VARIABLE = "QUIRE_ADMIN_TOKEN_FILE"
METADATA_NAME = "metadata.db"
token_option = click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False),
    help=f"The file with the token of the pages. [env: {TOKEN_VARIABLE}]",
)


@dataclass(slots=True, frozen=True)
class Target:
    #: Of the server, None if there is none that runs.
    url: str | None
    data_dir: Path
    #: The text of `--conf`, None without it.
    conf: str | None
    token: str | None = field(default=None, repr=False)

    @property
    def metadata_path(self) -> Path:
        return self.data_dir / METADATA_NAME

    def needed_url(self) -> str:
        """For what only a running server can do; ClickException without one."""
        if self.url is None:
            raise click.ClickException(
                f"no server is known to run on {self.data_dir}: start it with --metrics HOST:PORT, "
                f"or say where it is with --url or {URL_VARIABLE}"
            )
        return self.url

    def directories(self) -> tuple[str, tuple[str, ...]]:
        """(journal directory, ledger directories), absolute; ClickException if one is missing."""
        ledgers: tuple[str, ...]
        if self.conf is None:
            bookie = os.path.abspath(self.data_dir / "bookie")
            journal, ledgers = f"{bookie}/journal", (f"{bookie}/ledgers",)
        else:
            journal, ledgers = _configured(self.conf)
        for path in (journal, *ledgers):
            if not os.path.isdir(path):
                raise click.ClickException(f"{path} is no directory: nothing of a bookie is there")
        return journal, ledgers


def _configured(text: str) -> tuple[str, tuple[str, ...]]:
    settings = _properties(text)
    # As the bookie itself: the first of several has the journal, and the older name comes last.
    journal = settings.get("journalDirectories", "").partition(",")[0].strip()
    journal = journal or settings.get("journalDirectory", "").strip()
    found = {"journalDirectories": journal, "ledgerDirectories": settings.get("ledgerDirectories")}
    missing = [name for name, text in found.items() if not text]
    if missing:
        raise click.UsageError(f"--conf: there is no {' and no '.join(missing)}")
    names = settings["ledgerDirectories"].split(",")
    paths = tuple(os.path.abspath(name.strip()) for name in names if name.strip())
    return os.path.abspath(journal), paths


def _first_ledger_directory(text: str) -> Path | None:
    name = _properties(text).get("ledgerDirectories", "").partition(",")[0].strip()
    return Path(name) if name else None


def _properties(text: str) -> Mapping[str, str]:
    from runtime.config import PropertiesError, parse_properties

    try:
        return parse_properties(text)
    except PropertiesError as error:
        raise click.UsageError(f"--conf: {error}") from error


def read_token(path: str | None) -> str | None:
    """Of `--token-file`, or of the environment's; None without. ClickException."""
    from runtime.secret_files import SecretFileError, read_secret

    path = path or os.environ.get(TOKEN_VARIABLE)
    if not path:
        return None
    try:
        return read_secret(path)
    except SecretFileError as error:
        raise click.ClickException(str(error)) from None


def _noted_token(directory: Path) -> str | None:
    """None: it is not there, or another user's."""
    path = directory / NOTED_TOKEN_NAME
    return read_token(str(path)) if os.access(path, os.R_OK) else None


def find_target(
    url: str | None, data_dir: str, conf: str | None, token_file: str | None = None
) -> Target:
    token, text = read_token(token_file), None
    if conf is not None:
        try:
            text = Path(conf).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise click.UsageError(f"--conf {conf}: {error}") from error
    directory = Path(data_dir)
    found = url or (None if conf is not None else os.environ.get(URL_VARIABLE))
    noted = directory if text is None else _first_ledger_directory(text)
    if not found and noted is not None:
        try:
            found = (noted / NOTE_NAME).read_text(encoding="ascii").strip()
            token = token or _noted_token(noted)
        except (OSError, UnicodeDecodeError):
            found = None
    return Target(found.rstrip("/") if found else None, directory, text, token)
