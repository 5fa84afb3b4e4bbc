"""Freezer: nodes whose processes stand still for a while and then go on, as after SIGSTOP.

A frozen node's tasks do not run: whatever would wake one (an event, a deadline, a cancellation) is
kept, and it runs when the node goes on, late. What arrives for it from the network waits in the
kernel, as do its disk's reports. The world sees a node that is there and does not answer; the node
sees a clock that jumps, and may be the last to learn that others took it for dead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from sim.trace import OWNER

if TYPE_CHECKING:
    from collections.abc import Callable

    from sim.nodes import Node


class Freezer:
    def __init__(self) -> None:
        #: By the name of a frozen node: its tasks that would run.
        self._held: dict[str, list[trio.lowlevel.Task]] = {}
        self._reschedule: Callable[..., None] | None = None

    def is_frozen(self, node: Node) -> bool:
        return node.name in self._held

    def freeze(self, node: Node) -> None:
        """A task that is about to run takes its last step."""
        if node.life is None or self.is_frozen(node):
            return
        self._held[node.name] = []
        node.life.net.halt()
        node.disk.halt()
        if self._reschedule is None:
            self._intercept()

    def thaw(self, node: Node) -> None:
        tasks = self._held.pop(node.name, None)
        if tasks is None:
            return
        _loop().runq.extend(tasks)
        node.disk.resume()
        if node.life is not None:
            node.life.net.resume()
        if not self._held:
            self._release()

    # trio wakes every task through this one method, and has no hook before it does.

    def _intercept(self) -> None:
        original: Any = _loop_class().reschedule
        self._reschedule = original
        held = self._held

        def reschedule(
            loop: Any,  # noqa: ANN401
            task: trio.lowlevel.Task,
            *outcome: object,
        ) -> None:
            original(loop, task, *outcome)
            owner = task.context.get(OWNER)
            if owner in held:
                assert loop.runq.pop() is task
                held[owner].append(task)

        _loop_class().reschedule = reschedule

    def _release(self) -> None:
        if self._reschedule is not None:
            _loop_class().reschedule = self._reschedule
            self._reschedule = None

    def close(self) -> None:
        """Nothing is frozen any more."""
        for tasks in self._held.values():
            _loop().runq.extend(tasks)
        self._held.clear()
        self._release()


def _loop() -> Any:  # noqa: ANN401  # trio's, and private
    core: Any = trio._core._run
    return core.GLOBAL_RUN_CONTEXT.runner


def _loop_class() -> Any:  # noqa: ANN401
    core: Any = trio._core._run
    return core.Runner
