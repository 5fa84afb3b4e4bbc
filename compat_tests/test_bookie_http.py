"""The pages of bookies that are processes: administration and Prometheus, by BookKeeper's names.

Two bookies of ours and one of Java's on a real ZooKeeper; `quire standalone --bookies 2`.
"""

import http.client
import json
import re
import urllib.error
import urllib.request

import pytest
from harness import paths, servers, tools
from harness.bookkeeper import Cluster, JavaBookie, QuireBookie, wait_for
from harness.servers import HOST, free_port

pytestmark = pytest.mark.skipif(servers.target() != "quire", reason="about our own processes")


@pytest.fixture(scope="module")
def cluster(scratch):
    """Of the three bookies, the first has both ports, the second one port for both."""
    made = Cluster(scratch / "http" / "cluster")
    try:
        made.admin, made.metrics, made.both = free_port(), free_port(), free_port()
        made.start(
            QuireBookie,
            httpServerEnabled="true",
            httpServerHost=HOST,
            httpServerPort=made.admin,
            prometheusStatsHttpPort=made.metrics,
            prometheusStatsHttpAddress=HOST,
        )
        made.start(
            QuireBookie,
            httpServerEnabled="true",
            httpServerPort=made.both,
            prometheusStatsHttpPort=made.both,
        )
        made.start(JavaBookie)
        for port in (made.admin, made.metrics, made.both):
            wait_for(lambda port=port: is_open(port), f"nothing listens at {port}")
        TOKENS[made.admin] = made.bookies[0].token()
        TOKENS[made.both] = made.bookies[1].token()
        yield made
    finally:
        TOKENS.clear()
        made.discard()


def is_open(port):
    try:
        return ask(port, "GET", "/heartbeat")[0] in (200, 404)
    except OSError:
        return False


#: Of the pages at a port.
TOKENS = {}


def ask(port, method, path, body=None):
    connection = http.client.HTTPConnection(HOST, port, timeout=20)
    headers = {"Authorization": f"Bearer {TOKENS[port]}"} if port in TOKENS else {}
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def get(port, page):
    status, data = ask(port, "GET", f"/api/v1/{page}")
    assert status == 200, (page, data)
    return json.loads(data)


def figure(port, name):
    found = re.search(
        rf"^{name}(?:{{[^}}]*}})? (\S+)$", ask(port, "GET", "/metrics")[1].decode(), re.M
    )
    return float(found[1])


def quire(*words):
    return tools.run([str(paths.python_script("quire")), *words])


def test_the_cluster_as_each_bookie_sees_it(cluster):
    ids = {bookie.id for bookie in cluster.bookies}
    for port in (cluster.admin, cluster.both):
        wait_for(lambda port=port: set(get(port, "bookie/list_bookies")) == ids, "bookies missing")
        named = get(port, "bookie/list_bookies?print_hostnames=true")
        assert named == dict.fromkeys(ids, HOST)
        assert get(port, "bookie/list_bookies?type=ro") == {}
        listed = get(port, "bookie/list_bookie_info")
        assert set(listed) == ids | {"ClusterInfo: "}
        frees = {each: int(re.search(r"Free: (\d+)", words)[1]) for each, words in listed.items()}
        # All are asked, and each has the same disk, on which others write.
        assert frees["ClusterInfo: "] == sum(frees[each] for each in ids)
        assert all(frees[each] > 0 for each in ids)
        facts = get(port, "bookie/cluster_info")
        assert facts["totalBookiesCount"] == facts["writableBookiesCount"] == 3
        assert facts["unavailableBookiesCount"] == facts["readonlyBookiesCount"] == 0
        assert facts["ledgerReplicationEnabled"] is True


def test_a_bookie_that_died_is_counted_as_unavailable(cluster):
    java = cluster.bookies[2]
    java.kill()
    cluster.wait_until_gone(java.id)
    wait_for(
        lambda: get(cluster.admin, "bookie/cluster_info")["unavailableBookiesCount"] == 1,
        "the dead bookie is not counted",
    )
    java.start()
    wait_for(
        lambda: get(cluster.admin, "bookie/cluster_info")["writableBookiesCount"] == 3,
        "the bookie that came back is not counted",
    )


def test_ledgers_of_a_java_client(cluster):
    tool = cluster.ledger_tool("v3")
    tool.wait_for_bookies(3)
    made = tool.write(5, 10)
    tool.close(handle=made["handle"])
    ledger = made["ledger"]
    assert str(ledger) in get(cluster.both, "ledger/list")
    described = get(cluster.admin, f"ledger/metadata?ledger_id={ledger}")[str(ledger)]
    assert (described["lastEntryId"], described["ensembleSize"]) == (4, 3)
    wait_for(lambda: figure(cluster.metrics, "bookie_WRITE_BYTES") > 0, "nothing was written")
    status, answer = ask(cluster.admin, "DELETE", f"/api/v1/ledger/delete?ledger_id={ledger}")
    assert (status, json.loads(answer)) == (200, f"Deleted ledger: {ledger}")
    assert str(ledger) not in get(cluster.both, "ledger/list")


def test_read_only_over_http_is_read_only_for_the_cluster(cluster):
    first = cluster.bookies[0]
    assert get(cluster.admin, "bookie/sanity") == {"passed": True, "readOnly": False}
    body = json.dumps({"readOnly": True})
    assert ask(cluster.admin, "PUT", "/api/v1/bookie/state/readonly", body)[0] == 200
    try:
        wait_for(lambda: first.id in cluster.children("available/readonly"), "not read-only")
        wait_for(
            lambda: list(get(cluster.both, "bookie/list_bookies?type=ro")) == [first.id],
            "the other does not see it",
        )
        # It tries this bookie and no other.
        assert get(cluster.admin, "bookie/sanity")["passed"] is False
        assert get(cluster.both, "bookie/sanity")["passed"] is True
    finally:
        body = json.dumps({"readOnly": False})
        assert ask(cluster.admin, "PUT", "/api/v1/bookie/state/readonly", body)[0] == 200
    wait_for(lambda: first.id in cluster.children("available"), "still read-only")
    wait_for(
        lambda: first.id in get(cluster.both, "bookie/list_bookies"), "the other does not see it"
    )


def test_the_metrics_port_has_nothing_else(cluster):
    assert ask(cluster.metrics, "GET", "/api/v1/bookie/state")[0] == 404
    assert ask(cluster.metrics, "GET", "/health")[0] == 200
    for port in (cluster.metrics, cluster.admin, cluster.both):
        assert figure(port, "bookie_SERVER_STATUS") == 1
    # Waltz's page
    assert json.loads(ask(cluster.admin, "GET", "/health")[1])["metadata"] == {"healthy": True}


def test_settings_are_in_force(cluster):
    settings = get(cluster.admin, "config/server_config")
    assert settings["httpServerPort"] == str(cluster.admin)
    assert settings["metadataServiceUri"] == cluster.uri


def test_the_command_line_finds_the_pages(cluster):
    first = cluster.bookies[0]
    note = first.directory / "ledgers" / "admin.url"
    assert note.read_text() == f"http://{HOST}:{cluster.admin}\n"
    told = quire("bookie", "bookieinfo", "--conf", str(first.config))
    assert first.id in told or "Free" in told or "free" in told, told
    assert first.restart(httpServerEnabled="false").process is not None
    assert not note.exists()
    with pytest.raises(ConnectionRefusedError):
        ask(cluster.admin, "GET", "/heartbeat")


def page_urls(folder):
    """A bookie registers first and then opens its pages."""
    notes = [folder / f"bookie-{number}" / "ledgers" / "admin.url" for number in (1, 2)]

    def answer():
        urls = [note.read_text().strip() for note in notes if note.exists()]
        return len(urls) == 2 and all(is_open(int(url.rpartition(":")[2])) for url in urls)

    wait_for(answer, "the bookies' pages do not answer")
    return [note.read_text().strip() for note in notes]


def test_bookies_of_a_standalone_server(scratch, name):
    base = free_port()

    class Two(servers.QuireServer):
        def command(self):
            return [*super().command(), "--bookies", "2", "--metrics", f"{HOST}:{base}"]

    one = Two(scratch / name("standalone"))
    one.start()
    try:
        folder = next(one.directory.rglob("bookie-1")).parent
        urls = page_urls(folder)
        assert len(set(urls)) == 2
        for number, url in enumerate(urls, 1):
            port = int(url.rpartition(":")[2])
            assert set(get(port, "bookie/list_bookies")) == {"bookie-1", "bookie-2"}
            assert get(port, "config/server_config")["bookieId"] == f"bookie-{number}"
            assert get(port, "bookie/sanity")["passed"] is True
            assert figure(port, "bookie_SERVER_STATUS") == 1
            assert get(port, "bookie/cluster_info")["totalBookiesCount"] == 2
        one.kill()
        # Its children end with it, a little later; who starts before that takes other ports.
        ports = [int(url.rpartition(":")[2]) for url in urls]
        wait_for(lambda: not any(map(is_open, ports)), "a bookie outlived its parent")
        one.start()
        assert page_urls(folder) == urls  # a scraper still finds them
    finally:
        one.discard()


def test_a_port_that_is_taken_is_told(cluster):
    taken = QuireBookie(cluster, 9, {"httpServerEnabled": "true", "httpServerPort": cluster.both})
    cluster.bookies.append(taken)
    taken.launch()
    assert taken.process.wait(120) != 0
    assert str(cluster.both) in taken.log_tail()


def test_a_page_by_a_foreign_name_is_refused(cluster):
    request = urllib.request.Request(
        f"http://{HOST}:{cluster.both}/api/v1/bookie/state", headers={"Host": "evil.example"}
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=20)
    assert refused.value.code == 403
