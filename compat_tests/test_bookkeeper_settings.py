"""`quire bookie` with the file of a Java bookie: BookKeeper's stock bk_server.conf, in a cluster;
and every name that BookKeeper's own class of settings knows.

No jar has the stock file; tests/bookie/stock_bk_server.txt lists its names and values.
"""

import re

import pytest
from harness import paths, servers, tools
from harness.bookkeeper import Cluster, JavaBookie, QuireBookie
from harness.servers import HOST

pytestmark = pytest.mark.skipif(servers.target() != "quire", reason="about our own bookie")

STOCK = paths.ROOT / "tests/bookie/stock_bk_server.txt"
CLASSES = ("conf.ServerConfiguration", "conf.AbstractConfiguration")
#: What the file cannot know of this machine.
OF_THE_MACHINE = {
    *("bookiePort", "metadataServiceUri", "zkServers", "zkTimeout", "ledgerDirectories"),
    *("journalDirectories", "httpServerEnabled"),
}
#: Constants of these classes that are no settings: a word, and a system property.
NO_SETTINGS = {"available", "org.apache.bookkeeper.conf.readsystemproperties"}


def shipped():
    """The lines that are not commented out."""
    pairs = re.findall(r"^([A-Za-z][\w.]*)=(.*)$", STOCK.read_text(), re.M)
    return {name: value for name, value in pairs if name not in OF_THE_MACHINE}


def names_that_java_knows():
    jars = f"{paths.jars('bookkeeper')}/*"
    classes = [f"org.apache.bookkeeper.{name}" for name in CLASSES]
    told = tools.run(["javap", "-constants", "-private", "-cp", jars, *classes])
    constants = re.findall(r'static final java\.lang\.String \w+ = "([^"]*)"', told)
    return sorted(set(constants) - NO_SETTINGS)


def test_a_bookie_with_the_stock_file_serves_javas_client(scratch):
    cluster = Cluster(scratch / "stock-settings")
    try:
        journal = scratch / "stock-settings" / "journals"
        quire = QuireBookie(
            cluster,
            0,
            {
                **shipped(),
                "journalDirectories": str(journal),
                "prometheusStatsHttpAddress": HOST,
                "prometheusStatsHttpPort": "0",
            },
        )
        cluster.make_tree()
        cluster.bookies.append(quire)
        quire.start()
        cluster.start(JavaBookie)
        tool = cluster.ledger_tool("v3")
        made = tool.write(100, 100, e=2, qw=2, qa=2)
        tool.close(handle=made["handle"])
        tool.read_back(made["ledger"], 100, 100)
        assert (journal / "current").is_dir()
        log = quire.log_path.read_text()
        idle = re.findall(r'event=setting_without_effect note="(\S+)', log)
        assert len(set(idle)) == len(idle)
        assert {"httpServerClass", "stickyReadSEnabled", "dlog.bkcEnsembleSize"} <= set(idle)
    finally:
        cluster.discard()


def test_every_name_of_bookkeepers_settings_is_known(tmp_path):
    """All at once, without values, and then with one that nobody knows."""
    names = names_that_java_knows()
    assert len(names) > 200
    config = tmp_path / "bk_server.conf"
    lines = [f"{name}=\n" for name in names]
    lines += [f"advertisedAddress={HOST}\n", "allowLoopback=true\n"]
    command = [str(paths.python_script("quire")), "bookie", "--config", str(config)]
    config.write_text("".join(lines))
    told = tools.run(command, code=2)
    assert "metadataServiceUri: must be set" in told
    config.write_text("".join([*lines, "noSuchName=\n"]))
    assert "unknown setting noSuchName" in tools.run(command, code=2)
