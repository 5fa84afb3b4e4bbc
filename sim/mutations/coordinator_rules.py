"""Rules of the coordinators of transactions, and of those that ask them, and each one broken."""

from __future__ import annotations

from sim.mutations.mutation import Mutation, Patch

CORE = "broker.transactions.txn_core"
SHARD = "broker.transactions.shard"
TRANSITIONS = "broker.transactions.transitions"
PARTITION = "broker.log.partition"
PRODUCERS = "broker.log.append.producer_state"
ROOM = "tests/broker/transactions"
WORLDS = "tests/sim/transactions/test_producer.py"
OF_CORE = f"{ROOM}/test_txn_core.py"
OF_COORDINATOR = f"{ROOM}/test_coordinator.py"

COORDINATOR_RULES = (
    Mutation(
        "gone-broker-waited-for",
        "what was asked of a broker that is gone is waited for as long as of a slow one",
        (
            Patch(
                "broker.cluster.peers",
                "            peer = self._peers.pop(node_id, None)\n",
                "            peer = self._peers.get(-1)\n",
            ),
        ),
        ("tests/broker/cluster/test_peers.py",),
    ),
    Mutation(
        "marker-before-prepare",
        "markers leave before the decision is in the coordinator's log",
        (
            Patch(
                CORE,
                "    return [_append(txn, Decided(told))]\n\n\n# --- what is not a request",
                "    return [_append(txn, told), *_begin_markers(txn, now_ms)]\n\n\n"
                "# --- what is not a request",
            ),
            Patch(
                CORE,
                '    assert not txn.pending, "nothing follows Prepare* before it is stored"\n',
                "",
            ),
        ),
        (OF_CORE,),
    ),
    Mutation(
        "end-answered-early",
        "the end of a transaction is answered before it is in the coordinator's log",
        (
            Patch(
                CORE,
                "    return [_append(txn, Decided(told))]\n\n\n# --- what is not a request",
                "    now = Answer(token, told.result, needs_barrier=False)\n"
                "    return [now, _append(txn, Decided(None))]\n\n\n# --- what is not a request",
            ),
        ),
        (OF_CORE,),
    ),
    Mutation(
        "add-answered-early",
        "a partition counts as added before that is in the coordinator's log",
        (
            Patch(
                CORE,
                "[_append(txn, Answered(token, TxnResult()))]",
                "[\n        Answer(token, TxnResult(), needs_barrier=False),\n"
                "        _append(txn, Completed()),\n    ]",
            ),
        ),
        (OF_CORE,),
    ),
    Mutation(
        "first-marker-completes",
        "a transaction is complete when the first partitions have answered (KAFKA-17877)",
        (
            Patch(
                CORE,
                "    if txn.unmarked:\n        return [_send",
                "    txn.unmarked.clear()\n    if txn.unmarked:\n        return [_send",
            ),
        ),
        (OF_CORE,),
    ),
    Mutation(
        "never-too-long",
        "a transaction that takes longer than its timeout is not aborted",
        (
            Patch(
                CORE,
                "    return _fence(txn, Decided(None), now_ms, server_version, fresh_id)",
                "    return []",
            ),
        ),
        (OF_CORE,),
    ),
    Mutation(
        "fenced-keeps-epoch",
        "a producer that is fenced, or took too long, keeps its epoch",
        (
            Patch(
                TRANSITIONS,
                "_prepare(txn, False, version, next_producer_id, txn.epoch + 1, now_ms)",
                "_prepare(txn, False, version, next_producer_id, txn.epoch, now_ms)",
            ),
        ),
        (OF_CORE,),
    ),
    Mutation(
        "load-forgets-prepare",
        "a coordinator that takes over does not send the markers of what was decided",
        (
            Patch(
                SHARD,
                "            if entry.txn.state not in AT_REST:\n",
                "            if not entry.txn.is_ending and entry.txn.state not in AT_REST:\n",
            ),
        ),
        (OF_COORDINATOR,),
    ),
    Mutation(
        "load-forgets-open",
        "a coordinator that takes over gives open transactions no time",
        (
            Patch(
                SHARD,
                "            if entry.txn.state not in AT_REST:\n",
                "            if entry.txn.is_ending:\n",
            ),
        ),
        (OF_COORDINATOR,),
    ),
    Mutation(
        "barrier-dropped",
        "a coordinator that may be deposed answers from memory",
        (
            Patch(
                SHARD,
                "        self.partition.barrier(record, done)\n",
                "        done(ErrorCode.NONE)\n",
            ),
        ),
        (OF_COORDINATOR,),
    ),
    Mutation(
        "stable-offsets-from-memory",
        "a coordinator that may be deposed tells committed offsets without a proof that it is not",
        (
            Patch(
                "broker.groups.coordinator",
                "            shard.partition.barrier(lambda: NO_OFFSET, acknowledged)\n",
                "            shard.partition.after_pending(answer)\n",
            ),
        ),
        ("tests/broker/groups/test_coordinator.py",),
    ),
    Mutation(
        "coordinator-epoch-unchecked",
        "a partition takes markers of a coordinator that was deposed",
        (
            Patch(
                PRODUCERS,
                "        if marker.coordinator_epoch < producer.coordinator_epoch:\n",
                "        if marker.coordinator_epoch < -1:\n",
            ),
        ),
        ("tests/broker/log/append/test_producer_state.py",),
    ),
    Mutation(
        "unverified",
        "a partition does not ask whether a transaction is open (KIP-890)",
        (
            Patch(
                "broker.log.transactions.acceptance",
                "        else:\n            gate.ask(append, checked)\n        return False\n",
                "        else:\n            return True\n        return False\n",
            ),
        ),
        ("tests/broker/log/transactions/test_gate.py",),
    ),
    Mutation(
        "snapshot-without-open",
        "a snapshot of producers does not tell of open transactions",
        (
            Patch(
                "broker.log.append.producer_snapshot",
                "        producer.transaction_start_offset,\n"
                "        producer.unsequenced_offset,\n"
                "        len(batches),\n",
                "        NO_OFFSET,\n        producer.unsequenced_offset,\n        len(batches),\n",
            ),
        ),
        ("tests/broker/log/transactions/test_stable_offset_scenarios.py",),
    ),
    Mutation(
        "aborted-unlisted",
        "readers are not told what is aborted",
        (
            Patch(
                "broker.handlers.fetch_look",
                "    return [AbortedTransaction(each.producer_id, each.first_offset) for each in"
                " aborted]",
                "    return []",
            ),
        ),
        (f"{WORLDS}::test_nothing_goes_wrong_where_nothing_is_wrong",),
    ),
    Mutation(
        "open-is-read",
        "who reads what is committed is given open transactions",
        (
            Patch(
                PARTITION,
                "return self.last_stable_offset if committed else self.high_watermark",
                "return self.high_watermark",
            ),
        ),
        ("tests/broker/log/transactions/test_stable_offset_scenarios.py",),
    ),
)
