"""Pages about what a broker holds: the same on a broker's own site and on a standalone server's."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from quire.tools.admin.compaction import CompactionPages
from quire.tools.admin.groups import GroupPages

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from broker.groups.coordinator import GroupCoordinator
    from broker.log.compact.cleaner import LogCleaner
    from broker.log.manager import LogManager
    from runtime.http import HttpRequest, HttpResponse

COMPACTION = "/api/v1/quire/compaction/"
GROUPS = "/api/v1/quire/groups/"


class BrokerPages:
    def __init__(
        self, logs: LogManager, cleaner: LogCleaner | None, coordinator: GroupCoordinator
    ) -> None:
        """`cleaner` None: log.cleaner.enable is false."""
        self._compaction = CompactionPages(logs, cleaner)
        self._groups = GroupPages(coordinator)

    def find(self, path: str) -> Callable[[HttpRequest], Awaitable[HttpResponse]] | None:
        """What answers requests of this path; None: it is not one of these pages."""
        for prefix, respond in (
            (COMPACTION, self._compaction.respond),
            (GROUPS, self._groups.respond),
        ):
            if path.startswith(prefix):
                return partial(respond, name=path.removeprefix(prefix))
        return None
