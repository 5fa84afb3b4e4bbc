"""PostgresStore where nobody answers; compat_tests/test_locks_postgres.py has a real server."""

import socket
import threading

import psycopg
import pytest

from quire_locks.postgres_store import PostgresStore


def conninfo(port):
    return f"host=127.0.0.1 port={port} dbname=none user=none sslmode=disable"


def test_who_hangs_up_is_tried_again():
    hung_up = []

    def serve():
        for _ in range(2):
            connection, _ = listener.accept()
            connection.close()
            hung_up.append(connection)
        listener.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)
        store = PostgresStore(conninfo(listener.getsockname()[1]), reconnect_seconds=5.0)
        serving = threading.Thread(target=serve)
        serving.start()
        with pytest.raises(psycopg.OperationalError):
            store.position(0)
        serving.join(30)
    assert len(hung_up) == 2


def test_nobody_there_is_told_at_the_end_of_the_time():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    store = PostgresStore(conninfo(port), reconnect_seconds=0.0)
    with pytest.raises(psycopg.OperationalError, match="refused"):
        store.position(0)
    store.close()
