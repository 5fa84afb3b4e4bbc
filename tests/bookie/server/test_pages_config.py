"""httpServer... and prometheusStatsHttp...: what is served, and where."""

import pytest

from bookie.config_definitions import BOOKIE_CONFIGS
from bookie.server.pages_config import PagesConfig, pages_config

PROVIDER = "org.apache.bookkeeper.stats.prometheus.PrometheusMetricsProvider"


@pytest.mark.parametrize(
    ("texts", "admin", "metrics"),
    [
        ({}, None, None),
        ({"httpServerPort": "9"}, None, None),
        ({"httpServerEnabled": "true"}, ("0.0.0.0", 8080), None),
        (
            {"httpServerEnabled": "true", "httpServerHost": "::1", "httpServerPort": "7"},
            ("::1", 7),
            None,
        ),
        ({"statsProviderClass": PROVIDER}, None, ("0.0.0.0", 8000)),
        ({"statsProviderClass": "NullStatsProvider"}, None, None),
        ({"prometheusStatsHttpPort": "9"}, None, ("0.0.0.0", 9)),
        ({"prometheusStatsHttpPort": "9", "enableStatistics": "false"}, None, None),
        ({"prometheusStatsHttpPort": "9", "prometheusStatsHttpEnable": "false"}, None, None),
        (
            {"prometheusStatsHttpPort": "8080", "httpServerEnabled": "true"},
            ("0.0.0.0", 8080),
            None,
        ),
        (
            {
                "prometheusStatsHttpPort": "0",
                "prometheusStatsHttpAddress": "127.0.0.1",
                "httpServerEnabled": "true",
                "httpServerPort": "0",
            },
            ("0.0.0.0", 0),
            ("127.0.0.1", 0),
        ),
    ],
)
def test_what_is_served(texts, admin, metrics):
    assert pages_config(BOOKIE_CONFIGS.parse(texts)) == PagesConfig(admin, metrics)
