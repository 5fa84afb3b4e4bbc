"""Where a bookie's pages are, by their names in bk_server.conf: the HTTP administration
(httpServer..., ServerConfiguration.java) and what Prometheus reads (prometheusStatsHttp...,
PrometheusMetricsProvider.java).

Both are off unless asked for. The administration has /metrics as well; Prometheus' own port has
nothing else, so that it may be open where the administration must not be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runtime.config import ConfigKey, ConfigType, ConfigValue, between

if TYPE_CHECKING:
    from collections.abc import Mapping

PAGES_KEYS = (
    ConfigKey("httpServerEnabled", ConfigType.BOOLEAN, "false", "Serve the administration."),
    ConfigKey("httpServerHost", ConfigType.STRING, "0.0.0.0", "Where it is served."),
    ConfigKey("httpServerPort", ConfigType.INT, "8080", "0: any.", between(0, 65535)),
    ConfigKey("enableStatistics", ConfigType.BOOLEAN, "true", "Else no metrics port."),
    ConfigKey(
        "statsProviderClass",
        ConfigType.STRING,
        None,
        "A name with PrometheusMetricsProvider opens the metrics port.",
    ),
    ConfigKey("prometheusStatsHttpEnable", ConfigType.BOOLEAN, "true", "Else no metrics port."),
    ConfigKey("prometheusStatsHttpAddress", ConfigType.STRING, "0.0.0.0", "Of the metrics port."),
    ConfigKey(
        "prometheusStatsHttpPort",
        ConfigType.INT,
        "8000",
        "The metrics port; setting it opens it. 0: any.",
        between(0, 65535),
    ),
)
PROMETHEUS_PROVIDER = "PrometheusMetricsProvider"


@dataclass(slots=True, frozen=True)
class PagesConfig:
    """Hosts and ports to listen on, None for what is not served."""

    admin: tuple[str, int] | None = None
    metrics: tuple[str, int] | None = None


def pages_config(values: Mapping[str, ConfigValue]) -> PagesConfig:
    """`values`: parsed, only what is set. Where both would be at one port, the administration is
    there."""
    found: dict[str, Any] = {key.name: key.parse_default() for key in PAGES_KEYS}
    found |= {name: value for name, value in values.items() if value is not None}
    admin = None
    if found["httpServerEnabled"]:
        admin = (found["httpServerHost"], found["httpServerPort"])
    is_wanted = (
        values.get("prometheusStatsHttpPort") is not None
        or PROMETHEUS_PROVIDER in (found["statsProviderClass"] or "")
    ) and (found["enableStatistics"] and found["prometheusStatsHttpEnable"])
    metrics = None
    if is_wanted:
        port = found["prometheusStatsHttpPort"]
        if admin is None or port == 0 or port != admin[1]:
            metrics = (found["prometheusStatsHttpAddress"], port)
    return PagesConfig(admin, metrics)
