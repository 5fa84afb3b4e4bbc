"""What the pages of compaction ask of all partitions."""

from types import SimpleNamespace

import pytest

from quire.tools.admin.compaction import ASKED_PER_TURN, CompactionPages
from runtime.http import HttpError, HttpRequest
from tests.turns import turns_of_others


async def test_a_topic_of_many_partitions_is_asked_for_in_slices():
    logs = list(range(4 * ASKED_PER_TURN))
    asked = []
    cleaner = SimpleNamespace(is_candidate=lambda log: log == logs[-1], ask=asked.append)
    pages = CompactionPages(SimpleNamespace(of_topic=lambda name: logs), cleaner)
    pages.describe = lambda log: log
    request = HttpRequest("POST", "/", {}, {})
    async with turns_of_others() as turns:
        await pages.respond(request, "wide")
        assert asked == [logs[-1]]
        assert turns() >= 2
    cleaner.is_candidate = lambda log: False
    with pytest.raises(HttpError, match="wide is not to be compacted"):
        await pages.respond(request, "wide")
