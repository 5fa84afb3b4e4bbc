"""A broker that answers little by little must not hold the client behind its deadline."""

import socket
import ssl
import struct
import threading
import time

import pytest

from broker.security.client_security import ClientSecurity
from pyspark_quire.leader_client import LeaderClient, NoAnswerError
from wire.kafka.headers import encode_response
from wire.kafka.messages.metadata import MetadataRequest, MetadataResponse

SECONDS = 0.5


def drip(listener):
    connection, _ = listener.accept()
    with connection:
        connection.recv(1 << 16)
        connection.sendall(struct.pack(">i", 1000))
        for _ in range(30):
            time.sleep(0.1)
            try:
                connection.sendall(b"\0")
            except OSError:
                return


def test_an_answer_that_drips_ends_at_the_deadline():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener,))
        thread.start()
        began = time.monotonic()
        with LeaderClient(ClientSecurity(), seconds=SECONDS) as client:
            with pytest.raises(NoAnswerError):
                client.ask(listener.getsockname(), MetadataRequest(topics=[]), 9)
            took = time.monotonic() - began
        thread.join()
    assert took < 3 * SECONDS


@pytest.mark.parametrize("kind", [ssl.SSLEOFError, ssl.SSLZeroReturnError])
def test_a_broker_that_ends_in_the_middle_of_tls_is_asked_again(monkeypatch, kind):
    """It was restarted; a certificate that is refused is another matter."""

    def ask(*_words):
        raise kind(8, "EOF occurred in violation of protocol")

    monkeypatch.setattr(LeaderClient, "_connected", ask)
    with LeaderClient(ClientSecurity(), seconds=SECONDS) as client, pytest.raises(NoAnswerError):
        client.ask(("127.0.0.1", 1), MetadataRequest(topics=[]), 9)


def test_an_answer_to_another_question_is_none():
    def answer_another(listener):
        connection, _ = listener.accept()
        with connection:
            connection.recv(1 << 16)
            answer = encode_response(MetadataResponse(), MetadataRequest.INFO.key, 9, 4711)
            connection.sendall(b"".join(answer))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer_another, args=(listener,))
        thread.start()
        client = LeaderClient(ClientSecurity(), seconds=5)
        with client, pytest.raises(NoAnswerError, match="another question"):
            client.ask(listener.getsockname(), MetadataRequest(topics=[]), 9)
        thread.join()
