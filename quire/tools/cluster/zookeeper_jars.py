"""ZooKeeper's jars for `quire cluster up`: fetched once, checked at every start.

Maven fetches them, so that the user's mirrors, proxies and credentials are in force; which files
must come of it, and with which content, is pinned here. They are kept in
${QUIRE_CACHE:-${XDG_CACHE_HOME:-~/.cache}/quire}/zookeeper-<version>.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import click

VERSION = "3.9.5"
NETTY = "4.1.130.Final"
PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.7.0:copy-dependencies"
FETCH_SECONDS_MAX = 600
#: Of Maven's words that are shown when it fails.
SHOWN_LINES = 8


class Jar(NamedTuple):
    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"


#: All that one server needs that has no TLS and no HTTP administration.
JARS = (
    Jar(
        *("org.apache.zookeeper", "zookeeper", VERSION),
        "936d025db1a85f085edea25048c3f5b3de5fc29329c371a10925e3b78b0b38a0",
    ),
    Jar(
        *("org.apache.zookeeper", "zookeeper-jute", VERSION),
        "abcbc7f9d6c493daa118da6fa3061a201e2c521217526e8535adfb56b629e52a",
    ),
    Jar(
        *("org.slf4j", "slf4j-api", "2.0.13"),
        "e7c2a48e8515ba1f49fa637d57b4e2f590b3f5bd97407ac699c3aa5efb1204a9",
    ),
    Jar(
        *("ch.qos.logback", "logback-classic", "1.3.15"),
        "06c68fb7468143c3c6512d13bb8eb6676724b019330de3a5ab493e267dde2084",
    ),
    Jar(
        *("ch.qos.logback", "logback-core", "1.3.15"),
        "90b72ec457f30f8f42a280a409ab2bc4499fec16983005d1d91015199be7047b",
    ),
    Jar(
        *("io.dropwizard.metrics", "metrics-core", "4.2.33"),
        "7ee5624bc5e671f3cdf8d7e59350c1de2d5b0a0db7278a311b811af7e080269f",
    ),
    Jar(
        *("org.xerial.snappy", "snappy-java", "1.1.10.7"),
        "4c766cb3f855415ee734b2392949a0b6f12a60879334a74518deaf6270d32e36",
    ),
    Jar(
        *("io.netty", "netty-buffer", NETTY),
        "00a522b67ea35cb7b4dd9cf27f85c6c58f5e306785aa045302e5f6b2d4944a87",
    ),
    Jar(
        *("io.netty", "netty-common", NETTY),
        "53921f28dd5a352b1bed0e1cbcc54d013dc60ffebeae9b2b1e53eabef317e581",
    ),
    Jar(
        *("io.netty", "netty-handler", NETTY),
        "98c78ec187ca30a4b9775bf6f632f5c9929db6bf06a60e6971f945813880ca0f",
    ),
    Jar(
        *("io.netty", "netty-transport", NETTY),
        "1bf573266d271f856705a9984d25449c56a1d73c02a16af12033ceccfe555dbb",
    ),
)


def cache_directory() -> Path:
    explicit = os.environ.get("QUIRE_CACHE")
    if explicit:
        return Path(explicit)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "quire"


def find_java() -> str:
    """The program; ClickException without one."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    if java is None:
        where = f"JAVA_HOME={home}" if home else "PATH"
        raise click.ClickException(
            f"ZooKeeper needs Java, version 8 or newer, and there is no `java` in {where}"
        )
    return java


def ensure_jars(cache: Path | None = None) -> Path:
    """The directory that holds exactly JARS. Fetches them if they are not there, or are not what
    they should be; ClickException if that cannot be done. One process at a time."""
    cache = cache_directory() if cache is None else cache
    directory = cache / f"zookeeper-{VERSION}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "zookeeper.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if what_is_wrong(directory) is None:
            return directory
        fetched = Path(tempfile.mkdtemp(prefix="zookeeper-", dir=cache))
        try:
            _fetch(fetched)
            wrong = what_is_wrong(fetched / "jars")
            if wrong is not None:
                raise click.ClickException(f"what Maven gave is not ZooKeeper {VERSION}: {wrong}")
            shutil.rmtree(directory, ignore_errors=True)
            (fetched / "jars").rename(directory)
        finally:
            shutil.rmtree(fetched, ignore_errors=True)
    return directory


def what_is_wrong(directory: Path) -> str | None:
    """None: the directory has the pinned files and no other; else what it lacks or has."""
    wanted = {jar.file_name: jar.sha256 for jar in JARS}
    found = {path.name for path in directory.iterdir()} if directory.is_dir() else set()
    for name in sorted(wanted.keys() - found):
        return f"{name} is missing"
    for name in sorted(found - wanted.keys()):
        return f"{name} does not belong there"
    for name, sha256 in wanted.items():
        digest = hashlib.sha256((directory / name).read_bytes()).hexdigest()
        if digest != sha256:
            return f"{name} has the SHA-256 {digest}, not {sha256}"
    return None


def _fetch(directory: Path) -> None:
    """Into `directory`/jars. ClickException."""
    maven = shutil.which("mvn")
    if maven is None:
        raise click.ClickException(
            f"ZooKeeper {VERSION} is not in {directory.parent} yet, and fetching it needs Maven: "
            "there is no `mvn` in PATH"
        )
    click.echo(f"fetching ZooKeeper {VERSION} with Maven (once, 20 MB)", err=True)
    project = directory / "pom.xml"
    project.write_text(_project(), encoding="utf-8")
    command = [maven, "-q", "-B", "-f", str(project), PLUGIN]
    command.append(f"-DoutputDirectory={directory / 'jars'}")
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=FETCH_SECONDS_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise click.ClickException(f"fetching ZooKeeper {VERSION} failed: {error}") from error
    if done.returncode != 0:
        words = "\n".join((done.stdout + done.stderr).strip().splitlines()[:SHOWN_LINES])
        raise click.ClickException(
            f"fetching ZooKeeper {VERSION} failed; is there a network, and does Maven work "
            f"(code {done.returncode})?\n{words}"
        )


def _project() -> str:
    """A Maven project of exactly these files: nothing that they ask for comes along."""
    dependencies = "".join(
        f"<dependency><groupId>{jar.group}</groupId><artifactId>{jar.artifact}</artifactId>"
        f"<version>{jar.version}</version><exclusions><exclusion><groupId>*</groupId>"
        "<artifactId>*</artifactId></exclusion></exclusions></dependency>\n"
        for jar in JARS
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>quire</groupId><artifactId>zookeeper-jars</artifactId><version>1</version>"
        f"<packaging>pom</packaging><dependencies>\n{dependencies}</dependencies></project>\n"
    )
