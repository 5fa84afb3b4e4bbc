"""Where a bookie's pages are, by their names in bk_server.conf: the HTTP administration
(httpServer..., ServerConfiguration.java) and what Prometheus reads (prometheusStatsHttp...,
PrometheusMetricsProvider.java).

Both are off unless asked for. The administration has /metrics as well; Prometheus' own port has
nothing else, so that it may be open where the administration must not be.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from runtime.config import ConfigType, ConfigValue, at_least, between
from runtime.settings import of_values, setting
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

STRING, INT, BOOLEAN = ConfigType.STRING, ConfigType.INT, ConfigType.BOOLEAN
PASSWORD = ConfigType.PASSWORD

PROMETHEUS_PROVIDER = "PrometheusMetricsProvider"
_METRICS_PORT = "prometheusStatsHttpPort"


@dataclass(slots=True, frozen=True)
class PagesSettings:
    """As they are set."""

    has_admin: bool = setting(
        "httpServerEnabled", BOOLEAN, "false", doc="Serve the administration."
    )
    admin_host: str = setting("httpServerHost", STRING, "0.0.0.0", doc="Where it is served.")
    admin_port: int = setting("httpServerPort", INT, "8080", between(0, 65535), doc="0: any.")
    has_statistics: bool = setting("enableStatistics", BOOLEAN, "true", doc="Else no metrics port.")
    provider: str | None = setting(
        "statsProviderClass",
        STRING,
        doc="A name with PrometheusMetricsProvider opens the metrics port.",
    )
    has_prometheus: bool = setting(
        "prometheusStatsHttpEnable", BOOLEAN, "true", doc="Else no metrics port."
    )
    metrics_host: str = setting(
        "prometheusStatsHttpAddress", STRING, "0.0.0.0", doc="Of the metrics port."
    )
    metrics_port: int = setting(
        _METRICS_PORT,
        INT,
        "8000",
        between(0, 65535),
        doc="The metrics port; setting it opens it. 0: any.",
    )
    admin_token_file: str | None = setting(
        "quire.admin.token.file",
        STRING,
        doc="A file with the token for pages that change something or show records; its owner's"
        " only. Without it a server with a data directory makes one and leaves it there.",
    )
    reads_need_token: bool = setting(
        "quire.admin.reads.need.token",
        BOOLEAN,
        "false",
        doc="Whether all pages of the administration need the token.",
    )
    metrics_token_file: str | None = setting(
        "quire.metrics.token.file",
        STRING,
        doc="A file with the token for /metrics; without it everybody may read them.",
    )
    has_tls: bool = setting(
        "httpServerTlsEnable", BOOLEAN, "false", doc="Serve all pages, metrics too, by https only."
    )
    key_store: str | None = setting(
        "httpServerKeyStorePath",
        STRING,
        doc="Key and certificates of the pages: PEM, PKCS12 or JKS.",
    )
    key_store_password: str | None = setting(
        "httpServerKeyStorePassword", PASSWORD, doc="Of that store, or of a PEM's key."
    )
    trust_store: str | None = setting(
        "httpServerTrustStorePath",
        STRING,
        doc="Whose certificates clients of the pages must show; without it they show none.",
    )
    trust_store_password: str | None = setting(
        "httpServerTrustStorePassword", PASSWORD, doc="Of that store."
    )
    tls_check_ms: int = setting(
        "quire.pages.tls.check.ms",
        INT,
        "10000",
        at_least(0),
        doc="How often the files of the pages' stores are looked at for changes; 0: never.",
    )


@dataclass(slots=True, frozen=True)
class PagesConfig:
    """Hosts and ports to listen on, None for what is not served; files of tokens and stores."""

    admin: tuple[str, int] | None = None
    metrics: tuple[str, int] | None = None
    admin_token_file: str | None = None
    metrics_token_file: str | None = None
    reads_need_token: bool = False
    has_tls: bool = False
    key_store: str | None = None
    key_store_password: str | None = field(default=None, repr=False)
    trust_store: str | None = None
    trust_store_password: str | None = field(default=None, repr=False)
    tls_check_ms: int = 10_000


def pages_config(values: Mapping[str, ConfigValue]) -> PagesConfig:
    """`values`: parsed, only what is set. Where both would be at one port, the administration is
    there."""
    settings = of_values(PagesSettings, values)
    admin = None
    if settings.has_admin:
        admin = (settings.admin_host, settings.admin_port)
    is_wanted = (
        values.get(_METRICS_PORT) is not None or PROMETHEUS_PROVIDER in (settings.provider or "")
    ) and (settings.has_statistics and settings.has_prometheus)
    metrics = None
    if is_wanted:
        port = settings.metrics_port
        if admin is None or port == 0 or port != admin[1]:
            metrics = (settings.metrics_host, port)
    return PagesConfig(
        admin,
        metrics,
        settings.admin_token_file,
        settings.metrics_token_file,
        settings.reads_need_token,
        settings.has_tls,
        settings.key_store,
        settings.key_store_password,
        settings.trust_store,
        settings.trust_store_password,
        settings.tls_check_ms,
    )
