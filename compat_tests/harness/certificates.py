"""An authority and what it signs, made by openssl and keytool as operators do."""

import subprocess
from pathlib import Path

PASSWORD = "store pass"
NAMES = "subjectAltName=DNS:localhost,IP:127.0.0.1"


def openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def keytool(*arguments: str) -> None:
    subprocess.run(["keytool", *arguments], check=True, capture_output=True)


class Authority:
    """PEM files in a folder; RSA of 2048 bits, as most have."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.name = folder, name
        self.pem = folder / f"{name}.pem"
        self._key = folder / f"{name}.key"
        openssl(
            *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(self._key)),
            *("-out", str(self.pem), "-subj", f"/CN={name}", "-days", "2"),
        )

    def signed(self, name: str, subject: str, *, days: int = 2) -> Path:
        """Key and chain in one file, name.pem; beside it name.key and name.crt."""
        key, request = self.folder / f"{name}.key", self.folder / f"{name}.csr"
        certificate, pem = self.folder / f"{name}.crt", self.folder / f"{name}.pem"
        names = self.folder / "names"
        names.write_text(NAMES + "\n")
        openssl(
            *("req", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(request)),
            *("-subj", subject, "-multivalue-rdn"),
        )
        openssl(
            *("x509", "-req", "-in", str(request), "-CA", str(self.pem), "-CAkey", str(self._key)),
            *("-CAcreateserial", "-out", str(certificate), "-extfile", str(names)),
            *("-days", str(days)),
        )
        pem.write_bytes(key.read_bytes() + certificate.read_bytes() + self.pem.read_bytes())
        pem.chmod(0o600)
        return pem

    def key_store(self, name: str, kind: str) -> Path:
        """Of what `signed` made: a JKS or PKCS12 store, by Java's keytool."""
        bundle, store = self.folder / f"{name}.openssl.p12", self.folder / f"{name}.{kind}"
        openssl(
            *("pkcs12", "-export", "-in", str(self.folder / f"{name}.pem"), "-out", str(bundle)),
            *("-name", name, "-passout", f"pass:{PASSWORD}"),
        )
        keytool(
            *("-importkeystore", "-srckeystore", str(bundle), "-srcstoretype", "PKCS12"),
            *("-destkeystore", str(store), "-deststoretype", kind, "-noprompt"),
            *("-srcstorepass", PASSWORD, "-deststorepass", PASSWORD),
        )
        store.chmod(0o600)
        return store

    def trust_store(self, kind: str) -> Path:
        store = self.folder / f"trust.{kind}"
        keytool(
            *("-importcert", "-file", str(self.pem), "-alias", "authority", "-noprompt"),
            *("-keystore", str(store), "-storetype", kind, "-storepass", PASSWORD),
        )
        return store
