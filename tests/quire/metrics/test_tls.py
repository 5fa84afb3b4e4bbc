"""What is told of listeners with TLS: above all, when their certificate ends."""

from broker.cluster.config import BrokerConfig
from broker.cluster.config_listener import ListenerSettings
from broker.security.tls.composition import tls_server
from broker.security.tls.reload import TlsReloads, Watched
from quire.metrics.tls import tls_collector
from runtime.timers import Timers
from runtime.turn import Turn
from tests.broker.security.tls.conftest import Authority


def test_each_listener_has_its_figures():
    made = Authority().made("CN=server")
    watched = []
    for name in ("CLIENTS", "OTHERS"):
        settings = ListenerSettings(
            name,
            {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.key": made.key_pem.decode(),
                "ssl.keystore.certificate.chain": made.chain_pem.decode(),
            },
        )
        server = tls_server(settings, BrokerConfig(), Turn(), Timers(), has_sasl=False)
        watched.append(Watched(server, lambda _, settings=settings: settings, has_sasl=False))
    watched[1].server.failed_count, watched[1].server.handshakes_count = 2, 3
    reloads = TlsReloads(watched, dict, None, None, 0)
    reloads.failed_count = 4
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in tls_collector(reloads)()
        for sample in family.samples
    }
    ends = made.certificate.not_valid_after_utc.timestamp()
    assert found["quire_tls_certificate_expires_timestamp_seconds", "CLIENTS"] == ends
    assert found["quire_tls_refused_total", "CLIENTS"] == 0
    assert found["quire_tls_refused_total", "OTHERS"] == 2
    assert found["quire_tls_handshakes_total", "OTHERS"] == 3
    assert found["quire_tls_handshakes_waiting", "OTHERS"] == 0
    assert found["quire_tls_reloads_total",] == 0
    assert found["quire_tls_reload_failures_total",] == 4
