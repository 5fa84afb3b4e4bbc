"""A tenure as a state machine: every phase with every event, and that no two tenures of a partition
are under way at once, whatever happens in whatever order."""

from dataclasses import dataclass
from random import Random

import pytest

from broker.log.life.tenure import Effect, Event, Phase, Tenure

#: For each phase what each event does: the phase afterwards and the effects.
TABLE = """
waiting
    raised: waiting
    withdrawn: ended, forget, give up
    owner gone: waiting, stop waiting
    begun: taking over
    gone offline: resting
    topic deleted: ended, forget, give up
    stopping: ended
    impossible: taken over, delay passed, confirmed, not confirmed
taking over
    raised: taking over
    withdrawn: leaving, hand over
    owner gone: taking over
    taken over: keeping, publish
    gone offline: resting
    topic deleted: ended, forget, give up
    stopping: closing, close
    impossible: begun, delay passed, confirmed, not confirmed
keeping
    raised: leaving, hand over
    withdrawn: leaving, hand over
    owner gone: keeping
    gone offline: resting
    topic deleted: ended, forget, give up
    stopping: closing, close
    impossible: begun, taken over, delay passed, confirmed, not confirmed
leaving
    raised: leaving
    withdrawn: leaving
    owner gone: leaving
    taken over: leaving, publish
    gone offline: ended, forget, hold
    topic deleted: ended, forget, give up
    stopping: closing, close
    impossible: begun, delay passed, confirmed, not confirmed
resting
    raised: ended, forget, hold
    withdrawn: ended, forget
    owner gone: resting
    delay passed: confirming
    topic deleted: ended, forget, give up
    stopping: ended
    impossible: begun, taken over, gone offline, confirmed, not confirmed
confirming
    raised: ended, forget, hold
    withdrawn: ended, forget
    owner gone: confirming
    confirmed: ended, forget, hold
    not confirmed: resting
    topic deleted: ended, forget, give up
    stopping: ended
    impossible: begun, taken over, gone offline, delay passed
closing
    raised: closing
    withdrawn: closing
    owner gone: closing
    taken over: closing
    gone offline: ended
    topic deleted: ended, forget, give up
    stopping: closing
    impossible: begun, delay passed, confirmed, not confirmed
"""


def expectations():
    """(phase, event) -> (phase afterwards, effects), or None where it cannot happen."""
    found = {(Phase.ENDED, event): (Phase.ENDED, ()) for event in Event}
    phase = None
    for line in TABLE.strip().splitlines():
        what, _, then = line.strip().partition(": ")
        words = then.split(", ")
        if not then:
            phase = Phase(what)
        elif what == "impossible":
            found |= {(phase, Event(word)): None for word in words}
        else:
            effects = tuple(Effect(word) for word in words[1:])
            found[phase, Event(what)] = Phase(words[0]), effects
    return found


EXPECTED = expectations()


@pytest.mark.parametrize("event", Event, ids=lambda event: event.value)
@pytest.mark.parametrize("phase", Phase, ids=lambda phase: phase.value)
def test_every_event_in_every_phase(phase, event):
    expected = EXPECTED[phase, event]
    tenure = Tenure(5, phase)
    if expected is None:
        with pytest.raises(AssertionError):
            tenure.step(event)
        assert tenure.phase is phase
    else:
        effects = tenure.step(event)
        assert (tenure.phase, effects) == expected


@pytest.mark.parametrize("phase", Phase, ids=lambda phase: phase.value)
def test_an_epoch_that_the_tenure_has_is_no_news(phase):
    for epoch in (4, 5):
        tenure = Tenure(5, phase)
        assert tenure.assigned(epoch) == ()
        assert (tenure.phase, tenure.epoch) == (phase, 5)


def test_the_take_over_gives_the_epoch_of_the_latest_assignment_before_it():
    tenure = Tenure(5)
    assert tenure.assigned(7) == ()
    assert tenure.epoch == 7
    tenure.step(Event.BEGUN)
    assert tenure.assigned(9) == ()
    assert tenure.epoch == 7
    tenure.taken_over(8)
    assert tenure.epoch == 8
    assert tenure.assigned(8) == ()
    assert tenure.assigned(9) == (Effect.HAND_OVER,)


@dataclass(eq=False)
class Run:
    """The task of a tenure, as the manager has it."""

    tenure: Tenure
    is_under_way: bool = False  # its keeper may change the chain
    #: What the task is about, which need not be the tenure's phase: that is looked at afterwards.
    doing: Phase = Phase.WAITING


class Partition:
    """A partition in a manager. What happens outside and how far each task comes is random."""

    def __init__(self, random):
        self.random = random
        self.assigned = None
        self.held = None
        self.runs = []
        self.chain_epoch = -1
        self.is_deleted = self.is_stopping = False

    def step(self):
        match self.random.random():
            case chance if chance < 0.002:
                self.delete()
            case chance if chance < 0.004:
                self.stop()
            case chance if chance < 0.1:
                self.the_owner_goes()
            case chance if chance < 0.4:
                self.assign()
            case _ if self.runs:
                self.proceed(self.random.choice(self.runs), is_well=self.random.random() < 0.7)
        self.check()

    # -- the manager ---------------------------------------------------------------------------

    def hold(self):
        if self.assigned is None or self.is_deleted or self.is_stopping:
            return
        assert self.held is None
        self.held = Run(Tenure(self.assigned))
        self.runs.append(self.held)

    def carry_out(self, run, effects):
        for effect in effects:
            if effect is Effect.FORGET:
                assert self.held is run
                self.held = None
            elif effect is Effect.HOLD:
                self.hold()

    def follow(self):
        if self.held is not None:
            self.carry_out(self.held, self.held.tenure.assigned(self.assigned))
        else:
            self.hold()

    # -- from outside --------------------------------------------------------------------------

    def assign(self):
        if not (self.is_deleted or self.is_stopping):
            newest = max(self.chain_epoch, self.assigned or 0)
            self.assigned = self.random.choice([None, newest, newest + 1, newest + 2])
            self.follow()

    def tell(self, event):
        if self.held is not None:
            self.carry_out(self.held, self.held.tenure.step(event))

    def the_owner_goes(self):
        self.tell(Event.OWNER_GONE)

    def delete(self):
        if not self.is_deleted:
            self.is_deleted = True
            self.tell(Event.TOPIC_DELETED)
            assert self.held is None or self.is_stopping

    def stop(self):
        if not self.is_stopping:
            self.is_stopping = True
            self.tell(Event.STOPPING)

    # -- the tasks -----------------------------------------------------------------------------

    def proceed(self, run, *, is_well):
        """One step of a task; one that was cancelled may go on until it next looks up."""
        match run.doing:
            case Phase.WAITING if is_well:
                self.carry_out(run, run.tenure.step(Event.BEGUN))
                run.is_under_way = run.tenure.is_under_way
                assert not run.is_under_way or self.assigned is not None
                run.doing = Phase.TAKING_OVER if run.is_under_way else Phase.LEAVING
            case Phase.TAKING_OVER if is_well:
                self.chain_epoch = max(self.chain_epoch + 1, run.tenure.epoch)
                self.carry_out(run, run.tenure.taken_over(self.chain_epoch))
                if run is self.held and not self.is_stopping:
                    self.follow()
                run.doing = Phase.KEEPING
            case Phase.RESTING:
                self.end_rest(run)
            case Phase.CONFIRMING:
                answer = Event.CONFIRMED if is_well else Event.NOT_CONFIRMED
                self.carry_out(run, run.tenure.step(answer))
                run.doing = Phase.ENDED if is_well else Phase.RESTING
            case _:
                self.go_offline(run)
        self.runs = [run for run in self.runs if run.doing is not Phase.ENDED]

    def go_offline(self, run):
        run.is_under_way = False
        self.carry_out(run, run.tenure.step(Event.GONE_OFFLINE))
        is_resting = run.tenure.phase is Phase.RESTING
        run.doing = Phase.RESTING if is_resting else Phase.ENDED

    def end_rest(self, run):
        run.doing = Phase.ENDED
        if run.tenure.phase is Phase.RESTING:
            self.carry_out(run, run.tenure.step(Event.DELAY_PASSED))
            run.doing = Phase.CONFIRMING

    # -- what holds ----------------------------------------------------------------------------

    def check(self):
        assert sum(run.is_under_way for run in self.runs) <= 1
        if not (self.is_deleted or self.is_stopping):
            assert self.assigned is None or self.held is not None
            live = [run for run in self.runs if run.tenure.phase is not Phase.ENDED]
            assert live == ([] if self.held is None else [self.held])

    def settle(self):
        """When nothing more happens and all goes well, the assignment has its way."""
        for _ in range(20):
            for run in list(self.runs):
                if run.doing is not Phase.KEEPING or run.tenure.phase is not Phase.KEEPING:
                    self.proceed(run, is_well=True)
                    self.check()
        if self.is_deleted or self.is_stopping or self.assigned is None:
            assert self.runs == []
            assert self.held is None or self.is_stopping
        else:
            assert self.runs == [self.held]
            assert self.held.tenure.phase is Phase.KEEPING
            assert self.held.tenure.epoch >= self.assigned


@pytest.mark.parametrize("seed", range(4))
def test_no_two_tenures_of_a_partition_are_under_way(seed):
    random = Random(seed)
    reached = set()
    for _ in range(250):
        partition = Partition(random)
        for _ in range(random.randrange(300)):
            partition.step()
            reached |= {run.tenure.phase for run in partition.runs}
        partition.settle()
    assert reached == set(Phase)
