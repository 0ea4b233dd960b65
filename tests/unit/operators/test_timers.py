import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkish.operators.timers import KeyedTimerService, TimerQueue, UnkeyedTimerService
from flinkish.state.heap import HeapKeyedStateBackend


def test_timers_fire_in_order_of_time_then_of_registration():
    queue = TimerQueue()
    for time, key in [(5, "b"), (3, "x"), (5, "a"), (9, "z")]:
        assert queue.register(time, key)
    assert list(queue.fire(5)) == [(3, "x"), (5, "b"), (5, "a")]
    assert len(queue) == 1 and queue.next_time == 9


def test_a_timer_registered_twice_is_one_timer():
    queue = TimerQueue()
    assert queue.register(5, "a") and not queue.register(5, "a")
    assert len(queue) == 1
    assert queue.delete(5, "a") and not queue.delete(5, "a")
    assert list(queue.fire(10)) == []


def test_a_timer_registered_while_others_fire_fires_in_the_same_round_if_it_is_due():
    queue = TimerQueue()
    queue.register(5, "a")
    queue.register(5, "b")
    fired = []
    for time, key in queue.fire(10):
        fired.append((time, key))
        if len(fired) == 1:
            queue.register(2, "earlier")
            queue.register(5, "a")  # the same one again
            queue.register(10, "later")
            queue.register(11, "not yet")
    assert fired == [(5, "a"), (2, "earlier"), (5, "b"), (5, "a"), (10, "later")]
    assert len(queue) == 1
    queue.check()


def test_a_timer_deleted_while_others_fire_does_not_fire():
    queue = TimerQueue()
    for key in "abc":
        queue.register(5, key)
    fired = []
    for _, key in queue.fire(5):
        fired.append(key)
        queue.delete(5, "b")
    assert fired == ["a", "c"]


def test_registering_and_deleting_again_and_again_does_not_grow_the_heap():
    queue = TimerQueue()
    queue.register(10**9, "stays")
    for time in range(10_000):
        queue.register(time, "a")
        queue.delete(time, "a")
    assert len(queue._heap) <= 130
    queue.check()


@given(st.lists(st.tuples(st.sampled_from("rdf"), st.integers(0, 8), st.integers(0, 3))))
def test_the_queue_agrees_with_a_sorted_list(steps):
    queue, model = TimerQueue(), {}
    for number, (step, time, key) in enumerate(steps):
        if step == "r":
            assert queue.register(time, key) == ((time, key) not in model)
            model.setdefault((time, key), number)
        elif step == "d":
            assert queue.delete(time, key) == (model.pop((time, key), None) is not None)
        else:
            due = sorted((t, n, k) for (t, k), n in model.items() if t <= time)
            assert list(queue.fire(time)) == [(t, k) for t, _, k in due]
            model = {entry: n for entry, n in model.items() if entry[0] > time}
        assert len(queue) == len(model)
        assert queue.next_time == min((t for t, _ in model), default=None)
        queue.check()
    assert list(queue.timers()) == [(t, k) for t, _, k in sorted((t, n, k) for (t, k), n in model.items())]


def test_timers_belong_to_the_current_key_and_take_whole_milliseconds_only():
    backend = HeapKeyedStateBackend("op")
    service = KeyedTimerService(backend, lambda: 7)
    backend.current_key = "a"
    service.register_event_time_timer(5.0)
    backend.current_key = "b"
    service.register_event_time_timer(5)
    service.delete_event_time_timer(5)
    assert list(service.event_time.fire(5)) == [(5, "a")]
    assert service.current_processing_time() == 7
    with pytest.raises(ValueError, match="whole milliseconds"):
        service.register_event_time_timer(5.5)
    for beyond in (2**63, -(2**63) - 1):
        for register in (service.register_event_time_timer, service.register_processing_time_timer):
            with pytest.raises(ValueError, match="64 bits"):
                register(beyond)


def test_a_stream_without_key_has_times_but_no_timers():
    service = UnkeyedTimerService(lambda: 7)
    assert service.current_processing_time() == 7
    with pytest.raises(Exception, match="keyed stream"):
        service.register_event_time_timer(1)
    with pytest.raises(Exception, match="keyed stream"):
        service.delete_processing_time_timer(1)
