"""A cluster all of whose links are secured: SASL_SSL to the brokers and between them, TLS and
passwords to the bookies, TLS and a digest to ZooKeeper; an authorizer is on.

Users are made by the operator's command, before the first broker is there.
"""

from pathlib import Path

from harness import paths, tools
from harness.bookkeeper import Cluster, QuireBookie
from harness.brokers import SESSION_MS, Broker, BrokerCluster
from harness.certificates import Authority
from harness.zookeeper import ZooKeeper

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
DIGEST_MODULE = "org.apache.zookeeper.server.auth.DigestLoginModule"
TLS_FACTORY = "org.apache.bookkeeper.tls.TLSContextFactory"
#: By user; «broker» is the brokers' own. Tests give bob nothing but what they are about.
PASSWORDS = {
    "broker": "of the brokers", "admin": "of the admin", "alice": "wonder land", "bob": "builder's",
}  # fmt: skip
MECHANISM = "SCRAM-SHA-512"


def write_secret(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


class SecuredCluster(BrokerCluster):
    """`start` as of any cluster. `client(user)`: librdkafka's settings; `properties(user)`: a file
    of Java's."""

    def __init__(self, directory: Path, **settings: str) -> None:
        """`settings`: brokers' beside those of security."""
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.extra = settings
        self.authority = Authority(directory / "tls")
        self.pem = self.authority.signed("node", "/CN=node")
        self.digest = write_secret(directory / "digest", "quire:a secret\n")
        self.jaas = write_secret(
            directory / "jaas.conf",
            f'Bookie {{ {DIGEST_MODULE} required user_bookkeeper="of the bookies"; }};\n'
            f'BookKeeper {{ {DIGEST_MODULE} required username="bookkeeper"'
            ' password="of the bookies"; };\n',
        )
        zookeeper = ZooKeeper(directory / "zookeeper", tls=True)
        self.storage = Cluster(
            directory, zookeeper=zookeeper, auth_data=[("digest", "quire:a secret")]
        )
        self.storage.make_tree = lambda: None
        self.brokers = []

    @property
    def uri(self) -> str:
        return f"zk+hierarchical://{self.zookeeper.secure_hosts}/ledgers"

    def of_zookeeper(self) -> dict[str, str]:
        return {
            "metadataServiceUri": self.uri,
            "zookeeper.client.secure": "true",
            "zookeeper.ssl.trustStore.location": str(self.zookeeper.ca_file),
            "zkEnableSecurity": "true",
            "quire.zookeeper.digest.path": str(self.digest),
        }

    def of_bookie(self) -> dict[str, str]:
        folder = self.authority.folder
        return {
            **self.of_zookeeper(),
            "tlsProviderFactoryClass": TLS_FACTORY,
            "tlsCertificatePath": str(folder / "node.crt"),
            "tlsKeyStore": str(folder / "node.key"),
            "bookieAuthProviderFactoryClass": (
                "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory"
            ),
            "java.security.auth.login.config": str(self.jaas),
        }

    def of_broker(self) -> dict[str, str]:
        login = f'username="broker" password="{PASSWORDS["broker"]}"'
        return {
            **self.of_zookeeper(),
            "tlsProviderFactoryClass": TLS_FACTORY,
            "clientTrustStore": str(self.authority.pem),
            "clientAuthProviderFactoryClass": (
                "org.apache.bookkeeper.sasl.SASLClientProviderFactory"
            ),
            "java.security.auth.login.config": str(self.jaas),
            "security.inter.broker.protocol": "SASL_SSL",
            "sasl.mechanism.inter.broker.protocol": MECHANISM,
            "sasl.enabled.mechanisms": MECHANISM,
            f"listener.name.sasl_ssl.{MECHANISM.lower()}.sasl.jaas.config": (
                f"{SCRAM_MODULE} required {login};"
            ),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.pem),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.pem),
            "authorizer.class.name": AUTHORIZER,
            "super.users": "User:broker;User:admin",
            **self.extra,
        }

    def start(self, brokers: int = 3, bookies: int = 3, **settings: str) -> "SecuredCluster":
        self.storage.start(QuireBookie, **self.of_bookie())
        if bookies > 1:
            self.storage.start(*[QuireBookie] * (bookies - 1), **self.of_bookie())
        for user, password in PASSWORDS.items():
            self.make_user(user, password)
        for _ in range(brokers):
            self.add_broker(**settings)
        return self

    def add_broker(self, **settings: str) -> Broker:
        node_id = len(self.brokers) + 1
        named = {name.replace("_", "."): value for name, value in settings.items()}
        one = Broker(self.directory / f"broker-{node_id}", node_id, self.uri)
        one.settings |= {
            "listeners": f"SASL_SSL://{one.bootstrap}",
            "zkTimeout": str(SESSION_MS),
            **self.of_broker(),
            **named,
        }
        self.brokers.append(one)
        one.start()
        return one

    def make_user(self, user: str, password: str) -> None:
        """As the operator's guide says."""
        conf = self.directory / "operator.conf"
        conf.write_text("".join(f"{key}={text}\n" for key, text in self.of_zookeeper().items()))
        words = ["user", "reset", user, "--password-file", "-", "--conf", str(conf)]
        tools.run([str(paths.python_script("quire")), *words], input_text=f"{password}\n")

    def client(self, user: str, **more: str) -> dict[str, str]:
        return {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.authority.pem),
            "sasl.mechanism": MECHANISM,
            "sasl.username": user,
            "sasl.password": PASSWORDS[user],
            **more,
        }

    def java_client(self, user: str) -> dict[str, str]:
        return {
            "security.protocol": "SASL_SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.pem),
            "sasl.mechanism": MECHANISM,
            "sasl.jaas.config": (
                f'{SCRAM_MODULE} required username="{user}" password="{PASSWORDS[user]}";'
            ),
        }

    def properties(self, user: str) -> Path:
        text = "".join(f"{key}={value}\n" for key, value in self.java_client(user).items())
        return write_secret(self.directory / f"{user}.properties", text)
