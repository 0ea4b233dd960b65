"""One turn of the loop: order, timers, wake-ups, descriptors that come and go."""

import os
import select
import signal
import socket
import threading
import time

import pytest

from flinkish.shell import event_loop
from flinkish.shell.event_loop import EventLoop


@pytest.fixture(params=["default", "portable"])
def loop(request, monkeypatch):
    if request.param == "portable":
        monkeypatch.setattr(event_loop, "_EpollPoller", event_loop._SelectorsPoller)
        monkeypatch.delattr(os, "eventfd", raising=False)
    loop = EventLoop()
    yield loop
    loop.close()


@pytest.fixture
def pair():
    ends = socket.socketpair()
    for end in ends:
        end.setblocking(False)
    yield ends
    for end in ends:
        end.close()


def test_timers_run_in_order_of_their_time_and_not_after_cancel(loop):
    ran = []
    loop.call_later(20, ran.append, "late")
    loop.call_later(1, ran.append, "soon")
    cancelled = loop.call_later(5, ran.append, "never")
    cancelled.cancel()
    cancelled.cancel()
    assert loop.run_until(lambda: "late" in ran, 2_000)
    assert ran == ["soon", "late"]


def test_many_cancelled_timers_are_forgotten(loop):
    for _ in range(10_000):
        loop.call_later(60_000, print).cancel()
    assert len(loop._timers) < 200


def test_a_timer_may_cancel_another_one_that_is_due_in_the_same_turn(loop):
    ran = []
    other = []
    loop.call_later(0, lambda: other[0].cancel())
    other.append(loop.call_later(0, ran.append, "never"))
    loop.run_once(10)
    loop.run_once(0)
    assert ran == []


def test_a_call_from_another_thread_ends_the_wait(loop):
    ran = []
    thread = threading.Thread(target=loop.call_soon_threadsafe, args=(ran.append, 1))
    started = time.monotonic()
    loop.call_soon_threadsafe(thread.start)
    while not ran:
        loop.run_once(10_000)
    assert time.monotonic() - started < 5
    thread.join()


def test_calls_of_many_threads_all_arrive_in_the_order_of_each(loop):
    ran = []

    def calls(name):
        for number in range(500):
            loop.call_soon_threadsafe(ran.append, (name, number))

    threads = [threading.Thread(target=calls, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    assert loop.run_until(lambda: len(ran) == 2_000, 10_000)
    for thread in threads:
        thread.join()
    for name in range(4):
        assert [number for who, number in ran if who == name] == list(range(500))


def test_a_signal_handler_can_end_the_wait(loop):
    ran = []
    before = signal.signal(signal.SIGUSR2, lambda s, f: loop.call_soon_threadsafe(ran.append, s))
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR2))
    try:
        timer.start()
        started = time.monotonic()
        while not ran:
            loop.run_once(10_000)
        assert time.monotonic() - started < 5
    finally:
        timer.join()
        signal.signal(signal.SIGUSR2, before)


def test_a_wake_up_of_the_main_thread_is_not_lost_while_another_thread_is_in_its_own(loop):
    """The other one may have written already, and hold the lock still."""
    waker, inside, go_on = loop._waker, threading.Event(), threading.Event()

    def hold():
        with waker._lock:
            inside.set()
            go_on.wait()

    other = threading.Thread(target=hold)
    other.start()
    inside.wait()
    timer = threading.Timer(0.05, go_on.set)
    timer.start()
    ran = []
    loop.call_soon_threadsafe(ran.append, 1)  # waits for its turn, and then wakes
    readable, _, _ = select.select([waker.fd], [], [], 5)
    assert readable
    loop.run_once(0)
    assert ran == [1]
    other.join()
    timer.join()


def test_a_signal_handler_that_interrupts_a_wake_up_wakes_too(loop):
    before = signal.signal(signal.SIGUSR2, lambda s, f: loop._waker.wake())
    try:
        with loop._waker._lock:
            os.kill(os.getpid(), signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert select.select([loop._waker.fd], [], [], 5)[0]


def test_a_call_whose_wake_up_an_interrupt_has_prevented_does_not_silence_the_next_one(loop, monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    ran = []
    with monkeypatch.context() as patch:
        patch.setattr(loop._waker, "wake", interrupted)
        with pytest.raises(KeyboardInterrupt):
            loop.call_soon_threadsafe(ran.append, 1)
    loop.run_once(0)
    loop.call_soon_threadsafe(ran.append, 2)
    assert select.select([loop._waker.fd], [], [], 5)[0]
    loop.run_once(0)
    assert ran == [1, 2]


def test_a_descriptor_is_called_when_it_is_ready_and_not_after_unregister(loop, pair):
    seen = []
    loop.register(pair[0].fileno(), "r", lambda r, w: seen.append((r, w)))
    assert not loop.run_once(0)
    pair[1].send(b"x")
    assert loop.run_once(1_000)
    loop.unregister(pair[0].fileno())
    loop.unregister(pair[0].fileno())
    assert not loop.run_once(0)
    assert seen == [(True, False)]


def test_registering_again_changes_what_is_waited_for(loop, pair):
    seen = []
    loop.register(pair[0].fileno(), "r", lambda r, w: seen.append("read"))
    loop.register(pair[0].fileno(), "w", lambda r, w: seen.append((r, w)))
    loop.run_once(1_000)
    assert seen == [(False, True)]


def test_registering_again_repairs_a_number_that_was_closed_and_opened_anew(loop):
    one, other = os.pipe()
    number = os.dup(one)
    seen = []
    loop.register(number, "r", lambda r, w: seen.append("old"))
    os.close(number)
    assert os.dup2(one, number) == number
    loop.register(number, "r", lambda r, w: seen.append("new"))
    os.write(other, b"x")
    loop.run_once(1_000)
    assert seen == ["new"]
    loop.unregister(number)
    for fd in (one, other, number):
        os.close(fd)


def test_an_event_of_a_descriptor_that_was_replaced_in_the_same_turn_is_not_given_to_the_new_one(loop):
    pairs = [socket.socketpair() for _ in range(2)]
    seen = []

    def replace(me, victim):
        def callback(readable, writable):
            seen.append("first")
            loop.unregister(pairs[victim][0].fileno())
            loop.register(pairs[victim][0].fileno(), "r", lambda r, w: seen.append("stale"))
            loop.unregister(pairs[me][0].fileno())

        return callback

    for me, victim in ((0, 1), (1, 0)):
        loop.register(pairs[me][0].fileno(), "r", replace(me, victim))
        pairs[me][1].send(b"x")
    loop.run_once(1_000)
    assert seen == ["first"]
    for ends in pairs:
        for end in ends:
            loop.unregister(end.fileno())
            end.close()


def test_an_error_of_a_callback_leaves_by_run_once_and_the_rest_runs_in_the_next_turn(loop):
    ran = []
    loop.call_soon_threadsafe(lambda: 1 / 0)
    loop.call_soon_threadsafe(ran.append, "rest")
    with pytest.raises(ZeroDivisionError):
        loop.run_once(0)
    loop.run_once(0)
    assert ran == ["rest"]


def test_an_error_handler_gets_the_error_and_the_turn_goes_on():
    errors, ran = [], []
    loop = EventLoop(on_error=errors.append)
    loop.call_soon_threadsafe(lambda: 1 / 0)
    loop.call_soon_threadsafe(ran.append, "rest")
    loop.run_once(0)
    loop.close()
    assert [type(error) for error in errors] == [ZeroDivisionError]
    assert ran == ["rest"]


def test_a_callback_that_calls_itself_again_does_not_starve_the_descriptors(loop, pair):
    seen = []

    def again():
        loop.call_soon_threadsafe(again)

    loop.register(pair[0].fileno(), "r", lambda r, w: seen.append("read"))
    again()
    pair[1].send(b"x")
    assert loop.run_until(lambda: seen, 2_000)


def test_descriptors_are_served_before_timers_that_are_due(loop, pair):
    order = []
    loop.register(pair[0].fileno(), "r", lambda r, w: (order.append("read"), pair[0].recv(10)))
    loop.call_later(0, order.append, "timer")
    pair[1].send(b"x")
    loop.run_once(1_000)
    assert order == ["read", "timer"]


def test_closing_leaves_no_descriptor_and_late_calls_do_nothing():
    before = set(os.listdir("/proc/self/fd"))
    loop = EventLoop()
    loop.close()
    loop.close()
    loop.call_soon_threadsafe(print)
    assert set(os.listdir("/proc/self/fd")) == before
