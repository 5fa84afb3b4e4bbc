"""`quire standalone --admin`, and `quire user reset`, as an operator meets them: by a login."""

import contextlib
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

QUIRE = Path(sys.executable).parent / "quire"
SETTINGS = (
    "listeners=SASL_PLAINTEXT://127.0.0.1:0",
    "inter.broker.listener.name=SASL_PLAINTEXT",
    "sasl.enabled.mechanisms=SCRAM-SHA-256,SCRAM-SHA-512",
    *("journalMaxSizeMB=14", "journalMaxBackups=1"),
)


@pytest.fixture
def data_dir(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def serve(data_dir):
    """with serve(*options, said=[]) as address; what it logged is in `said` afterwards."""

    @contextlib.contextmanager
    def run(*options, said=None, given=None):
        command = [str(QUIRE), "standalone", "--data-dir", str(data_dir), *options]
        for setting in SETTINGS:
            command += ["--set", setting]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            if given is not None:
                process.stdin.write(given)
            process.stdin.close()
            process.stdin = None
            line = process.stdout.readline()
            assert line.startswith("ready listen="), process.stderr.read()
            yield line.removeprefix("ready listen=").strip()
        finally:
            process.terminate()
            output = process.communicate()
            if said is not None:
                said += output

    return run


def may_log_in(address, password, mechanism="SCRAM-SHA-512", user="root"):
    client = AdminClient(
        {
            "bootstrap.servers": address,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
            "log_level": 0,
        }
    )
    try:
        client.list_topics(timeout=2)
    except KafkaException:
        return False
    return True


def test_a_password_is_made_once_and_is_in_a_file_alone(serve, data_dir):
    said = []
    with serve("--admin", "root", said=said) as address:
        path = data_dir / "admin-password"
        password = path.read_text().strip()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE((data_dir / "metadata.db").stat().st_mode) == 0o600
        assert may_log_in(address, password, "SCRAM-SHA-256")
        assert may_log_in(address, password)
        assert not may_log_in(address, password[:-1])
    with serve("--admin", "root", said=said) as address:
        assert path.read_text().strip() == password
        assert may_log_in(address, password)
    assert f"admin_password_is_in path={path}" in "".join(said)
    assert "admin_unchanged user=root" in "".join(said)
    assert password not in "".join(said)
    assert password.encode() not in (data_dir / "metadata.db").read_bytes()


def test_of_one_mechanism_with_a_given_password_and_reset_when_it_is_lost(
    serve, data_dir, tmp_path
):
    said = []
    with serve(
        *("--admin", "root:SCRAM-SHA-512", "--admin-password-file", "-"),
        said=said,
        given="old one\n",
    ) as address:
        assert may_log_in(address, "old one")
        assert not may_log_in(address, "old one", "SCRAM-SHA-256")
        used = run("user", "reset", "root", "--password-file", "-", "--data-dir", str(data_dir))
        assert used.returncode == 1
        assert "a server runs there" in used.stderr
    assert "old one" not in "".join(said)
    assert not (data_dir / "admin-password").exists()
    path = tmp_path / "new"
    path.write_text("new one\n")
    path.chmod(0o600)
    done = run("user", "reset", "root", "--password-file", str(path), "--data-dir", str(data_dir))
    assert done.returncode == 0, done.stderr
    assert "new one" not in done.stdout
    # Another start with the old password changes nothing.
    with serve("--admin", "root", "--admin-password-file", "-", given="old one\n") as address:
        assert may_log_in(address, "new one", "SCRAM-SHA-256")
        assert may_log_in(address, "new one")
        assert not may_log_in(address, "old one")


def run(*arguments):
    return subprocess.run(
        [str(QUIRE), *arguments], capture_output=True, text=True, input="new one\n", check=False
    )


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (("standalone", "--admin", ""), "a name has 1 to 1024 bytes"),
        (("standalone", "--admin", "root:PLAIN"), "'PLAIN' is none of SCRAM-SHA-256"),
        (("standalone", "--admin-password-file", "-"), "whose?"),
        (("standalone", "--admin", "a", "--admin-password-file", "/missing"), "No such file"),
        (("user", "reset", "root:X", "--password-file", "-"), "'X' is none of"),
        (("user", "reset", "root"), "Missing option '--password-file'"),
        (("user", "reset", "root", "--password-file", "-"), "which cluster"),
    ],
)
def test_what_is_no_user_is_told_by_name(arguments, match):
    done = run(*arguments)
    assert done.returncode == 2
    assert match in done.stderr


def test_where_no_server_has_run_there_is_nobody_to_reset(tmp_path):
    done = run("user", "reset", "root", "--password-file", "-", "--data-dir", str(tmp_path))
    assert done.returncode == 1
    assert "no metadata.db" in done.stderr
    assert not list(tmp_path.iterdir())
