"""Delegation tokens (KIP-48, KIP-373): a login by SCRAM that stands for its owner, and ends.

| file | what |
|--|--|
| token_core.py | a token, and what may be done to it |
| store.py | the tokens in metadata, followed by every broker |
"""
