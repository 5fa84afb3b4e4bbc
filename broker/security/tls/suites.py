"""Versions of TLS and cipher suites: Kafka's names to OpenSSL's.

Python cannot choose among the suites of TLS 1.3, so those are taken or left together: a list with
none of them leaves the version out, one with some of them is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

TLS_1_2, TLS_1_3 = "TLSv1.2", "TLSv1.3"
SUITES_1_3 = frozenset(
    ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")
)
#: Of TLS 1.2: IANA's name -> OpenSSL's. Those that OpenSSL 3 serves as it is installed, with keys
#: of one connection only (forward secrecy), and the two of RSA alone that old clients know.
_SUITES_1_2 = {
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA384": "ECDHE-ECDSA-AES256-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA384": "ECDHE-RSA-AES256-SHA384",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256": "ECDHE-ECDSA-AES128-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256": "ECDHE-RSA-AES128-SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384": "AES256-GCM-SHA384",
    "TLS_RSA_WITH_AES_128_GCM_SHA256": "AES128-GCM-SHA256",
}


def openssl_suites(names: Sequence[str]) -> str | None:
    """For `SSLContext.set_ciphers`; None: OpenSSL's own choice. ValueError."""
    unknown = [name for name in names if name not in SUITES_1_3 and name not in _SUITES_1_2]
    if unknown:
        served = ", ".join((*sorted(SUITES_1_3), *_SUITES_1_2))
        raise ValueError(f"{unknown[0]} is not served; these are: {served}")
    some = SUITES_1_3.intersection(names)
    if some and some != SUITES_1_3:
        left_out = ", ".join(sorted(SUITES_1_3 - some))
        raise ValueError(
            f"the suites of TLS 1.3 are taken or left together; {left_out} is left out"
        )
    chosen = [_SUITES_1_2[name] for name in names if name in _SUITES_1_2]
    return ":".join(chosen) or None


def versions(protocol: str, enabled: Collection[str], suites: Collection[str]) -> list[str]:
    """Those that can be spoken, the lowest first. ValueError if there are none."""
    spoken = [version for version in (TLS_1_2, TLS_1_3) if version in enabled]
    if protocol == TLS_1_2:
        spoken = [version for version in spoken if version == TLS_1_2]
    if suites:
        has = {TLS_1_3: not SUITES_1_3.isdisjoint(suites)}
        has[TLS_1_2] = any(suite not in SUITES_1_3 for suite in suites)
        spoken = [version for version in spoken if has[version]]
    if not spoken:
        raise ValueError(
            "no version of TLS is left by ssl.enabled.protocols, ssl.protocol and"
            " ssl.cipher.suites together"
        )
    return spoken
