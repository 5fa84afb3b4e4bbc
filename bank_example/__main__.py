"""The command line of the example."""

import argparse
import signal
import sys
from pathlib import Path

from bank_example.audit import NotNowError, audit
from bank_example.databases import PostgresDatabase, SqliteDatabase
from bank_example.teller import work
from bank_example.world import World, kill_some


def main():
    parser = argparse.ArgumentParser(prog="bank_example")
    parser.add_argument("what", choices=["run", "break", "audit", "teller"])
    parser.add_argument("--folder", type=Path, default=Path("data/bank"))
    parser.add_argument("--listen", default="127.0.0.1:9092")
    parser.add_argument("--seconds", type=float, default=0, help="0: for ever")
    parser.add_argument("--between", type=float, default=4, help="seconds from kill to kill")
    parser.add_argument("--database", help="of a teller: his SQLite file")
    parser.add_argument("--postgres", help="conninfo of a PostgreSQL that two more tellers share")
    options = parser.parse_args()
    # So that `run` ends those that it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if options.what == "run":
        World(options.folder, options.listen, options.postgres).run(options.seconds)
    elif options.what == "break":
        count = kill_some(options.folder, options.seconds or float("inf"), options.between)
        print(f"{count} kills")
    elif options.what == "audit":
        try:
            wrong, count = audit(options.folder, options.listen, options.postgres)
        except NotNowError as error:
            sys.exit(f"not now: {error}")
        for text in wrong:
            print(f"WRONG {text}")
        print(f"{count} transfers, {len(wrong)} things wrong")
        sys.exit(bool(wrong))
    else:
        database = (
            PostgresDatabase(options.postgres)
            if options.postgres
            else SqliteDatabase(options.database)
        )
        work(options.listen, database)


if __name__ == "__main__":
    main()
