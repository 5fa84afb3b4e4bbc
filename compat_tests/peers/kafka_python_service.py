"""Takes the place of test/service.py, which kafka-python's source distribution leaves out.

Its fixtures start brokers with it. We give the suite a running broker (KAFKA_URI), so these are
only the names that the fixtures import and the life cycle that they call on an outside service.
"""


class ExternalService:
    """A broker that somebody else starts and stops."""

    def __init__(self, host, port):
        self.host = host
        self.port = port

    def open(self):
        pass

    def close(self):
        pass

    def dump_logs(self):
        pass


class SpawnedService:
    """Never made: the suite is only run with KAFKA_URI."""

    def __init__(self, *args, **kwargs):
        raise RuntimeError("these tests need KAFKA_URI")
