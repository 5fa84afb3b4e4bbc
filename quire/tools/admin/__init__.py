"""The HTTP administration of a running server, on the metrics listener (HttpRouter.java).

Paths, parameters and JSON are Apache BookKeeper's (its HttpRouter and the services behind it), so
that scripts and consoles made for a Java bookie work; /ping, /buildinfo and /health are Waltz's.
What differs, on purpose:

- errors are `{"error": "..."}` with the 4xx that fits, where BookKeeper says 404 for a wrong method
  and 500 for a wrong parameter;
- a ledger that is part of a topic's partition is deleted with `force=true` only;
- what can be asked for without end is streamed;
- /api/v1 is for clients on the same machine only, and what changes something needs a token.

`routes` finds the handler; `ledgers`, `bookies`, `garbage` and `process` have them; `context` says
what they may see, `credentials` who may ask.
"""
