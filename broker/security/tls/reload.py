"""Keys and certificates that are changed while the broker runs (`TlsReloads`).

Files are looked at every quire.ssl.reload.check.ms, which Kafka does not do, and the listener's
settings whenever they are changed. What loads, and fits what was there (`misfit`), is for new
connections; else all stays as it was, and the log says why, once for each change.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

import trio
from cryptography import x509

from broker.security.tls.loading import LoadedTls, load
from runtime.config import ConfigError
from runtime.key_files import FileMark, mark_of
from runtime.logs import kv
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from broker.cluster.config_listener import ListenerSettings
    from broker.cluster.config_ssl import TlsSettings
    from broker.security.tls.server import TlsServer
    from runtime.env import Clock

logger = logging.getLogger(__name__)

WARN_MS = 30 * 24 * 3_600_000
WARN_AGAIN_MS = 24 * 3_600_000
#: Then only changed settings wake it.
_NEVER_SECONDS = 1e9


def misfit(old: LoadedTls, new: LoadedTls) -> str | None:
    """Why the new certificate must not follow the old one, as Kafka has it (`SslFactory`); None if
    it may."""
    settings = new.settings
    before, after = old.certificate, new.certificate
    if not settings.allow_dn_changes and before.subject != after.subject:
        return (
            f"its subject is {after.subject.rfc4514_string()!r} instead of"
            f" {before.subject.rfc4514_string()!r}; ssl.allow.dn.changes lets that be"
        )
    missing = [] if settings.allow_san_changes else _names(before) - _names(after)
    if missing:
        names = ", ".join(sorted(missing))
        return f"it is no longer for {names}; ssl.allow.san.changes lets that be"
    return None


def _names(certificate: x509.Certificate) -> set[str]:
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (ValueError, x509.ExtensionNotFound, x509.DuplicateExtension):
        return set()
    return {str(name.value) for name in extension.value}


@dataclass(slots=True)
class Watched:
    """A listener: `settings` gives what is in force for it, with those dynamic texts."""

    server: TlsServer
    settings: Callable[[Mapping[str, str]], ListenerSettings]
    has_sasl: bool
    #: In a cluster: the one at which brokers meet.
    is_for_brokers: bool = False
    #: What was tried last.
    tried: tuple[TlsSettings, dict[str, FileMark | None]] | None = None
    #: Of the last failure.
    reason: str = ""
    warned_ms: int = 0


class TlsReloads:
    def __init__(
        self,
        watched: list[Watched],
        texts: Callable[[], Mapping[str, str]],
        worker: Callable[..., Awaitable[object]],
        clock: Clock,
        check_ms: int,
    ) -> None:
        """`texts`: what is set of listeners while the broker runs. `worker`: `Disk.run`."""
        self._watched = watched
        self._texts = texts
        self._worker = worker
        self._clock = clock
        self._check_seconds = check_ms / 1000
        self._wake = trio.Event()
        self.reloads_count = 0
        self.failed_count = 0

    @property
    def servers(self) -> list[TlsServer]:
        return [one.server for one in self._watched]

    def settings_changed(self) -> None:
        self._wake.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled."""
        task_status.started()
        while True:
            for one in self._watched:
                await self._look(one)
                self._warn(one)
            with trio.move_on_after(self._check_seconds or _NEVER_SECONDS):
                await self._wake.wait()
            self._wake = trio.Event()

    async def check(self, texts: Mapping[str, str]) -> None:
        """ConfigError if a listener could not be served with these settings."""
        for one in self._watched:
            settings = one.settings(texts)
            if settings.tls() == one.server.loaded.settings:
                continue
            loaded = await self._load(one, settings)
            if (reason := misfit(one.server.loaded, loaded)) is not None:
                raise settings.error("ssl.keystore.location", f"the certificate: {reason}")

    async def _load(self, one: Watched, settings: ListenerSettings) -> LoadedTls:
        """ConfigError."""
        loaded = await self._worker(partial(load, settings, has_sasl=one.has_sasl))
        assert isinstance(loaded, LoadedTls)
        if one.is_for_brokers:
            one.server.check_client(settings, loaded)
        return loaded

    async def _look(self, one: Watched) -> None:
        try:
            settings = one.settings(self._texts())
            tls = settings.tls()
            paths = [path for path in (tls.keystore_location, tls.truststore_location) if path]
            marks = await self._worker(_marks, paths)
            assert isinstance(marks, dict)
            loaded = one.server.loaded
            if (tls, marks) in ((loaded.settings, loaded.files), one.tried):
                return
            one.tried = (tls, marks)
            loaded = await self._load(one, settings)
            reason = misfit(one.server.loaded, loaded)
        except ConfigError as error:
            reason = str(error)
        if reason is not None:
            if reason != one.reason:
                self.failed_count += 1
                listener = one.server.listener
                logger.error("tls_not_reloaded", kv(listener=listener, reason=reason))
            one.reason = reason
            return
        one.tried, one.reason = None, ""
        one.warned_ms = 0
        self.reloads_count += 1
        one.server.use(loaded)

    def _warn(self, one: Watched) -> None:
        """Once a day, when the certificate ends soon, or has ended."""
        now_ms, loaded = self._clock.time_ms(), one.server.loaded
        if loaded.expires_ms - now_ms > WARN_MS or now_ms - one.warned_ms < WARN_AGAIN_MS:
            return
        one.warned_ms = now_ms
        logger.warning(
            "tls_certificate_expires",
            kv(listener=one.server.listener, at=loaded.certificate.not_valid_after_utc.isoformat()),
        )


def _marks(paths: list[str]) -> dict[str, FileMark | None]:
    return {path: mark_of(path) for path in paths}
