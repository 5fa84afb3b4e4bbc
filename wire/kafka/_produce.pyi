from wire.buffers import Buffer
from wire.kafka.plain_produce import PlainProduce

def plain_produce(frame: Buffer, /) -> PlainProduce | None: ...
