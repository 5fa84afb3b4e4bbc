"""What a bookie's server answers when the machine beneath it does not answer."""

import errno
import os

import trio

from wire.bookkeeper import v3
from wire.bookkeeper.requests import BookieInfoRequest
from wire.bookkeeper.responses import BookieInfoResponse
from wire.bookkeeper.status import Status


class Space:
    """A disk that can be asked for its space, or cannot."""

    def __init__(self):
        self.error = None

    def __call__(self):
        if self.error is not None:
            raise OSError(self.error, os.strerror(self.error), "/ledgers")
        return 1000, 500


async def ask(stream, *requests):
    """Requests that arrive together, and their answers."""
    await stream.send_all(b"".join(b"".join(v3.encode_request(request)) for request in requests))
    answers, data = [], b""
    with trio.fail_after(10):
        while len(answers) < len(requests):
            while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
                chunk = await stream.receive_some(1 << 16)
                assert chunk, "the bookie hung up"
                data += chunk
            size = 4 + int.from_bytes(data[:4], "big")
            answers.append(v3.decode_response(bytes(data[4:size])))
            data = data[size:]
    return answers


async def test_a_disk_that_tells_no_space_is_told_to_who_asked_and_ends_nothing(serve):
    """GetBookieInfoProcessorV3 answers EIO, too. It was an exception in the middle of what had
    arrived: requests behind it on the same connection were never answered."""
    space = Space()
    _, port = await serve(space)
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    for error in (errno.EIO, errno.ENOENT, errno.EBADF):
        space.error = error
        assert await ask(stream, BookieInfoRequest(3, 1), BookieInfoRequest(3, 2)) == [
            BookieInfoResponse(Status.EIO, transaction_id=1),
            BookieInfoResponse(Status.EIO, transaction_id=2),
        ]
    space.error = None
    assert await ask(stream, BookieInfoRequest(3, 3)) == [
        BookieInfoResponse(Status.EOK, 1000, 500, 3)
    ]
    await stream.aclose()
