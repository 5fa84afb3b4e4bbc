"""The settings of a node that has a ledger client: a bookie's names and the client's, in one
table. A broker reads server.properties with it."""

from __future__ import annotations

from bookie.config_definitions import BOOKIE_CONFIGS
from ledger.autorecovery.config import AUTORECOVERY_CONFIGS
from ledger.config_definitions import CLIENT_KEYS
from runtime.config import ConfigTable

_CLIENT_NAMES = {key.name for key in CLIENT_KEYS}

#: A name that both know is read by the client; to a bookie it means nothing.
NODE_CONFIGS = ConfigTable(
    BOOKIE_CONFIGS.title,
    (*(key for key in BOOKIE_CONFIGS if key.name not in _CLIENT_NAMES), *CLIENT_KEYS),
    empty_is_unset=True,
)
assert not any(
    BOOKIE_CONFIGS[name].has_effect for name in _CLIENT_NAMES if name in BOOKIE_CONFIGS
), "a setting that bookie and client both read"

#: The same, of a process that has auto-recovery, too.
STANDALONE_CONFIGS = ConfigTable(
    NODE_CONFIGS.title,
    (*(key for key in NODE_CONFIGS if key.name not in AUTORECOVERY_CONFIGS), *AUTORECOVERY_CONFIGS),
    empty_is_unset=True,
)
