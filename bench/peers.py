"""Clusters of processes as the compatibility tests start them: one door to their harness."""

import logging
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "compat_tests"))

# It tells of each ZooKeeper that we end.
logging.getLogger("kazoo").setLevel(logging.CRITICAL)

from harness.bookkeeper import (  # noqa: E402
    AutoRecovery,
    Cluster,
    JavaBookie,
    LedgerTool,
    QuireAutoRecovery,
    QuireBookie,
    wait_for,
)
from harness.brokers import BrokerCluster  # noqa: E402
from harness.servers import HOST, QuireServer, free_port  # noqa: E402
from harness.spark_session import running_spark  # noqa: E402
from harness.zookeeper import ZooKeeper  # noqa: E402

__all__ = [
    "HOST",
    "AutoRecovery",
    "BrokerCluster",
    "Cluster",
    "JavaBookie",
    "LedgerTool",
    "QuireAutoRecovery",
    "QuireBookie",
    "QuireServer",
    "ZooKeeper",
    "free_port",
    "running_spark",
    "wait_for",
]
