"""A request to a handler through the codec, as a client of its version sends it and reads the
answer; what the answer says is noted (driven.py)."""

import inspect
from types import SimpleNamespace

import trio

from broker.api import ConnectionInfo, Reply, Request, all_steps
from tests.broker import driven
from wire.kafka.codec import decode, encode


async def call(api, message, version=None, connection_id="c", **fields):
    """The answer, in the highest version unless told otherwise. `fields`: of the Request."""
    version = api.version_max if version is None else version
    assert api.version_min <= version <= api.version_max
    body, _ = decode(type(message), version, encode(message, version))
    connection = ConnectionInfo(connection_id, "10.0.0.9", "PLAINTEXT")
    result = api.handle(Request(api.key, version, 1, "client", connection, body, **fields))
    if inspect.isgenerator(result):
        result = all_steps(result)
    if inspect.isawaitable(result):
        result = await result
    if isinstance(result, Reply):
        result = await _resolved(result)
    answer, _ = decode(type(result), version, encode(result, version))
    driven.note(api.key, version, answer, on_wire=False)
    return answer


async def _resolved(reply):
    done = trio.Event()
    reply.line = SimpleNamespace(reply_resolved=lambda _: done.set())
    if reply.message is None:
        with trio.fail_after(10):
            await done.wait()
    return reply.message


def apis_of(*handlers):
    return {api.key: api for handler in handlers for api in handler.apis()}


def errors_in(answer):
    """Names of all errors in it; {«NONE»} if there are none."""
    codes = set(driven.error_codes(answer))
    return {driven.ErrorCode(code).name for code in codes - {0}} or {"NONE"}
