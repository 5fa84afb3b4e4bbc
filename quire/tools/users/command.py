"""The commands of `quire user`. Exit codes: 0; 1 if something failed; 2 for a wrong option.

They write metadata themselves and ask no broker: whoever may do that is an administrator anyhow.
"""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import click

from broker.security.users import administrator
from quire.passwords import read_password
from quire.tools.ledger.options import cluster_options, on_cluster

if TYPE_CHECKING:
    from broker.security.sasl.scram.credentials import Credentials
    from quire.tools.ledger.cluster import Cluster

_PASSWORD_OPTION = "--password-file"


@click.group()
def user() -> None:
    """Looks after users who log in by SCRAM."""


@user.command()
@click.argument("who", metavar="NAME[:MECHANISM]")
@click.option(
    _PASSWORD_OPTION,
    required=True,
    help="Its one line is the password; «-»: of standard input.",
)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, exists=True),
    help="Of a `quire standalone` that does not run.",
)
@cluster_options
def reset(
    who: str,
    password_file: str,
    data_dir: str | None,
    **options: Any,  # noqa: ANN401  # click's
) -> None:
    """Gives a user a password, for both mechanisms or one, whether or not he is there.

    For whoever is locked out: of a server that is stopped, by its --data-dir; of a cluster, by its
    metadata, while brokers run."""
    from runtime.env import real_env

    try:
        name, mechanisms = administrator.parse_user(who)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    password = read_password(password_file, _PASSWORD_OPTION)
    credentials = administrator.credentials_of(password, mechanisms, real_env().rng)
    if data_dir is not None:
        _reset_offline(data_dir, name, credentials)
    else:

        async def work(cluster: Cluster) -> None:
            await administrator.put(cluster.store, name, credentials)

        on_cluster(options, work)
    click.echo(f"{name} logs in by {' and '.join(credentials)} with that password")


def _reset_offline(data_dir: str, name: str, credentials: Credentials) -> None:
    import trio  # slow to import, and of no use to --help

    from metadata.sqlite import SqliteStore
    from metadata.store import MetadataError
    from runtime.env import real_env
    from runtime.running import running

    path = os.path.join(os.path.abspath(data_dir), "metadata.db")
    if not os.path.exists(path):
        raise click.ClickException(f"{data_dir} has no metadata.db: no server has run there")

    async def run() -> None:
        env = real_env()
        async with AsyncExitStack() as stack:
            stack.callback(env.disk.lock(os.path.join(os.path.dirname(path), "lock")))
            await stack.enter_async_context(running(env.turn.serve, needs_start=False))
            assert env.poller is not None
            await stack.enter_async_context(running(env.poller.run))
            store = SqliteStore(path, env.disk.run)
            await stack.enter_async_context(running(store.run))
            await administrator.put(store, name, credentials)

    try:
        trio.run(run)
    except* BlockingIOError:
        raise click.ClickException(
            f"{data_dir} is in use: a server runs there. Stop it first, or let it do this with"
            " kafka-configs"
        ) from None
    except* MetadataError as error:
        raise click.ClickException(str(error.exceptions[0])) from None
