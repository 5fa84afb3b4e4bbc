"""What is damaged beyond what is listed is mended all the same."""

from bookie.health.damage import DAMAGES_MAX
from wire.bookkeeper.status import Status


async def test_an_entry_damaged_after_the_list_is_full_is_told_and_not_listed(machine, adds_class):
    """As a disk with a few MiB of bad blocks has them: entries are smaller than 1 KiB."""
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        adds.add(1, 0, bytes(300))
        adds.add(1, 1, bytes(300))
        await adds.wait(2)
        await bookie.flush()
        told = []
        bookie.on_damage(told.append)
        for number in range(DAMAGES_MAX):
            bookie._damages.report("/ledgers/current/0.log", 1024 + number, 2, number, "damaged")
        told.clear()
        (log,) = [each for each in bookie._logs.all() if each.ledgers and 1 in each.ledgers]
        location = machine.index.get(1, 1)
        file = machine.disk.open(log.path)
        file.pwrite([b"\xff" * 16], location & 0xFFFFFFFF)
        file.close()
        status, _ = await bookie.read_entry(1, 1)
        assert status is Status.EIO
        assert told == [1], "auto-recovery is never told of it"
        listed = await bookie.sound_entries(1)
        assert 0 in listed
        assert 1 not in listed, "it says that it has what it cannot give"
