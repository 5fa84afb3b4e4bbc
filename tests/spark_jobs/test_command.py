"""`quire-spark`: what is wrong is said in a line, with an exit code."""

import pytest
from click.testing import CliRunner

from spark_jobs.command import main


def call(*words):
    return CliRunner().invoke(main, list(words), env={"QUIRE_METADATA_SERVICE_URI": ""})


@pytest.mark.parametrize("command", ["report", "audit", "archive"])
def test_the_cluster_must_be_named(command, tmp_path):
    words = ("--to", str(tmp_path)) if command == "archive" else ()
    result = call(command, *words)
    assert result.exit_code == 2
    assert "--metadata" in result.output


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("report", "--metadata", "nonsense"), 2, "nonsense"),
        (("report", "--metadata", "quire+unix:///nowhere/m.sock"), 1, "no such socket"),
        (("audit", "--metadata", "quire+unix:///nowhere/m.sock"), 1, "no such socket"),
        (("audit", "--metadata", "zk+null://z:1/l", "--bookkeeper", "a"), 2, "NAME=VALUE"),
        (("audit", "--metadata", "zk+null://z:1/l", "--bookkeeper", "a=b"), 2, "no such setting"),
        (("report", "--metadata", "zk+null://z:1/l", "--master", "local"), 1, "extra `spark`"),
        (("archive", "--metadata", "zk+null://z:1/l", "--to", "x"), 2, "--topic"),
    ],
)
def test_what_is_wrong_is_named(words, code, text):
    result = call(*words)
    assert (result.exit_code, text in result.output) == (code, True), result.output


def test_a_topic_that_is_not_there_is_named(served):
    for command in ("report", "audit"):
        result = call(command, "--metadata", served.metadata, "--topic", "never")
        assert (result.exit_code, "'never'" in result.output) == (1, True)
