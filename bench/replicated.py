"""Side by side with three copies: our broker on three bookies, and three brokers of Apache Kafka.

    python -m bench.replicated [--rounds 3] [--seconds 3] [--only TEXT] [--servers kafka,quire]

Ours is `quire standalone --bookies 3`: E3 Qw3 Qa2, and an ack means that two disks were told to
sync. Kafka has replication factor 3, acks=all and min.insync.replicas=2, once as it comes (an ack
means page cache) and once with flush.messages=1. Kafka's partitions are all led by one broker, as
ours are; CPU and memory are those of all processes of a server.
"""

from collections.abc import Iterator

from bench import clients, compare, load, rounds
from bench.rounds import Figure
from bench.servers import REPLICATED_SERVERS, KafkaReplicated, Server


def measure_memory(server: Server, number: int) -> Iterator[Figure]:
    yield "memory of all processes", "MB", server.memory_mb()


def main() -> None:
    parser = rounds.options_of(__doc__, REPLICATED_SERVERS)
    parser.add_argument("--warm-up", type=float, default=3.0, help="seconds for each case")
    parser.add_argument("--only", default="", help="part of a case's name; memory")
    options = parser.parse_args()
    chosen = rounds.choose(parser, options, REPLICATED_SERVERS)
    cases = {
        name: compare.measure_produce(name, options.seconds, per_request=True)
        for name in load.CASES
    }
    cases["memory"] = measure_memory
    cases = {name: measure for name, measure in cases.items() if options.only in name}

    def start(server: Server) -> None:
        server.start()
        if isinstance(server, KafkaReplicated):
            clients.wait_for_brokers(server, server.copies)
        compare.warm_up(server, options.warm_up)

    rounds.side_by_side("replicated", chosen, start, (cases, options.rounds))


if __name__ == "__main__":
    main()
