"""One teller: a database, a client, and transfers until he is ended, or can apply no more."""

import itertools
import sqlite3
import time

from bank_example.bank import TOPIC, Transfer, apply, make_tables
from quire_locks import Client, LocksError, SqliteStore, StoppedError
from quire_locks.confluent_transport import ConfluentTransport

UNDER_WAY = 4
PAUSE_SECONDS = 0.02


def work(bootstrap, database):
    db = sqlite3.connect(database, isolation_level=None, timeout=30)
    make_tables(db)
    db.close()
    transport = ConfluentTransport({"bootstrap.servers": bootstrap}, TOPIC)
    with Client(transport, SqliteStore(database), apply) as client:
        for count in itertools.count(1):
            futures = [client.submit(Transfer()) for _ in range(UNDER_WAY)]  # StoppedError
            for future in futures:
                try:
                    future.result()
                except StoppedError:
                    raise  # `run` begins anew; it stands in the log why
                except LocksError as error:
                    print(f"{database}: {error}", flush=True)
            if count % 100 == 0:
                print(f"{database}: {count * UNDER_WAY} transfers", flush=True)
            time.sleep(PAUSE_SECONDS)
