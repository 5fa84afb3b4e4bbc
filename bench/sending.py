"""What it costs a process to send a file that is in the page cache: sendmsg of a mapping beside
sendfile, over loopback.

    python -m bench.sending [--megabytes 2048] [--rounds 2] [--directory DIR]

Seconds of the sender's processor a GB, and MB/s, by the size of the pieces. It is what a fetch
could gain if no byte were copied out of the page cache (runtime/cached_reads.py).
"""

import argparse
import mmap
import multiprocessing
import os
import socket
import tempfile
import time
from collections.abc import Callable

MIB = 1 << 20
FILE_SIZE = 256 * MIB
PIECES = (4 << 10, 64 << 10, MIB)


def receive(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    memory = bytearray(MIB)
    while connection.recv_into(memory):
        pass


def by_sendmsg(sock: socket.socket, view: memoryview, _fd: int, at: int, piece: int) -> None:
    parts = [view[at + start : at + start + piece] for start in range(0, MIB, piece)]
    sent = sock.sendmsg(parts)
    sock.sendall(view[at + sent : at + MIB])


def by_sendfile(sock: socket.socket, _view: memoryview, fd: int, at: int, piece: int) -> None:
    for start in range(at, at + MIB, piece):
        sent = 0
        while sent < piece:
            sent += os.sendfile(sock.fileno(), fd, start + sent, piece - sent)


def measure(send: Callable[..., None], fd: int, piece: int, megabytes: int) -> str:
    listener = socket.create_server(("127.0.0.1", 0))
    receiver = multiprocessing.Process(target=receive, args=(listener,))
    receiver.start()
    with (
        socket.create_connection(listener.getsockname()) as sock,
        mmap.mmap(fd, 0, prot=mmap.PROT_READ) as mapping,
        memoryview(mapping) as view,
    ):
        cpu, start = time.process_time(), time.perf_counter()
        for number in range(megabytes):
            send(sock, view, fd, number * MIB % FILE_SIZE, piece)
        cpu, seconds = time.process_time() - cpu, time.perf_counter() - start
    listener.close()
    receiver.join()
    size = megabytes * MIB
    return f"{cpu / (size / 1e9):.3f} s/GB {size / 1e6 / seconds:6,.0f} MB/s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--megabytes", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--directory", default=None)
    options = parser.parse_args()
    with tempfile.TemporaryFile(dir=options.directory) as file:
        for _ in range(FILE_SIZE // MIB):
            file.write(os.urandom(MIB))
        file.flush()
        for _ in range(options.rounds):
            for piece in PIECES:
                for send in (by_sendmsg, by_sendfile):
                    found = measure(send, file.fileno(), piece, options.megabytes)
                    print(f"{piece >> 10:5} KiB {send.__name__[3:]:9} {found}", flush=True)


if __name__ == "__main__":
    main()
