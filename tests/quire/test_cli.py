"""The command line: what is refused, and how a role starts, stops and fails."""

import signal
import subprocess
import sys
import textwrap

import pytest
from click.testing import CliRunner

from quire import standalone
from quire.cli import main
from quire.cli_options import read_config, warn_of_arguments
from quire.options import StandaloneOptions
from runtime.config import ConfigError


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--listen", "9092"], "'9092' is no HOST:PORT"),
        (["--listen", "h:"], "'h:' is no HOST:PORT"),
        (["--listen", "::1:9092"], "write an IPv6 address in brackets"),
        (["--listen", "h:65536"], "a port is at most 65535"),
        (["--set", "num.partitions"], "'num.partitions' is no KEY=VALUE"),
        (["--set", "=4"], "'=4' is no KEY=VALUE"),
        (["--log-level", "loud"], "log level 'loud' is none of"),
        (["--config", "/none/such.properties"], "does not exist"),
        (["--metrics", "nowhere"], "'nowhere' is no HOST:PORT"),
    ],
)
def test_wrong_options_are_named(arguments, message):
    result = CliRunner().invoke(main, ["standalone", *arguments])
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_version_and_help():
    result = CliRunner().invoke(main, ["--version"])
    assert (result.exit_code, result.output) == (0, "quire 0.1.0\n")
    assert "standalone" in CliRunner().invoke(main, ["--help"]).output


def start_role(body):
    """A process that runs `async def role(*, task_status)` with this body under the CLI."""
    code = (
        "import trio\nfrom quire.cli import run_role\nfrom runtime.config import ConfigError\n"
        "from runtime.logs import setup_logging\n"
        "async def role(*, task_status):\n"
        + textwrap.indent(textwrap.dedent(body), "    ")
        + "\nsetup_logging()\nrun_role(role)\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


SERVE = "task_status.started(('127.0.0.1', 1234)); await trio.sleep_forever()"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_a_clean_stop(number):
    with start_role(SERVE) as process:
        assert process.stdout.readline() == "ready listen=127.0.0.1:1234\n"
        process.send_signal(number)
        output, errors = process.communicate(timeout=20)
    assert process.returncode == 0, errors
    assert output == ""
    assert "event=stopped" in errors


def test_a_second_signal_ends_a_stop_that_hangs():
    body = """
        task_status.started(('127.0.0.1', 1))
        try:
            await trio.sleep_forever()
        finally:
            print("stopping", flush=True)
            with trio.CancelScope(shield=True):
                await trio.sleep_forever()
        """
    with start_role(body) as process:
        process.stdout.readline()
        process.terminate()
        assert process.stdout.readline() == "stopping\n"
        process.terminate()
        process.communicate(timeout=20)
    assert process.returncode == -signal.SIGTERM


def test_a_signal_before_ready_is_a_clean_stop():
    with start_role("print('starting', flush=True); await trio.sleep_forever()") as process:
        assert process.stdout.readline() == "starting\n"
        process.terminate()
        output, errors = process.communicate(timeout=20)
    assert (process.returncode, output) == (0, ""), errors


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ("raise ConfigError('a.b', 'a.b=x: not a number')", 2, "Error: a.b=x: not a number\n"),
        ("raise OSError(98, 'Address already in use')", 1, "Address already in use"),
        ("await trio.sleep(0); assert 1 > 2, 'broken'", 1, "AssertionError: broken"),
        ("task_status.started(('h', 1)); raise OSError(5, 'lost')", 1, "lost"),
        ("task_status.started(('h', 1))", 0, "event=stopped"),
    ],
)
def test_exit_codes(body, code, message):
    with start_role(body) as process:
        _, errors = process.communicate(timeout=20)
    assert process.returncode == code, errors
    assert message in errors
    assert ("Traceback" in errors) == ("broken" in body)


JAAS_SETTING = "listener.name.sasl_plaintext.plain.sasl.jaas.config"


@pytest.mark.parametrize(("mode", "is_told"), [(0o600, False), (0o640, True), (0o644, True)])
def test_a_file_of_settings_with_secrets_that_others_may_read_is_told(
    tmp_path, caplog, mode, is_told
):
    path = tmp_path / "server.properties"
    path.write_text(f"node.id=1\n{JAAS_SETTING}=x required user_a=wonder;\n")
    path.chmod(mode)
    assert "wonder" in read_config(str(path))
    told = [each for each in caplog.records if each.getMessage() == "secrets_readable"]
    assert [each.args["settings"] for each in told] == ([JAAS_SETTING] if is_told else [])
    assert "wonder" not in str([each.args for each in told])


def test_a_file_without_secrets_may_be_anybodys(tmp_path, caplog):
    path = tmp_path / "server.properties"
    path.write_text("node.id=1\n")
    path.chmod(0o644)
    read_config(str(path))
    assert not caplog.records


def test_secrets_on_the_command_line_are_told(caplog):
    warn_of_arguments({"node.id": "1"})
    assert not caplog.records
    warn_of_arguments({JAAS_SETTING: "wonder", "ssl.key.password": "hidden"})
    (told,) = caplog.records
    assert told.args["settings"] == f"{JAAS_SETTING},ssl.key.password"
    assert "wonder" not in str(told.args)


async def test_where_to_listen_is_said_once(tmp_path):
    """A file whose listeners ask who a client is must not give place to the default, silently."""
    file = "listeners=SASL_PLAINTEXT://127.0.0.1:0\nsasl.enabled.mechanisms=NONE-SUCH\n"
    for listen, words in ((None, "NONE-SUCH"), (("127.0.0.1", 0), "must not be given")):
        options = StandaloneOptions(listen=listen, data_dir=str(tmp_path), properties=file)
        wanted = pytest.RaisesExc(ConfigError, match=words)
        with pytest.RaisesGroup(wanted, flatten_subgroups=True, allow_unwrapped=True):
            await standalone.run(options)
