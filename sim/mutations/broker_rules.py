"""Rules of a partition, its owner and its coordinators, and each one broken."""

from __future__ import annotations

from sim.mutations.mutation import Mutation, Patch

KEEPER = "broker.log.life.keeper"
QUEUE = "broker.log.append.queue"
PARTITION = "broker.log.partition"
TAKEOVER = "broker.log.life.takeover"
NAMED = "tests/sim/test_named.py"
WAITS = "tests/broker/log/test_partition_what_waits.py"

BROKER_RULES = (
    Mutation(
        "ack-before-bookies",
        "a batch is acknowledged when it was sent to the bookies",
        (
            Patch(
                QUEUE,
                "            writer.append_nowait(payload, self._entry_done)",
                "            writer.append_nowait(payload, self._entry_done)\n"
                "            for append in entry.appends:\n"
                "                append.finished()\n"
                "            entry.appends = []",
            ),
        ),
        ("tests/broker/log/test_partition.py",),
    ),
    Mutation(
        "duplicate-early",
        "a duplicate is answered before its original is acknowledged",
        (Patch(QUEUE, "if append.last_offset < self.high_watermark:", "if True:"),),
        ("tests/broker/log/test_partition.py",),
    ),
    Mutation(
        "snapshot-of-the-future",
        "a snapshot of producers knows of batches that stand behind it",
        (
            Patch(
                QUEUE,
                "        self._end_snapshot()\n        self._push_queued(limited=False)\n"
                "        self._push_aborted(is_sealed=False)\n",
                "        self._end_snapshot()\n        self._push_aborted(is_sealed=False)\n",
            ),
        ),
        (f"{WAITS}::test_a_snapshot_stands_behind_every_batch_that_it_knows_of",),
    ),
    Mutation(
        "snapshot-only",
        "a take-over does not look at the batches behind the last snapshot",
        (
            Patch(
                TAKEOVER,
                "if entry.entry_id >= replay_from:",
                "if entry.entry_id >= replay_from and not replay_from:",
            ),
        ),
        ("tests/broker/log/test_partition.py",),
    ),
    Mutation(
        "producers-forgotten",
        "a take-over knows no producers",
        (
            Patch(
                TAKEOVER,
                "return TakenOver(chain, version, segments, producers, before",
                "producers = ProducerState(producers_max=settings.producers_max)\n"
                "    return TakenOver(chain, version, segments, producers, before",
            ),
        ),
        ("tests/broker/log/test_partition.py",),
    ),
    Mutation(
        "log-end-served",
        "what was sent to the bookies is served before it is acknowledged",
        (
            Patch(
                PARTITION,
                "        return self.queue.high_watermark\n",
                "        return self.queue.pushed_offset\n",
            ),
        ),
        (f"{WAITS}::test_what_is_not_acknowledged_is_not_served",),
    ),
    Mutation(
        "chain-without-version",
        "two owners: a partition's document is written whatever its version is",
        (
            Patch(
                "broker.log.life.document",
                "return await store.put(path, data, version)",
                "return await store.put(path, data, (await store.get(path)).version)",
            ),
        ),
        ("tests/broker/log/test_partition.py", "tests/broker/log/test_cluster_histories.py"),
    ),
    Mutation(
        "take-over-unrecovered",
        "a take-over opens the last ledger without recovering it",
        (
            Patch(
                TAKEOVER,
                "reader = await ledgers.open_ledger(info.ledger_id, recover=True)",
                "reader = await ledgers.open_ledger(info.ledger_id, recover=False)",
            ),
        ),
        (f"{NAMED}::test_rivals_are_told_apart",),
    ),
    Mutation(
        "write-before-chain",
        "a new ledger takes writes before the chain has it",
        (
            Patch(
                KEEPER,
                "        if writer is not None:\n"
                "            await self._add_spare(chain, writer)\n",
                "        if writer is not None:\n            pass\n",
            ),
            Patch(
                KEEPER,
                "            writer = await self._create_ledger(place)\n"
                "        info = log.chain.ledgers[-1]\n",
                "            writer = await create_ledger(self._ledgers, log, log.copies)\n"
                "        named = self._with_ledger(chain, writer.ledger_id)\n"
                "        info = named.ledgers[-1]\n",
            ),
            Patch(
                KEEPER,
                "        log.is_suspended = False\n        log.segments.append(segment)\n"
                "        log.transactions.aborted",
                "        log.segments.append(segment)\n"
                "        log.queue.attach(writer, segment)\n"
                "        await self._write(named)\n"
                "        log.transactions.aborted",
            ),
            Patch(
                KEEPER,
                "        log.queue.attention_bytes = self._spare_bytes()\n"
                "        log.queue.attach(writer, segment)\n",
                "        log.queue.attention_bytes = self._spare_bytes()\n",
            ),
        ),
        (f"{WAITS}::test_a_new_ledger_takes_writes_when_the_chain_has_it",),
    ),
    Mutation(
        "ledgers-before-chain",
        "retention deletes ledgers that the chain still has",
        (
            Patch(
                KEEPER,
                "        await self._write(before.with_log_start("
                "start, keeps_producers=keeps_producers))\n",
                "        wanted = before.with_log_start(start)\n"
                "        for ledger_id in wanted.deleting:\n"
                "            await self._ledgers.delete_ledger(ledger_id)\n"
                "        await self._write(wanted)\n",
            ),
        ),
        (f"{WAITS}::test_a_ledger_is_deleted_when_the_chain_does_not_have_it_any_more",),
    ),
    Mutation(
        "fence-misnamed",
        "a fence reaches the producer as UNKNOWN_SERVER_ERROR (KoP)",
        (
            Patch(
                PARTITION,
                "refusal = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)",
                "refusal = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)",
            ),
        ),
        (f"{NAMED}::test_rivals_are_told_apart",),
    ),
    Mutation(
        "doubt-answered",
        "a broker that may be deposed answers OUT_OF_ORDER_SEQUENCE_NUMBER from memory",
        (
            Patch(
                PARTITION,
                "        self._doubted.append((append, error))\n        self.call_keeper()\n",
                "        append.fail(error)\n",
            ),
        ),
        ("tests/broker/log/life/test_doubts.py",),
    ),
    Mutation(
        "coordinator-forgets",
        "a coordinator forgets the groups that it loads",
        (
            Patch(
                "broker.groups.shard",
                '        """A record of the log, when it is loaded."""\n',
                "        return\n",
            ),
        ),
        ("tests/broker/groups/test_coordinator_on_ledgers.py",),
    ),
    Mutation(
        "copies-before-metadata",
        "a new bookie is put into the ensemble before it has the copies",
        (
            Patch(
                "ledger.replication",
                "        copied = await self._copy(copying, ids, step)\n        versioned",
                "        copied = await self._copy(copying, (), step)\n        versioned",
            ),
        ),
        ("tests/ledger/test_replication.py",),
    ),
    Mutation(
        "told-of-no-broker",
        "a client is told of no broker while none is registered",
        (
            Patch(
                "broker.cluster.cluster_view",
                "None if endpoints else self.endpoints.get(listener)",
                "None",
            ),
        ),
        ("tests/broker/cluster/test_members.py::test_no_client_is_told_of_no_broker",),
    ),
)
