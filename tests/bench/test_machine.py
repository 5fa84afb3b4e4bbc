"""What a run tells of the machine."""

from bench import machine


def test_this_machine_is_measured(monkeypatch):
    monkeypatch.setattr(machine, "SYNCS", 5)
    monkeypatch.setattr(machine, "FILE_BYTES", 4 << 20)
    found = machine.measure()
    assert found.cores >= 1
    assert found.synced_mb_per_second > 0
    assert found.sync_4k_ms > 0
    words = "\n".join(found.lines())
    assert found.processor in words
    assert "fdatasync of 4 KiB" in words
