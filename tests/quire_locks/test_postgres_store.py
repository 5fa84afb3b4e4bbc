"""PostgresStore without a server: it says so once its time is over. All else needs one:
compat_tests/test_locks_postgres.py."""

import psycopg
import pytest

from quire_locks.postgres_store import PostgresStore


def test_a_server_that_is_not_there_is_an_error(tmp_path):
    store = PostgresStore(f"host={tmp_path} dbname=bank", reconnect_seconds=0.2)
    with pytest.raises(psycopg.OperationalError, match="No such file"):
        store.open("t", "id-1", [0])
    store.close()
