"""`quire standalone --admin NAME[:MECHANISM]`: the first user, made before the first client comes.

Where nobody has said a password one is made, and written to admin-password in the data directory;
it is never told otherwise. A second start changes nothing, whoever has or had the name.
"""

from __future__ import annotations

import base64
import logging
import os
from typing import TYPE_CHECKING

from broker.security.users import administrator
from quire.passwords import read_password, write_password
from runtime.logs import kv

if TYPE_CHECKING:
    from metadata.store import MetadataStore
    from quire.options import AdminOptions
    from runtime.env import Env

logger = logging.getLogger(__name__)

PASSWORD_FILE = "admin-password"
_PASSWORD_BYTES = 24


async def ensure_administrator(
    store: MetadataStore, env: Env, directory: str, wanted: AdminOptions
) -> None:
    """MetadataError; OSError if the file cannot be written."""
    if await administrator.was_there(store, wanted.name):
        logger.info("admin_unchanged", kv(user=wanted.name))
        return
    password = wanted.password
    if password is None:
        password = await env.disk.run(_generated, os.path.join(directory, PASSWORD_FILE), env)
    credentials = await env.disk.run(
        administrator.credentials_of, password, wanted.mechanisms, env.rng
    )
    if await administrator.create_if_absent(store, wanted.name, credentials):
        logger.info("admin_made", kv(user=wanted.name, mechanisms=",".join(credentials)))


def _generated(path: str, env: Env) -> str:
    """What is in the file, of a start that ended before the user was there; else a new one."""
    if os.path.exists(path):
        password = read_password(path, PASSWORD_FILE)
    else:
        password = base64.urlsafe_b64encode(env.rng.randbytes(_PASSWORD_BYTES)).decode()
        write_password(path, password)
    logger.info("admin_password_is_in", kv(path=path))
    return password
