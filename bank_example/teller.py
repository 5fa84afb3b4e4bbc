"""One teller: a database, a client, and transfers until he is ended, or can apply no more."""

import itertools
import time

from bank_example.bank import TOPIC, Transfer, applier
from quire_locks import Client, LocksError, StoppedError
from quire_locks.confluent_transport import ConfluentTransport

UNDER_WAY = 4
PAUSE_SECONDS = 0.02


def work(bootstrap, database):
    """`database`: of bank_example/databases.py."""
    database.make_tables()
    transport = ConfluentTransport({"bootstrap.servers": bootstrap}, TOPIC)
    mark = database.mark
    with Client(transport, database.store(), applier(mark)) as client:
        for count in itertools.count(1):
            futures = [client.submit(Transfer(mark)) for _ in range(UNDER_WAY)]  # StoppedError
            for future in futures:
                try:
                    future.result()
                except StoppedError:
                    raise  # `run` begins anew; it stands in the log why
                except LocksError as error:
                    print(f"{database.name}: {error}", flush=True)
            if count % 100 == 0:
                print(f"{database.name}: {count * UNDER_WAY} transfers", flush=True)
            time.sleep(PAUSE_SECONDS)
