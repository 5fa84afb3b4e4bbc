"""Commands that are imported when they are asked for."""

import click
import pytest
from click.testing import CliRunner

from quire.cli import TOOLS, main
from quire.importing_group import ImportingGroup


@pytest.mark.parametrize("name", TOOLS)
def test_each_tool_is_where_it_is_said_to_be(name):
    result = CliRunner().invoke(main, [name, "--help"])
    assert (result.exit_code, result.exception) == (0, None)
    assert f"Usage: main {name} " in result.output


def test_help_tells_of_all_and_a_wrong_name_is_no_command():
    @click.group(cls=ImportingGroup, places={"ledger": TOOLS["ledger"]})
    def group():
        """Words."""

    @group.command()
    def own():
        """Its own."""

    said = CliRunner().invoke(group, ["--help"]).output
    assert said.index("ledger") < said.index("own")
    assert "Its own." in said
    result = CliRunner().invoke(group, ["owl"])
    assert result.exit_code == 2
    assert "No such command 'owl'" in result.output
