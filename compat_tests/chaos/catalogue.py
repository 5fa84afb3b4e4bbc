"""Which faults this machine and this world allow, and why the others are left out."""

from . import broker_nemeses, network, network_nemeses
from .nemeses import (
    FailSyncs,
    FenceWriter,
    FillDisk,
    FreezeAndFenceWriter,
    FreezeBookie,
    FreezeZooKeeper,
    KillBookie,
    KillWriter,
    KillZooKeeper,
    Nemesis,
    WipeBookie,
)
from .power_nemesis import LosePower
from .recovery_nemeses import KillRecovery, LoseDisk
from .world import ChaosBookie


def kinds(world) -> tuple[list[type[Nemesis]], list[str]]:
    """(what can be done here, why something cannot)"""
    made: list[type[Nemesis]] = [KillBookie, FreezeBookie, KillZooKeeper, FreezeZooKeeper]
    notes = list(world.notes)
    if world.options.scenario == "bookies":
        made += [KillWriter, FenceWriter, FreezeAndFenceWriter]
    elif world.options.scenario == "cluster":
        made.append(broker_nemeses.ReplaceMember)
    elif world.options.scenario == "groups":
        # Three groups, and they are what this is about.
        made += [broker_nemeses.ReplaceMember] * 3
    has_ours = any(isinstance(bookie, ChaosBookie) for bookie in world.bookies)
    if has_ours:
        made.append(WipeBookie)
        made += [FailSyncs, LosePower] * (world.library is not None)
        made += [FillDisk] * (world.disk is not None)
    if world.brokers:
        made += broker_nemeses.BROKER_KINDS
    if world.recovery is not None:
        made += [KillRecovery] + [LoseDisk] * has_ours
    if world.options.is_networked:
        made += network_nemeses.BOOKIE_KINDS * has_ours
        made += network_nemeses.BROKER_KINDS * bool(world.brokers)
        if not network.has_delay():
            made = [kind for kind in made if not kind.needs_delay]
            notes.append("no slow lines: there is no /dev/net/tun")
    else:
        reason = network.why_not()
        notes.append(f"no network faults: {reason or 'not asked for (--network)'}")
    return made, notes
