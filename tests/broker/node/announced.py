"""The APIs that a broker announces, asked of its handlers without a broker to serve them."""

from broker.handlers.leaders import LeadersHandler
from broker.handlers.share_acknowledge import ShareAcknowledgeHandler
from broker.handlers.share_fetch import ShareFetchHandler
from broker.handlers.txn_markers import TransactionMarkersHandler
from broker.node.apis import make_handlers
from broker.node.foundation import Foundation, Services


class Anything:
    """Handlers keep their collaborators and ask nothing of them when they are made."""

    def __getattr__(self, name):
        return Anything()

    def __call__(self, *arguments, **keywords):
        return Anything()

    def __gt__(self, other):
        return True


def of_every_broker():
    foundation = Foundation(*[Anything()] * 4, data_directory="x")
    markers = TransactionMarkersHandler(Anything(), Anything(), Anything())
    services = Services(
        *[Anything()] * 8, markers, *[Anything()] * 3, share=Anything(), answers=Anything()
    )
    return make_handlers(foundation, services, of_share_partitions())


def of_share_partitions():
    return [
        ShareFetchHandler(*[Anything()] * 6, fetch_bytes_max=1),
        ShareAcknowledgeHandler(*[Anything()] * 4),
    ]


def of_a_cluster():
    return LeadersHandler(Anything(), Anything(), Anything(), Anything()).apis()
