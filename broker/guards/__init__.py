"""Guards: what each API asks of a client's rights before its handler works, and how it refuses.

| file | what |
|--|--|
| table.py | which guard an API has |
| tools.py | what guards are made of: whole requests, item by item, what is left out |
| refusals.py | answers to requests that are refused as a whole, in the form of each API |
| records.py | records, offsets of partitions, topics by name |
| groups.py | groups of every kind, and their offsets |
| transactions.py | transactions, their partitions and offsets, who uses them |
| cluster.py | configurations, the cluster, what brokers ask of one another |

Which needs an API has is data (broker/authorised.py); tests compare what guards ask with it.
"""
