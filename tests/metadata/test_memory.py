"""What only the store in memory can do: lose its session on demand."""

from metadata.memory import MemoryStore
from metadata.store import SessionState


async def test_owners_make_their_nodes_anew_when_the_session_was_lost():
    store = MemoryStore()
    told = []
    store.subscribe(told.append)
    await store.create("/mine", ephemeral=True)
    store.expire_session()
    assert told == [SessionState.LOST, SessionState.CONNECTED]
    assert not await store.exists("/mine")
    assert not await store.owns("/mine")
    await store.create("/mine", ephemeral=True)
    assert await store.owns("/mine")
    await store.aclose()
    assert told[2:] == [SessionState.LOST]
