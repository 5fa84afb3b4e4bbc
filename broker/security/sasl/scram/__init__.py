"""SCRAM (RFC 5802, RFC 7677) as Kafka has it: SCRAM-SHA-256 and SCRAM-SHA-512.

| file | what |
|--|--|
| hashes.py | the two mechanisms: their names, numbers and keyed hashes |
| credentials.py | what is stored instead of a password |
| messages_core.py | the messages as text |
| scram_core.py | one login |
| mechanism.py | the mechanism in front of users and tokens |
| composition.py | the mechanism as a listener's settings say |
"""
