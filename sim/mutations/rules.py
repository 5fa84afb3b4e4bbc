"""All mutations, by name."""

from __future__ import annotations

from sim.mutations.bookie_rules import BOOKIE_RULES
from sim.mutations.broker_rules import BROKER_RULES
from sim.mutations.compaction_rules import COMPACTION_RULES
from sim.mutations.coordinator_rules import COORDINATOR_RULES
from sim.mutations.edge_rules import EDGE_RULES
from sim.mutations.group_rules import GROUP_RULES
from sim.mutations.ledger_rules import LEDGER_RULES
from sim.mutations.lock_rules import LOCK_RULES
from sim.mutations.rights_rules import RIGHTS_RULES
from sim.mutations.transaction_rules import TRANSACTION_RULES

MUTATIONS = {
    rule.name: rule
    for rule in (
        *LEDGER_RULES, *BOOKIE_RULES, *BROKER_RULES, *COMPACTION_RULES, *TRANSACTION_RULES,
        *COORDINATOR_RULES, *EDGE_RULES, *LOCK_RULES, *GROUP_RULES, *RIGHTS_RULES,
    )
}  # fmt: skip
