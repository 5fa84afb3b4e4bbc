"""The token that a server makes for itself, in its data directory, where nobody configured one."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from runtime.secret_files import new_token, write_secret

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quire.tools.admin.credentials import PageCredentials
    from runtime.env import Rng

#: In the data directory, for its owner only, while the pages are served.
TOKEN_NAME = "admin.token"


@contextmanager
def token_note(directory: str, credentials: PageCredentials, rng: Rng) -> Iterator[PageCredentials]:
    """`credentials`, with a token for the administration in any case. OSError."""
    if credentials.admin is not None:
        yield credentials
        return
    token, path = new_token(rng), os.path.join(directory, TOKEN_NAME)
    write_secret(path, token)
    try:
        yield replace(credentials, admin=token)
    finally:
        os.unlink(path)
