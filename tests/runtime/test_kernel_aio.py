"""Syncs that the kernel does on its own: what came of each is told, once."""

import errno
import os
import select

import pytest

from runtime import kernel_aio
from runtime.kernel_aio import KernelAio


@pytest.fixture
def aio():
    opened = KernelAio.open()
    if opened is None:
        pytest.skip("this kernel has no asynchronous syncs for us")
    yield opened
    opened.close()


def ended(aio, told, count):
    poll = select.poll()
    poll.register(aio.eventfd, select.POLLIN)
    while len(told) < count:
        assert poll.poll(20_000), "no sync ended"
        aio.on_ready(select.POLLIN)


def test_syncs_end(aio, tmp_path):
    told = []
    with open(tmp_path / "file", "wb") as file:
        file.write(b"x" * 10_000)
        file.flush()
        for number in range(5):
            assert aio.fdatasync(file.fileno(), lambda error, n=number: told.append((n, error)))
        assert aio.under_way == 5
        ended(aio, told, 5)
    assert sorted(told) == [(number, None) for number in range(5)]
    assert aio.under_way == 0


def test_what_cannot_be_synced_is_refused(aio):
    told = []
    reader, writer = os.pipe()
    assert not aio.fdatasync(writer, told.append)
    assert aio.under_way == 0
    os.close(reader)
    os.close(writer)
    assert not aio.fdatasync(writer, told.append)
    assert told == []


def test_a_sync_that_fails_is_told_with_its_error(monkeypatch, tmp_path):
    """The kernel is asked for real; the results are changed on their way here."""
    aio = KernelAio.open()
    if aio is None:
        pytest.skip("this kernel has no asynchronous syncs for us")
    results = {1: 0, 2: -errno.EIO, 3: -errno.ENOSPC}
    call = aio._call

    def failing(number, *arguments):
        count = call(number, *arguments)
        if number is aio._getevents:
            for event in aio._events[: max(count, 0)]:
                event.result = results[event.data]
        return count

    aio._call = failing
    told = []
    with open(tmp_path / "file", "wb") as file:
        for number in results:
            assert aio.fdatasync(file.fileno(), lambda error, n=number: told.append((n, error)))
        ended(aio, told, len(results))
    aio.close()
    codes = {number: None if error is None else error.errno for number, error in told}
    assert codes == {1: None, 2: errno.EIO, 3: errno.ENOSPC}


def test_where_the_kernel_has_none_there_is_none(monkeypatch):
    monkeypatch.setattr(kernel_aio.platform, "machine", lambda: "unheard of")
    assert KernelAio.open() is None
