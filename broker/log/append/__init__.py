"""From a produced batch to acknowledged ledger entries."""
