"""Who leads what, by an administrator's hand: elections, reassignments, brokers that are gone.

| key | versions | what |
|--|--|--|
| 43 ElectLeaders | 0-2 | preferred (0) and unclean (1) election (KIP-460) |
| 45 AlterPartitionReassignments | 0-1 | another list of brokers, or back (KIP-455) |
| 46 ListPartitionReassignments | 0 | those whose new leader has not taken over yet |
| 64 UnregisterBroker | 0 | a broker that is gone for good leaves all lists |

Any broker answers: a change is a compare-and-set on an assignment, which all follow. A move is that
change and one take-over, whatever the partition's size. The answer comes when the change is stored,
so timeouts are not needed.

Known deviations: no copies are made or dropped by a list, as those are on bookies: its length must
be that of the partition's replicas as they are shown, else INVALID_REPLICATION_FACTOR; ids of
bookies in it count for the length only. The list is in force at once, so replicas that are added
or removed are listed only while the new leader takes over. A broker that runs is not unregistered:
INVALID_REQUEST (Kafka forgets it until it registers again). Unclean elections lose nothing here:
every broker can lead, and one is elected by the cluster itself as soon as there is one.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from broker.api import Api, Request, Steps
from broker.cluster.balance import Electorate, without_broker
from broker.cluster.durability import BOOKIE_NODE_ID_MIN
from broker.handlers.topics import metadata_failure
from metadata.store import MetadataError
from runtime.slices import Slices
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode, KafkaError
from wire.kafka.messages.cluster import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    PartitionResult,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
    ReplicaElectionResult,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from broker.cluster.assigned import AssignedOwnership
    from broker.cluster.assignment import Assigned, Assignment
    from broker.cluster.catalog import Topic, TopicCatalog
    from broker.cluster.membership import Membership
    from broker.cluster.view import ClusterView

    Decide = Callable[[Assigned], Assigned]

_PREFERRED, _UNCLEAN = 0, 1

PARTITIONS_PER_TURN = 200


class LeadersHandler:
    def __init__(
        self,
        catalog: TopicCatalog,
        membership: Membership,
        ownership: AssignedOwnership,
        view: ClusterView,
    ) -> None:
        self._catalog = catalog
        self._membership = membership
        self._ownership = ownership
        self._view = view

    def apis(self) -> list[Api]:
        return [
            Api(ApiKey.ELECT_LEADERS, 0, 2, self.elect_leaders),
            Api(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 1, self.alter_reassignments),
            Api(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0, self.list_reassignments),
            Api(ApiKey.UNREGISTER_BROKER, 0, 0, self.unregister_broker),
        ]

    def _electorate(self) -> Electorate:
        return Electorate(self._membership.candidates(), self._ownership.leading)

    def _assigned(self, name: str, number: int) -> tuple[Topic, Assigned]:
        """KafkaError UNKNOWN_TOPIC_OR_PARTITION."""
        topic = self._catalog.get(name)
        assigned = None if topic is None else self._ownership.partition(topic.id, number)
        if topic is None or assigned is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {name}-{number}"
            )
        return topic, assigned

    async def _decide(self, name: str, numbers: Mapping[int, Decide]) -> dict[int, KafkaError]:
        """Changes partitions of one topic; what each of them was refused with."""
        topic = self._catalog.get(name)
        refused: dict[int, KafkaError] = {}

        def change(assignment: Assignment | None) -> Assignment | None:
            refused.clear()
            changed = {}
            for number, decide in numbers.items():
                if assignment is None or not 0 <= number < len(assignment.partitions):
                    unknown = f"there is no partition {name}-{number}"
                    refused[number] = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, unknown)
                    continue
                try:
                    changed[number] = decide(assignment.partitions[number])
                except KafkaError as error:
                    refused[number] = error
            return assignment and assignment.with_partitions(changed)

        if topic is None:
            change(None)
            return refused
        try:
            await self._ownership.change(topic.id, change)
        except MetadataError as error:
            failure = metadata_failure(error)
            return {number: refused.get(number, failure) for number in numbers}
        return refused

    # -- ElectLeaders -----------------------------------------------------------------------------

    async def elect_leaders(self, request: Request) -> ElectLeadersResponse:
        body: ElectLeadersRequest = request.body
        response = ElectLeadersResponse()
        if body.election_type not in (_PREFERRED, _UNCLEAN):
            response.error_code = int(ErrorCode.INVALID_REQUEST)
            return response
        is_all = body.topic_partitions is None
        if body.topic_partitions is None:
            asked = [(t.name, list(range(t.partition_count))) for t in self._catalog.all()]
        else:
            asked = [(one.topic, one.partitions) for one in body.topic_partitions]
        slices = Slices(PARTITIONS_PER_TURN)
        electorate = self._electorate()
        decide = partial(
            _preferred if body.election_type == _PREFERRED else _any_leader, electorate
        )
        for name, numbers in asked:
            if slices.due(1 + len(numbers)):
                await slices.turn()
            refused = await self._decide(name, dict.fromkeys(numbers, decide))
            results = [
                PartitionResult(number, *_error(refused.get(number)))
                for number in numbers
                # Asked for all, Kafka names those that needed one.
                if not (is_all and _is_not_needed(refused.get(number)))
            ]
            if results:
                response.replica_election_results.append(ReplicaElectionResult(name, results))
        return response

    # -- reassignments ----------------------------------------------------------------------------

    async def alter_reassignments(self, request: Request) -> AlterPartitionReassignmentsResponse:
        body: AlterPartitionReassignmentsRequest = request.body
        response = AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=body.allow_replication_factor_change
        )
        electorate = self._electorate()
        slices = Slices(PARTITIONS_PER_TURN)
        for topic in body.topics:
            if slices.due(1 + len(topic.partitions)):
                await slices.turn()
            decisions = {
                one.partition_index: partial(self._reassign, electorate, topic.name, one)
                for one in topic.partitions
            }
            refused = await self._decide(topic.name, decisions)
            response.responses.append(
                ReassignableTopicResponse(
                    topic.name,
                    [
                        ReassignablePartitionResponse(
                            one.partition_index, *_error(refused.get(one.partition_index))
                        )
                        for one in topic.partitions
                    ],
                )
            )
        return response

    def _reassign(
        self, electorate: Electorate, name: str, asked: ReassignablePartition, assigned: Assigned
    ) -> Assigned:
        """KafkaError."""
        if asked.replicas is None:
            if not assigned.before:
                raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "none is under way")
            return electorate.cancel(assigned)
        self._check_replicas(name, asked)
        return electorate.reassign(assigned, tuple(_brokers(asked.replicas)))

    def _check_replicas(self, name: str, asked: ReassignablePartition) -> None:
        replicas = asked.replicas or []
        known = self._view.replica_ids()
        unknown = [one for one in replicas if one not in known]
        shown = len(self._view.partition(name, asked.partition_index).replicas)
        if not replicas or len(set(replicas)) < len(replicas):
            problem = "the list is empty, or names a broker twice"
        elif unknown:
            problem = f"broker {unknown[0]} is not there"
        elif not _brokers(replicas):
            problem = "the list names no broker"
        elif len(replicas) != shown:
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"the partition has {shown} copies, which are on bookies: a list of"
                f" {len(replicas)} cannot change that",
            )
        else:
            return
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)

    def list_reassignments(self, request: Request) -> Steps[ListPartitionReassignmentsResponse]:
        body: ListPartitionReassignmentsRequest = request.body
        asked: Iterable[tuple[str, Iterable[int]]]
        if body.topics is None:
            asked = [(t.name, range(t.partition_count)) for t in self._catalog.all()]
        else:
            asked = [(one.name, one.partition_indexes) for one in body.topics]
        response = ListPartitionReassignmentsResponse()
        for name, numbers in asked:
            yield 3
            ongoing = []
            for number in numbers:
                yield 3
                assigned = self._find(name, number)
                if assigned is not None and assigned.before:
                    ongoing.append(_ongoing(number, assigned))
            if ongoing:
                response.topics.append(OngoingTopicReassignment(name, ongoing))
        return response

    def _find(self, name: str, number: int) -> Assigned | None:
        topic = self._catalog.get(name)
        return None if topic is None else self._ownership.partition(topic.id, number)

    # -- UnregisterBroker -------------------------------------------------------------------------

    async def unregister_broker(self, request: Request) -> UnregisterBrokerResponse:
        body: UnregisterBrokerRequest = request.body
        response = UnregisterBrokerResponse()
        try:
            await self._unregister(body.broker_id)
        except MetadataError as metadata_error:
            response.error_code, response.error_message = _error(metadata_failure(metadata_error))
        except KafkaError as error:
            response.error_code, response.error_message = _error(error)
        return response

    async def _unregister(self, broker_id: int) -> None:
        """KafkaError, MetadataError."""
        if broker_id in self._membership.live:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"broker {broker_id} runs: it has to be stopped first"
            )
        candidates = self._membership.candidates()

        def without(assignment: Assignment | None) -> Assignment | None:
            if assignment is None:
                return None
            changed = {
                number: without_broker(one, broker_id, candidates, self._ownership.leading)
                for number, one in enumerate(assignment.partitions)
            }
            return assignment.with_partitions(changed)

        listed = {
            topic_id: without
            for topic_id, assignment in self._ownership.all().items()
            if any(broker_id in (*one.replicas, *one.before) for one in assignment.partitions)
        }
        if not listed:
            raise KafkaError(
                ErrorCode.BROKER_ID_NOT_REGISTERED, f"nothing is known of broker {broker_id}"
            )
        await self._ownership.change_many(listed)


def _preferred(electorate: Electorate, assigned: Assigned) -> Assigned:
    """KafkaError ELECTION_NOT_NEEDED, PREFERRED_LEADER_NOT_AVAILABLE."""
    if assigned.replicas[:1] == (assigned.leader,):
        raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED, "the preferred leader leads")
    changed = electorate.elect_preferred(assigned)
    if changed is assigned:
        raise KafkaError(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "the preferred leader is not there, or leaves"
        )
    return changed


def _any_leader(electorate: Electorate, assigned: Assigned) -> Assigned:
    """KafkaError ELECTION_NOT_NEEDED, ELIGIBLE_LEADERS_NOT_AVAILABLE."""
    if assigned.leader in electorate.states:
        raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED, "it has a leader")
    changed = electorate.elect(assigned)
    if changed is assigned:
        raise KafkaError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "no broker can lead it")
    return changed


def _is_not_needed(error: KafkaError | None) -> bool:
    return error is not None and error.code is ErrorCode.ELECTION_NOT_NEEDED


def _ongoing(number: int, assigned: Assigned) -> OngoingPartitionReassignment:
    removing = [one for one in assigned.before if one not in assigned.replicas]
    return OngoingPartitionReassignment(
        partition_index=number,
        replicas=[*assigned.replicas, *removing],
        adding_replicas=[one for one in assigned.replicas if one not in assigned.before],
        removing_replicas=removing,
    )


def _brokers(node_ids: Iterable[int]) -> list[int]:
    """Without those of bookies (broker/cluster/durability.py)."""
    return [node_id for node_id in node_ids if node_id < BOOKIE_NODE_ID_MIN]


def _error(error: KafkaError | None) -> tuple[int, str | None]:
    return (0, None) if error is None else (int(error.code), error.message)
