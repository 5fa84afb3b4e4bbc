"""Users who log in by SCRAM: what is stored of them, and the first of them.

| file | what |
|--|--|
| store.py | their credentials in metadata, followed by every broker |
| secret.py | the cluster's own secret |
| administrator.py | a user for a cluster that has none |
"""
