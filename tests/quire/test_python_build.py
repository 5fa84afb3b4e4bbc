"""Which Pythons a server warns of, and make passes over."""

import subprocess
import sys

import pytest
import trio.testing

from quire import python_build
from quire.role import _serve
from runtime.loop_watch import watch_of_run


@pytest.mark.parametrize(
    ("configured", "prefix", "is_optimised"),
    [
        ("'--prefix=/opt/python' '--enable-optimizations' '--with-lto'", "/opt/python", True),
        ("'--prefix=/opt/python' '--enable-shared'", "/opt/python", False),
        # Debian's script is told of no optimisation; its package makes profile-opt.
        ("'--enable-shared' '--prefix=/usr' '--enable-ipv6'", "/usr", True),
        (None, None, True),
        ("", "/opt/python", True),
    ],
)
def test_an_optimised_build_is_told_by_how_it_was_configured(configured, prefix, is_optimised):
    assert python_build.is_optimised(configured, prefix) is is_optimised


def test_the_exit_code_of_the_module_is_what_it_says_of_the_python_that_runs_it():
    done = subprocess.run([sys.executable, "-I", python_build.__file__], check=False)
    assert done.returncode == (0 if python_build.of_this_python() else 1)


@pytest.mark.parametrize("is_optimised", [True, False])
async def test_a_server_warns_once_of_a_slow_python(is_optimised, monkeypatch, caplog, capsys):
    monkeypatch.setattr(python_build, "of_this_python", lambda: is_optimised)

    async def role(*, task_status):
        watch_of_run().start()
        task_status.started(("127.0.0.1", 1))
        await trio.testing.wait_all_tasks_blocked()
        watch_of_run().stop()

    await _serve(role, has_parent=False)
    told = [record for record in caplog.records if record.getMessage() == "slow_python"]
    assert [record.levelname for record in told] == ([] if is_optimised else ["WARNING"])
    assert "ready listen=127.0.0.1:1" in capsys.readouterr().out
