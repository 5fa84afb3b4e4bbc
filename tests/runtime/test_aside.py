"""Calls aside: on a thread, one after the other, told on the loop."""

import time
from functools import partial
from threading import current_thread, main_thread

import trio

from runtime.aside import Aside


async def told_of(aside, call):
    told = []
    event = trio.Event()

    def tell(result):
        told.append(result)
        event.set()

    aside.add(call, tell)
    await event.wait()
    [result] = told
    return result


async def test_what_a_call_raises_is_told_on_the_loop():
    aside = Aside("test")
    threads = []

    def fail():
        threads.append((current_thread() is main_thread(), current_thread().name))
        raise ValueError("why")

    result = await told_of(aside, fail)
    assert repr(result.error) == "ValueError('why')"
    assert threads == [(False, "test")]
    assert (await told_of(aside, lambda: None)).unwrap() is None


async def test_calls_are_made_in_order_and_never_two_at_once():
    aside = Aside("test")
    running, order, told = [], [], []
    done = trio.Event()

    def call(number):
        running.append(number)
        time.sleep(0.005)
        order.append((number, list(running)))
        running.remove(number)

    def tell(number):
        assert current_thread() is main_thread()
        told.append(number)
        if number == 9:
            done.set()

    for number in range(10):
        aside.add(lambda number=number: call(number), lambda _, number=number: tell(number))
    assert aside.waiting_count == 9
    turns = 0
    while not done.is_set():
        turns += 1
        await trio.sleep(0.001)
    assert order == [(number, [number]) for number in range(10)]
    assert told == list(range(10))
    assert turns > 10, "the loop goes on meanwhile"


async def test_what_nobody_wants_any_more_is_not_made():
    aside = Aside("test")
    made, told = [], []
    done = trio.Event()
    numbers = [
        aside.add(partial(call, number, made), lambda _, number=number: told.append(number))
        for number in range(4)
    ]
    aside.add(lambda: None, lambda _: done.set())
    assert [aside.forget(numbers[number]) for number in (0, 1, 3, 3)] == [False, True, True, False]
    assert aside.waiting_count == 2
    await done.wait()
    assert made == told == [0, 2]


def call(number, made):
    time.sleep(0.005)
    made.append(number)


async def test_who_is_told_may_ask_for_more():
    aside = Aside("test")
    made = []
    done = trio.Event()

    def again(_):
        if len(made) == 3:
            done.set()
        else:
            aside.add(lambda: made.append(1), again)

    again(None)
    with trio.fail_after(10):
        await done.wait()
    assert len(made) == 3


def test_a_loop_that_ends_is_told_of_nothing():
    told = []

    async def leave():
        Aside("test").add(lambda: time.sleep(0.05), told.append)

    trio.run(leave)
    time.sleep(0.1)
    assert told == []
