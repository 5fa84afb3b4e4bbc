"""What dispatch puts before a handler: the guard is asked first, and what it refuses is told."""

import trio

from broker.api import Abandonable, Api, ConnectionInfo, Reply, Request, all_steps
from broker.dispatch import ApiRoute
from broker.guard import guarded
from tests.broker.rules import Rules
from wire.kafka.api_keys import ApiKey
from wire.kafka.messages.groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
)
from wire.kafka.messages.produce import ProduceRequest, ProduceResponse, TopicProduceData

READ_G = ("READ", "GROUP", "g")


def run(key, version, body, rules, handle):
    """(what came of it, whether the connection was closed)."""
    closed = []
    connection = ConnectionInfo("1", "127.0.0.1", "PLAINTEXT", close=lambda: closed.append(True))
    request = Request(key, version, 1, "", connection, body)
    result = guarded(key, key.name, handle, rules)(request)
    return all_steps(result), bool(closed)


def test_the_handler_hears_of_what_is_allowed_only():
    body = HeartbeatRequest(group_id="g")
    reply = Reply()
    assert run(ApiKey.HEARTBEAT, 4, body, Rules(READ_G), lambda _: reply) == (reply, False)
    response, _ = run(ApiKey.HEARTBEAT, 4, body, Rules(), lambda _: 1 // 0)
    assert response == HeartbeatResponse(error_code=30)


def test_steps_of_a_handler_go_on_after_the_questions():
    def handle(request):
        yield 7
        return request.body

    body = HeartbeatRequest(group_id="g")
    assert run(ApiKey.HEARTBEAT, 4, body, Rules(READ_G), handle) == (body, False)


def test_without_a_place_for_the_refusal_it_closes():
    body = ProduceRequest(acks=0, topic_data=[TopicProduceData(name="a")])
    assert run(ApiKey.PRODUCE, 9, body, Rules(), lambda _: 1 // 0) == (None, True)


def deleted(request):
    return DeleteGroupsResponse(
        results=[DeletableGroupResult(x) for x in request.body.groups_names]
    )


def told(answer):
    return [(one.group_id, one.error_code) for one in answer.results]


BESIDE = [("b", 0), ("a", 30), ("c", 30)]
RULES = Rules(("DELETE", "GROUP", "b"))


def test_what_is_refused_is_told_beside_what_the_handler_says():
    body = DeleteGroupsRequest(groups_names=["a", "b", "c"])
    answer, _ = run(ApiKey.DELETE_GROUPS, 2, body, RULES, deleted)
    assert told(answer) == BESIDE
    body = DeleteGroupsRequest(groups_names=["a", "c"])
    answer, _ = run(ApiKey.DELETE_GROUPS, 2, body, RULES, lambda _: 1 // 0)
    assert told(answer) == [("a", 30), ("c", 30)]


def test_beside_a_reply_that_comes_later():
    body = DeleteGroupsRequest(groups_names=["a", "b", "c"])
    reply, _ = run(ApiKey.DELETE_GROUPS, 2, body, RULES, lambda _: Reply())
    reply.resolve(deleted(Request(42, 2, 1, "", None, body)))
    assert told(reply.message) == BESIDE


def test_beside_a_reply_that_was_there_at_once():
    def handle(request):
        reply = Reply()
        reply.resolve(deleted(request))
        return reply

    body = DeleteGroupsRequest(groups_names=["a", "b", "c"])
    reply, _ = run(ApiKey.DELETE_GROUPS, 2, body, RULES, handle)
    assert told(reply.message) == BESIDE


async def test_beside_what_a_task_gives():
    async def later(request):
        await trio.lowlevel.checkpoint()
        return deleted(request)

    body = DeleteGroupsRequest(groups_names=["a", "b", "c"])
    result, _ = run(ApiKey.DELETE_GROUPS, 2, body, RULES, later)
    assert told(await result) == BESIDE
    body = DeleteGroupsRequest(groups_names=["a", "b", "c"])
    result, _ = run(
        ApiKey.DELETE_GROUPS, 2, body, RULES, lambda request: Abandonable(lambda _: later(request))
    )
    assert told(await result) == BESIDE


def test_beside_records_that_are_written():
    topics = [TopicProduceData(name="a"), TopicProduceData(name="b")]
    body = ProduceRequest(acks=-1, topic_data=topics)
    rules = Rules(("WRITE", "TOPIC", "a"))
    reply, is_closed = run(ApiKey.PRODUCE, 9, body, rules, lambda _: Reply())
    assert [topic.name for topic in body.topic_data] == ["a"]
    reply.resolve(ProduceResponse())
    assert [topic.name for topic in reply.message.responses] == ["b"]
    assert not is_closed


def test_without_an_authorizer_nothing_is_asked_or_called():
    """The route has the handler's own function: produce and fetch pay nothing, not one look-up."""
    for key in (ApiKey.PRODUCE, ApiKey.FETCH):
        api = Api(key, 9, 9, lambda request: None)
        assert ApiRoute(api, 9, [0, 0], None).handle is api.handle
        assert ApiRoute(api, 9, [0, 0], Rules()).handle is not api.handle
