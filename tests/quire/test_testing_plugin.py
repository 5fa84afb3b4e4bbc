"""The pytest fixtures, in projects of their users: a pytest process each."""

import os
import subprocess
import sys
import textwrap

import pytest

from quire.testing import pytest_plugin

TIMEOUT_SECONDS = 100

CLIENT = """
    from confluent_kafka import Consumer, Producer
    from confluent_kafka.admin import AdminClient

    def produce(server, value, topic="t"):
        producer = Producer({"bootstrap.servers": server.bootstrap_servers})
        producer.produce(topic, value)
        assert producer.flush(30) == 0

    def topics(server):
        admin = AdminClient({"bootstrap.servers": server.bootstrap_servers})
        known = admin.list_topics(timeout=30).topics
        return {name: len(topic.partitions) for name, topic in known.items()}
    """


@pytest.fixture
def project(tmp_path):
    """project(name=text, ...) writes files and runs pytest there; its result, and the directory
    for the temporary files of its servers."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    root = tmp_path / "project"
    root.mkdir()
    (root / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    (root / "client.py").write_text(textwrap.dedent(CLIENT))

    def run(*arguments, **files):
        for name, text in files.items():
            (root / f"{name}.py").write_text(textwrap.dedent(text))
        command = [sys.executable, "-m", "pytest", "-p", pytest_plugin.__name__]
        command += ["-p", "no:cacheprovider", "-rA", *arguments]
        result = subprocess.run(
            command,
            cwd=root,
            env={**os.environ, "TMPDIR": str(scratch)},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        left = [name for name in os.listdir(scratch) if name.startswith("quire")]
        assert left == []
        return result

    return run


def test_scopes(project):
    """Each test gets an empty `quire_server`, and all of them the same `quire_session_server`."""
    result = project(
        test_it="""
        from client import produce, topics
        import pytest

        @pytest.mark.parametrize("number", range(2))
        def test_own(quire_server, number):
            assert topics(quire_server) == {}
            produce(quire_server, b"x")
            assert topics(quire_server) == {"t": 1}

        def test_first(quire_session_server, quire_server):
            produce(quire_session_server, b"x", "first")
            assert quire_session_server.data_dir != quire_server.data_dir

        def test_second(quire_session_server):
            assert topics(quire_session_server) == {"first": 1}
        """
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "4 passed" in result.stdout


def test_the_factory_and_the_config(project):
    result = project(
        conftest="""
        import pytest

        @pytest.fixture(scope="session")
        def quire_server_config():
            return {"num.partitions": 3, "auto.create.topics.enable": True}
        """,
        test_it="""
        from client import produce, topics

        def test_config(quire_server, quire_session_server):
            for server in (quire_server, quire_session_server):
                produce(server, b"x")
                assert topics(server) == {"t": 3}

        def test_factory(quire_server_factory, tmp_path):
            one = quire_server_factory(topics={"a": 2})
            two = quire_server_factory(config={"num.partitions": 5}, data_dir=tmp_path)
            produce(one, b"x")
            produce(two, b"x")
            assert topics(one) == {"a": 2, "t": 3}
            assert topics(two) == {"t": 5}
            assert two.data_dir == str(tmp_path)
            two.restart()
            assert topics(two) == {"t": 5}
        """,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "2 passed" in result.stdout


def test_asyncio_and_trio_tests_use_the_same_fixtures(project):
    result = project(
        test_it="""
        import asyncio
        from functools import partial

        import pytest
        import quire.testing
        import trio
        from aiokafka import AIOKafkaProducer
        from client import produce, topics

        def test_asyncio(quire_server):
            async def session():
                async with AIOKafkaProducer(
                    bootstrap_servers=quire_server.bootstrap_servers
                ) as producer:
                    await producer.send_and_wait("t", b"x")

            asyncio.run(session())
            assert topics(quire_server) == {"t": 1}

        @pytest.mark.trio
        async def test_trio(quire_server):
            async with quire.testing.Server() as other:
                for server in (quire_server, other):
                    await trio.to_thread.run_sync(partial(produce, server, b"x"))
                quire_server.restart()
                assert await trio.to_thread.run_sync(topics, quire_server) == {"t": 1}
        """,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "2 passed" in result.stdout


def test_failures_are_the_tests(project):
    """A server that does not start is an error of the test that asked; a failing test stays one,
    and its server is stopped."""
    result = project(
        test_it="""
        import pytest

        @pytest.fixture(scope="module")
        def bad():
            return {"num.partition": 1}

        def test_start(quire_server_factory, bad):
            quire_server_factory(config=bad)

        def test_fails(quire_server):
            pytest.fail("mine")

        def test_goes_on(quire_server):
            quire_server.restart()
        """
    )
    assert result.returncode == 1
    assert "2 failed, 1 passed" in result.stdout
    assert "num.partitions" in result.stdout  # the right name of the wrong setting
    assert "Failed: mine" in result.stdout


def test_the_plugin_costs_nothing_until_a_server_is_wanted():
    """pytest loads it in every run, so it must not pull in the server."""
    code = f"import sys, {pytest_plugin.__name__}; print('trio' in sys.modules)"
    code += "; print([name for name in sys.modules if name.startswith(('broker', 'bookie'))])"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert output == "False\n[]\n"
