"""Rules of consumer groups (KIP-848), share groups (KIP-932) and streams groups (KIP-1071); each
is broken."""

from __future__ import annotations

from sim.mutations.mutation import Mutation, Patch

RECONCILE = "broker.groups.consumer.reconcile_core"
MIGRATION = "broker.groups.consumer.migration_core"
LIVE = "broker.groups.consumer.live"
SHARE = "broker.share.partition.share_partition"
SHARE_CORE = "broker.share.partition.share_partition_core"
STREAMS_ASSIGNOR = "broker.groups.streams.task_assignor_core"
STREAMS_RECONCILE = "broker.groups.streams.reconcile_core"
CORE_TESTS = ("tests/broker/groups/consumer/test_consumer_core.py",)
SERVICE_TESTS = (
    "tests/broker/groups/consumer/test_service.py",
    "tests/broker/groups/consumer/test_service_moves.py",
    "tests/broker/groups/consumer/test_migration_core.py",
)
STREAMS_TESTS = ("tests/broker/groups/streams/test_streams_core.py",)

GROUP_RULES = (
    Mutation(
        "given-while-held",
        "a member is given a partition that another one has not given back",
        (
            Patch(
                RECONCILE,
                "if p not in had and not is_held(topic_id, p)}",
                "if p not in had}",
            ),
        ),
        CORE_TESTS,
    ),
    Mutation(
        "not-given-back",
        "a partition counts as given back with the first heartbeat that comes after",
        (
            Patch(
                RECONCILE,
                "    if owned is None:\n        return False\n    return not any(",
                "    return not all(",
            ),
        ),
        CORE_TESTS,
    ),
    Mutation(
        "kept-silently",
        "a member that has to give something back is told the next epoch at once",
        (
            Patch(
                RECONCILE,
                "    if revoke and (owned is None or _owns_any(owned, revoke)):\n"
                "        return Current(\n            current.epoch, current.previous_epoch",
                "    if False and revoke:\n"
                "        return Current(\n            current.epoch, current.previous_epoch",
            ),
        ),
        CORE_TESTS,
    ),
    Mutation(
        "any-epoch-commits",
        "a commit of an epoch before the partition was given to the member is taken",
        (Patch(LIVE, "if since is None or epoch < since:", "if False:"),),
        (*CORE_TESTS, *SERVICE_TESTS),
    ),
    Mutation(
        "load-without-sessions",
        "a coordinator that takes a group over removes nobody who is silent from then on",
        (
            Patch(
                LIVE,
                "            self.touch(member_id, times, now_ms)\n        self._derive",
                "            pass\n        self._derive",
            ),
        ),
        SERVICE_TESTS,
    ),
    Mutation(
        "never-late",
        "who does not give a partition back in time keeps it",
        (
            Patch(
                LIVE,
                "            self._set(self.revocation_deadlines, member_id, at_ms)",
                "            self._set({}, member_id, at_ms)",
            ),
        ),
        (*CORE_TESTS, *SERVICE_TESTS),
    ),
    Mutation(
        "removal-not-tried-again",
        "a member whose removal could not be stored stays for ever",
        (
            Patch(
                "broker.groups.consumer.service",
                "            live.expect_again(self.times_of(live.group_id), now_ms)\n",
                "",
            ),
        ),
        SERVICE_TESTS,
    ),
    Mutation(
        "share-state-forgotten",
        "a leader of a share partition begins with the start offset, and forgets what was"
        " acknowledged behind it",
        (
            Patch(
                SHARE,
                "SharePartitionCore(start, stored.batches)",
                "SharePartitionCore(start, [])",
            ),
        ),
        ("tests/broker/share/state/test_coordinator_on_ledgers.py",),
    ),
    Mutation(
        "locks-end-early",
        "a lock on a record ends some time before its member was told",
        (
            Patch(
                SHARE_CORE,
                "if run.state == ACQUIRED and run.change is None and run.deadline_ms <= now_ms\n"
                "        ]\n        return",
                "if run.state == ACQUIRED and run.change is None"
                " and run.deadline_ms <= now_ms + 600\n        ]\n        return",
            ),
        ),
        ("tests/broker/share/partition/test_share_partition_core.py",),
    ),
    Mutation(
        "anybody-acknowledges",
        "a record is acknowledged by a member whose lock on it is over",
        (
            Patch(
                SHARE_CORE,
                "or run.change is not None or run.member != member:",
                "or run.change is not None:",
            ),
        ),
        ("tests/broker/share/partition/test_share_partition_core.py",),
    ),
    Mutation(
        "acknowledged-unstored",
        "a member is told that its acknowledgement is stored while that is on its way",
        (
            Patch(
                "broker.share.state.shard",
                "            self._store(key, outcome.record, outcome.state, acknowledged)",
                "            self._store(key, outcome.record, outcome.state, acknowledged)\n"
                "            acknowledged(ErrorCode.NONE)",
            ),
        ),
        ("tests/broker/share/state/test_coordinator.py",),
    ),
    Mutation(
        "task-given-while-held",
        "an active task is given to a member while another one has not given it back",
        (
            Patch(
                "broker.groups.streams.group",
                "if owners.get(task, member_id) == member_id and (",
                "if task in owners or (",
            ),
        ),
        STREAMS_TESTS,
    ),
    Mutation(
        "task-not-given-back",
        "a task counts as given back with the first heartbeat that comes after",
        (
            Patch(
                STREAMS_RECONCILE,
                "        owned is None or owns_any(owned, current.pending)\n",
                "        owned is not None and not owns_any(owned, current.pending)\n",
            ),
        ),
        STREAMS_TESTS,
    ),
    Mutation(
        "task-kept-silently",
        "a streams member that has to give a task back is told the next epoch at once",
        (
            Patch(
                STREAMS_RECONCILE,
                "    if not revoke.is_empty and (owned is None or owns_any(owned, revoke)):",
                "    if False:",
            ),
        ),
        STREAMS_TESTS,
    ),
    Mutation(
        "copy-without-a-store",
        "tasks without a store have standbys, too",
        (Patch(STREAMS_ASSIGNOR, "        if each.is_stateful\n", "        if True\n"),),
        ("tests/broker/groups/streams/test_task_assignor_core.py",),
    ),
    Mutation(
        "copy-of-its-own",
        "who has a task may be given a standby of it",
        (
            Patch(
                STREAMS_ASSIGNOR,
                "        and task not in assignment.process_of[active].held\n",
                "",
            ),
        ),
        ("tests/broker/groups/streams/test_task_assignor_core.py",),
    ),
    Mutation(
        "internal-topic-tried-once",
        "an internal topic that could not be made counts as being on its way for ever",
        (
            Patch(
                "broker.groups.streams.internal_topics",
                "                self._on_the_way.discard(topic.name)",
                "                pass",
            ),
        ),
        ("tests/broker/groups/streams/test_service.py",),
    ),
    Mutation(
        "upgraded-empty-handed",
        "a group that goes to the newer protocol forgets what its classic members have",
        (
            Patch(
                MIGRATION,
                "sorted(partitions - others)",
                "sorted(partitions & others)",
            ),
        ),
        SERVICE_TESTS,
    ),
    Mutation(
        "upgrade-frees-what-is-kept",
        "a group that goes to the newer protocol forgets what a cooperative member has still to"
        " give up",
        (
            Patch(
                MIGRATION,
                "[*enumerate(given), *((number, kept[number][1]) for number in later_first)]",
                "[*enumerate(given)]",
            ),
        ),
        SERVICE_TESTS,
    ),
    Mutation(
        "join-gives-all-back",
        "what a classic member still has counts as given back once it joins",
        (
            Patch(
                "broker.groups.consumer.mixed_core",
                "owned_by(subscription, context.topics), context)",
                "{}, context)",
            ),
        ),
        SERVICE_TESTS,
    ),
    Mutation(
        "downgrade-without-rebalance",
        "a group that becomes a classic one again goes on without a rebalance",
        (
            Patch(
                "broker.groups.classic.group_core",
                "    if group.state is STABLE:\n        prepare_rebalance(group, reason, now_ms)\n"
                "    return [*effects",
                "    return [*effects",
            ),
        ),
        SERVICE_TESTS,
    ),
    Mutation(
        "downgrade-frees-what-is-kept",
        "a group that becomes a classic one forgets what a member has still to give back",
        (
            Patch(
                MIGRATION,
                "assignment_bytes(_held(current), metadata, topics),",
                "assignment_bytes(current.assigned, metadata, topics),",
            ),
        ),
        SERVICE_TESTS,
    ),
    Mutation(
        "downgrade-loses-offsets",
        "a group that becomes a classic one again forgets what was committed",
        (
            Patch(
                "broker.groups.consumer.service",
                "            self._timers.cancel(entry)\n            entry.group = classic\n",
                "            self._timers.cancel(entry)\n            entry.group = classic\n"
                "            entry.offsets = type(entry.offsets)()\n",
            ),
        ),
        SERVICE_TESTS,
    ),
    Mutation(
        "downgrade-loaded-as-stable",
        "a group that became a classic one counts as stable if it is loaded before it rebalanced",
        (
            Patch(
                "broker.groups.classic.group_core",
                "    elif group.members and group.is_unshared:\n",
                "    elif False:\n",
            ),
        ),
        SERVICE_TESTS,
    ),
)
