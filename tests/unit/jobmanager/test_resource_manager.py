from flinkish.errors import ConnectionLostError, NotEnoughSlotsError, ResourceError, SlotLostError
from flinkish.jobmanager.events import (
    AbandonSupervisors,
    CloseConnection,
    Disconnected,
    Inform,
    InterruptSlots,
    KillSlots,
    LaunchEnded,
    Launched,
    LaunchMoreSlots,
    LaunchSlots,
    LaunchSupervisors,
    ReleaseSlots,
    RequestSlots,
    Send,
    SendToSlot,
    SlotLost,
    SlotRegistered,
    SlotsAdded,
    SlotsAllocated,
    SlotsRefused,
    SlotStandsStill,
    SupervisorEnded,
    SupervisorRegistered,
    SupervisorReported,
    Tick,
)
from flinkish.jobmanager.relaunch_backoff import DEATHS_MAX, YOUNG_MS
from flinkish.jobmanager.resource_manager import ResourceManager, SlotState
from flinkish.messages.control import (
    InterruptSlot,
    KillSlot,
    RegisterSlot,
    RegisterSupervisor,
    RegistrationRefused,
    ReleaseSlot,
    SlotReport,
    SupervisorHeartbeat,
)
from flinkish.messages.deployment import SlotAddress


def address(slot_id):
    return SlotAddress(slot_id, "host", None, ("127.0.0.1", 1))


def register_slot(slot_id, pid=1, lease="L", version=1):
    return RegisterSlot(lease, slot_id, pid, address(slot_id), version)


def supervisor(task, *slot_ids, lease="L", attempt=0):
    return RegisterSupervisor(lease, task, attempt, "host", 1, slot_ids)


def cluster(slots=2, **options):
    """Slots s0, s1, ... each with a supervisor: connections 100+i, slot connections i."""
    manager = ResourceManager(capacity=slots, **options)
    manager.step(Launched("L", tuple((i, (f"s{i}",)) for i in range(slots))), 0)
    for i in range(slots):
        manager.step(SupervisorRegistered(100 + i, supervisor(i, f"s{i}")), 0)
        manager.step(SlotRegistered(i, register_slot(f"s{i}", pid=i)), 0)
    manager.check()
    return manager


def step(manager, event, now_ms=0):
    effects = manager.step(event, now_ms)
    manager.check()
    return effects


def test_a_request_is_served_as_soon_as_enough_slots_have_registered():
    manager = ResourceManager(capacity=2)
    step(manager, Launched("L", ((0, ("s0",)), (1, ("s1",)))))
    assert step(manager, RequestSlots("j", "job", 2)) == []
    assert step(manager, SlotRegistered(0, register_slot("s0"))) == []
    assert step(manager, SlotRegistered(1, register_slot("s1"))) == [
        SlotsAllocated("j", (address("s0"), address("s1")))
    ]


def test_more_slots_than_the_cluster_can_ever_have_are_refused_at_once_with_both_numbers():
    [refused] = step(cluster(2), RequestSlots("j", "job", 3))
    assert isinstance(refused, SlotsRefused) and isinstance(refused.error, NotEnoughSlotsError)
    assert refused.error.fields == {"needed": 3, "available": 2}
    assert "3 slots" in str(refused.error) and "has 2" in str(refused.error)


def test_a_request_that_waits_too_long_is_refused_and_told_who_holds_the_slots():
    manager = cluster(2, request_timeout_ms=500)
    step(manager, RequestSlots("a", "first", 2), 0)
    [said] = step(manager, RequestSlots("b", "second", 1), 100)
    assert isinstance(said, Inform) and "waits for slots job=b" in said.text
    assert manager.why_waiting("b") == 'it needs 1 slot, the cluster has 2 slots: 2 held by job "first" (a)'
    assert manager.why_waiting("a") == ""
    assert step(manager, Tick(), 599) == []
    [refused] = step(manager, Tick("stage 3 runs"), 600)
    assert refused.job_id == "b"
    assert refused.error.why == 'the cluster has 2 slots: 2 held by job "first" (a)', "no launch waits"


def test_a_request_that_waits_too_long_for_the_launch_is_told_what_that_waits_for():
    manager = ResourceManager(capacity=1, request_timeout_ms=500)
    step(manager, Launched("L", ((0, ("s0",)),)))
    assert step(manager, RequestSlots("a", "first", 1)) == [], "a start is no news"
    [refused] = step(manager, Tick("stage 3 runs"), 500)
    assert refused.error.why == "the cluster has 1 slot: 1 not registered yet; the launch waits: stage 3 runs"


def test_each_job_waits_as_long_as_it_says_itself():
    manager = cluster(1, request_timeout_ms=500)
    step(manager, RequestSlots("a", "a", 1))
    step(manager, RequestSlots("patient", "b", 1, timeout_ms=2_000))
    step(manager, RequestSlots("hasty", "c", 1, timeout_ms=0))
    step(manager, RequestSlots("usual", "d", 1))
    refused = {}
    for now_ms in (0, 499, 500, 1_999, 2_000):
        step(manager, SupervisorReported(100, SupervisorHeartbeat(())), now_ms)
        refused.update((effect.job_id, now_ms) for effect in step(manager, Tick(), now_ms))
    assert refused == {"hasty": 0, "usual": 500, "patient": 2_000}


def test_requests_are_served_in_order_so_that_a_large_job_is_not_starved():
    manager = cluster(2)
    step(manager, RequestSlots("a", "a", 1))
    step(manager, RequestSlots("b", "b", 2))
    [said] = step(manager, RequestSlots("c", "c", 1))
    assert '1 held by job "a" (a), 1 free; waiting too: job "b" for 2' in said.text
    assert step(manager, ReleaseSlots("b", "cancelled")) == [SlotsAllocated("c", (address("s1"),))]


def test_a_slot_comes_back_as_a_fresh_process_after_its_job():
    manager = cluster(1)
    step(manager, RequestSlots("a", "a", 1))
    step(manager, RequestSlots("b", "b", 1))
    assert step(manager, ReleaseSlots("a", "over")) == [Send(0, ReleaseSlot("over"))]
    assert manager.slots["s0"].state is SlotState.RELEASED
    assert step(manager, Disconnected(0)) == []
    assert step(manager, SlotRegistered(7, register_slot("s0", pid=7))) == [
        SlotsAllocated("b", (address("s0"),))
    ]


def test_a_fresh_process_may_register_before_the_end_of_the_old_one_is_seen():
    manager = cluster(1)
    step(manager, RequestSlots("a", "a", 1))
    step(manager, ReleaseSlots("a", "over"))
    [close] = step(manager, SlotRegistered(7, register_slot("s0", pid=7)))
    assert close == CloseConnection(0, "a newer process has taken the slot")
    assert step(manager, Disconnected(0)) == []
    assert manager.slots["s0"].state is SlotState.FREE


def test_a_released_slot_that_does_not_end_is_killed():
    manager = cluster(1, release_timeout_ms=100)
    step(manager, RequestSlots("a", "a", 1))
    step(manager, ReleaseSlots("a", "over"), 50)
    assert step(manager, Tick(), 149) == []
    effects = step(manager, Tick(), 150)
    assert Send(100, KillSlot("s0", 0, "it did not end after its job")) in effects


def test_the_loss_of_a_slot_waits_for_the_exit_status_from_its_supervisor():
    manager = cluster(1)
    step(manager, RequestSlots("a", "a", 1))
    assert step(manager, Disconnected(0), 10) == []
    report = SupervisorHeartbeat((SlotReport("s0", 0, 0, exit_status=-9, detail="killed by signal 9"),))
    [lost] = step(manager, SupervisorReported(100, report), 20)
    assert lost.job_id == "a" and lost.slot_id == "s0"
    assert isinstance(lost.error, SlotLostError) and "killed by signal 9" in lost.error.why


def test_the_exit_status_may_come_before_the_connection_closes_and_what_the_process_said_is_still_heard():
    manager = cluster(1)
    step(manager, RequestSlots("a", "a", 1))
    report = SupervisorHeartbeat((SlotReport("s0", 0, 0, exit_status=-9, detail="killed by signal 9"),))
    assert step(manager, SupervisorReported(100, report), 10) == []
    assert manager.slot_at(0).job_id == "a"
    [lost] = step(manager, Disconnected(0, "the peer closed the connection"), 20)
    assert "killed by signal 9" in lost.error.why


def test_a_connection_that_outlives_its_process_is_closed():
    manager = cluster(1, report_wait_ms=1_000)
    step(manager, RequestSlots("a", "a", 1))
    report = SupervisorHeartbeat((SlotReport("s0", 0, 0, exit_status=3, detail="exit code 3"),))
    step(manager, SupervisorReported(100, report), 10)
    assert step(manager, Tick(), 1_009) == []
    closed, lost = step(manager, Tick(), 1_010)
    assert closed == CloseConnection(0, "its process has ended") and "exit code 3" in lost.error.why
    assert manager.slots["s0"].state is SlotState.EXPECTED


def test_a_replacement_that_registers_first_does_not_hide_how_the_process_ended():
    manager = cluster(1)
    step(manager, RequestSlots("a", "a", 1))
    report = SupervisorHeartbeat((SlotReport("s0", 0, 0, exit_status=3, detail="exit code 3"),))
    step(manager, SupervisorReported(100, report), 10)
    _, lost = step(manager, SlotRegistered(5, register_slot("s0", pid=7)), 20)
    assert lost.error.why == "its process has ended: exit code 3"


def test_a_process_that_stands_still_is_told_once_and_again_after_it_has_moved():
    manager = cluster(1, heartbeat_timeout_ms=1_000)

    def report(age_ms, pid=0):
        message = SupervisorHeartbeat((SlotReport("s0", pid, age_ms),))
        return step(manager, SupervisorReported(100, message))

    assert report(5_000) == [], "it serves no job"
    step(manager, RequestSlots("a", "a", 1))
    assert report(1_000) == report(9_000, pid=99) == []
    assert report(1_001) == [SlotStandsStill("a", "s0", 0, 1_001)]
    assert report(2_001) == []
    assert manager.slots["s0"].progress_age_ms == 2_001
    assert report(3) == []
    assert report(1_500) == [SlotStandsStill("a", "s0", 0, 1_500)]


def lost_with(exit_status, detail, **options):
    manager = cluster(1)
    step(manager, RequestSlots("a", "a", 1))
    step(manager, Disconnected(0), 10)
    report = SlotReport("s0", 0, 0, exit_status, detail, **options)
    [lost] = step(manager, SupervisorReported(100, SupervisorHeartbeat((report,))), 20)
    return lost.error


def test_what_a_supervisor_advises_about_the_end_of_a_process_reaches_the_job():
    error = lost_with(0, "user code ended the process with exit code 0", do="look for os._exit")
    assert error.why == "its process has ended: user code ended the process with exit code 0"
    assert error.do == "look for os._exit"


def test_only_a_kill_from_outside_hints_at_memory():
    assert "out of memory" in lost_with(-9, "killed by signal 9").do
    assert "memory" not in lost_with(-11, "killed by signal 11").do
    assert "memory" not in lost_with(3, "exit code 3").do
    assert "memory" not in lost_with(-9, "killed by the supervisor: hangs", ended_by_supervisor=True).do


def test_a_lost_slot_and_a_lost_supervisor_are_named_by_host_executor_task_and_attempt():
    manager = cluster(1)
    step(manager, Disconnected(100))
    message = RegisterSupervisor("L", 0, 2, "worker-7", 1, ("s0",), executor_id="4")
    step(manager, SupervisorRegistered(200, message))
    step(manager, SlotRegistered(5, register_slot("s0", pid=77)))
    step(manager, RequestSlots("a", "a", 1))
    step(manager, Disconnected(5), 10)
    report = SupervisorHeartbeat((SlotReport("s0", 77, 0, 3, "exit code 3"),))
    [lost] = step(manager, SupervisorReported(200, report), 20)
    assert lost.error.where == "job a, slot process 77 on worker-7 (executor 4, task 0, attempt 2)"
    step(manager, SlotRegistered(6, register_slot("s0", pid=78)))
    step(manager, RequestSlots("b", "b", 1))
    *_, lost = step(manager, Disconnected(200, "the peer closed the connection"), 30)
    assert lost.error.why == (
        "its supervisor on worker-7 (executor 4, task 0, attempt 2) is gone: the peer closed the connection"
    )


def test_a_slot_that_waits_for_a_process_has_no_pid():
    manager = cluster(1)
    assert manager.slots["s0"].pid == 0
    step(manager, Disconnected(0))
    assert manager.slots["s0"].state is SlotState.EXPECTED and manager.slots["s0"].pid is None
    step(manager, SlotRegistered(5, register_slot("s0", pid=77)))
    step(manager, RequestSlots("a", "a", 1))
    step(manager, Disconnected(5))
    assert manager.slots["s0"].state is SlotState.MISSING and manager.slots["s0"].pid == 77
    step(manager, Tick(), 10_000)
    assert manager.slots["s0"].pid is None


def test_the_loss_of_a_slot_is_told_without_an_exit_status_after_a_while():
    manager = cluster(1, report_wait_ms=1_000)
    step(manager, RequestSlots("a", "a", 1))
    step(manager, Disconnected(0), 10)
    assert step(manager, Tick(), 1_009) == []
    [lost] = step(manager, Tick(), 1_010)
    assert isinstance(lost, SlotLost) and lost.error.why == "its connection closed"


def test_a_silent_supervisor_takes_its_slots_with_it():
    manager = cluster(2, heartbeat_timeout_ms=1_000)
    step(manager, RequestSlots("a", "a", 1))
    step(manager, SupervisorReported(101, SupervisorHeartbeat(())), 900)
    effects = step(manager, Tick(), 1_001)
    assert [type(effect) for effect in effects[:-1]] == [CloseConnection, CloseConnection, SlotLost]
    assert effects[-1] == AbandonSupervisors((0,)), "Spark may think that it runs"
    assert "no heartbeat for 1001 ms" in effects[2].error.why
    assert manager.slots["s0"].state is SlotState.LOST
    assert manager.slots["s1"].state is SlotState.FREE


def test_a_late_tick_is_counted_against_nobody():
    manager = cluster(1, heartbeat_timeout_ms=1_000)
    assert step(manager, Tick(late_ms=4_000), 4_500) == []
    assert step(manager, Tick(), 5_000) == []
    assert step(manager, Tick(), 5_001) != []


def test_only_one_registration_of_a_task_wins_while_it_lives():
    manager = cluster(1)
    refused, closed = step(manager, SupervisorRegistered(9, supervisor(0, "s0", attempt=1)))
    assert isinstance(refused.message, RegistrationRefused)
    assert isinstance(closed, CloseConnection) and closed.connection == 9
    step(manager, Disconnected(100))
    assert manager.slots["s0"].state is SlotState.LOST
    assert step(manager, SupervisorRegistered(9, supervisor(0, "s0", attempt=1))) == []
    assert manager.slots["s0"].state is SlotState.EXPECTED


def test_registrations_of_another_launch_or_version_are_refused():
    manager = cluster(1)
    for message in (
        register_slot("s0", lease="old"),
        register_slot("s0", version=99),
        register_slot("unknown"),
    ):
        refused, _ = step(manager, SlotRegistered(9, message))
        assert isinstance(refused.message, RegistrationRefused)
    refused, _ = step(manager, SupervisorRegistered(9, supervisor(5, "other")))
    assert isinstance(refused.message, RegistrationRefused)


def test_a_slot_that_gives_the_address_of_another_is_refused():
    manager = cluster(slots=2)
    lying = RegisterSlot("L", "s0", 1, address("s1"))
    refused = step(manager, SlotRegistered(7, lying))
    assert refused[0] == Send(7, RegistrationRefused("slot s0 gave the address of slot s1"))
    assert manager.slots["s0"].connection == 0, "the one before stays"


def test_when_a_launch_that_was_up_ends_jobs_lose_their_slots_and_requests_get_a_new_launch():
    manager = cluster(2)
    step(manager, RequestSlots("a", "a", 1))
    step(manager, RequestSlots("b", "b", 2))
    effects = step(manager, LaunchEnded("L", ConnectionLostError("an executor was lost")))
    assert [effect.job_id for effect in effects if isinstance(effect, SlotLost)] == ["a"]
    assert effects[-1] == LaunchSlots() and effects.count(LaunchSlots()) == 1
    assert all(slot.state is SlotState.LOST for slot in manager.slots.values())


def test_when_a_launch_ends_before_it_could_serve_requests_get_the_reason():
    manager = cluster(2)
    step(manager, RequestSlots("a", "a", 1))
    step(manager, LaunchEnded("L"))
    step(manager, RequestSlots("b", "b", 2))
    step(manager, Launched("M", ((0, ("t0", "t1")),)))
    error = ConnectionLostError("executors could not reach the driver")
    assert step(manager, LaunchEnded("M", error)) == [SlotsRefused("b", error)]


def test_after_the_end_of_a_launch_the_next_request_asks_for_a_new_one():
    manager = cluster(1)
    step(manager, LaunchEnded("L"))
    assert step(manager, RequestSlots("a", "a", 1)) == [LaunchSlots()]
    step(manager, Launched("M", ((0, ("t0",)),)))
    assert step(manager, SlotRegistered(5, register_slot("t0", lease="M"))) == [
        SlotsAllocated("a", (address("t0"),))
    ]


def test_messages_reach_only_the_process_that_holds_the_slot_for_the_job():
    manager = cluster(1)
    step(manager, RequestSlots("a", "a", 1))
    assert step(manager, SendToSlot("a", "s0", "hello")) == [Send(0, "hello")]
    assert step(manager, SendToSlot("b", "s0", "hello")) == []
    assert step(manager, KillSlots("a", ("s0",), "hangs")) == [Send(100, KillSlot("s0", 0, "hangs"))]
    pid = manager.slots["s0"].pid
    assert step(manager, InterruptSlots("a", ("s0",))) == [Send(100, InterruptSlot("s0", pid))]
    assert step(manager, InterruptSlots("b", ("s0",))) == []
    step(manager, Disconnected(0))
    assert step(manager, SendToSlot("a", "s0", "hello")) == []


def test_slot_processes_that_never_come_up_refuse_who_waits_with_what_they_died_of():
    manager = ResourceManager(capacity=1)
    step(manager, Launched("L", ((0, ("s0",)),)))
    step(manager, SupervisorRegistered(100, supervisor(0, "s0")))
    step(manager, RequestSlots("a", "a", 1))
    died = SupervisorHeartbeat((SlotReport("s0", 5, 0, exit_status=1, detail="exit code 1"),))
    assert step(manager, SupervisorReported(100, died)) == []
    assert step(manager, SupervisorReported(100, died)) == []
    [refused] = step(manager, SupervisorReported(100, died))
    assert isinstance(refused.error, ResourceError)
    assert refused.error.why == "3 processes in a row ended before they registered: exit code 1"


# ---- jobs that want more slots --------------------------------------------------------------------


def test_a_job_that_wants_more_keeps_its_slots_and_waits_behind_others():
    manager = cluster(3)
    step(manager, RequestSlots("a", "first", 2))
    step(manager, RequestSlots("b", "second", 2))
    assert [type(effect) for effect in step(manager, RequestSlots("a", "first", 1, growth=True))] == [Inform]
    assert [request.job_id for request in manager.requests] == ["b", "a"]
    effects = step(manager, ReleaseSlots("b", "job b is CANCELED"))
    allocated = [effect for effect in effects if isinstance(effect, SlotsAllocated)]
    assert allocated == [SlotsAllocated("a", (address("s2"),))]


def test_a_session_does_not_grow():
    manager = cluster(2)
    step(manager, RequestSlots("a", "first", 1))
    [refused] = step(manager, RequestSlots("a", "first", 2, growth=True))
    assert refused.error.fields == {"needed": 3, "available": 2}
    assert "needs 3 slots, the cluster has 2" in refused.error.why
    assert refused.error.do.startswith("stop the job with a savepoint")


def test_a_cluster_of_one_job_gets_as_many_supervisors_more_as_that_wants():
    manager = cluster(1, grows_to=3)
    step(manager, RequestSlots("a", "first", 1))
    [refused] = step(manager, RequestSlots("a", "first", 3, growth=True))
    assert refused.error.fields == {"needed": 4, "available": 3}
    assert LaunchMoreSlots(1) in step(manager, RequestSlots("a", "first", 1, growth=True))
    step(manager, SlotsAdded(((1, ("s1",)),)))
    step(manager, SupervisorRegistered(101, supervisor(1, "s1")))
    assert step(manager, SlotRegistered(1, register_slot("s1"))) == [SlotsAllocated("a", (address("s1"),))]
    # Given back, it is there for the next that wants more.
    step(manager, ReleaseSlots("a", "the job needs fewer slots", ("s1",)))
    assert manager.slots["s0"].state is SlotState.ALLOCATED and manager.slots["s1"].state is SlotState.RELEASED
    step(manager, Disconnected(1))
    step(manager, RequestSlots("a", "first", 1, growth=True))
    assert step(manager, SlotRegistered(2, register_slot("s1", pid=2))) == [SlotsAllocated("a", (address("s1"),))]


def test_a_job_that_no_longer_wants_more_takes_its_request_back():
    manager = cluster(2)
    step(manager, RequestSlots("a", "first", 1))
    step(manager, RequestSlots("b", "second", 1))
    step(manager, RequestSlots("a", "first", 1, growth=True))
    assert step(manager, ReleaseSlots("a", "the job is not rescaled", ())) == [] and not manager.requests
    assert manager.slots["s0"].state is SlotState.ALLOCATED


# ---- supervisors that Spark gives up one by one (launch mode independent) -------------------------


GIVEN_UP = SlotLostError("lost a Spark task that carries slots", why="Task failed 4 times")


def test_a_supervisor_that_had_registered_is_launched_again_and_the_others_go_on():
    manager = cluster(2)
    step(manager, RequestSlots("j", "job", 1))
    step(manager, Disconnected(101))
    assert manager.slots["s1"].state is SlotState.LOST
    assert step(manager, SupervisorEnded(1, GIVEN_UP)) == [LaunchSupervisors((1,))]
    step(manager, SupervisorRegistered(201, supervisor(1, "s1")))
    step(manager, SlotRegistered(11, register_slot("s1", pid=11)))
    assert [manager.slots[slot].state for slot in ("s0", "s1")] == [SlotState.ALLOCATED, SlotState.FREE]


def test_a_supervisor_that_ends_before_its_connection_breaks_costs_its_slots_and_the_connection():
    manager = cluster(2)
    step(manager, RequestSlots("j", "job", 2))
    effects = step(manager, SupervisorEnded(0, GIVEN_UP))
    assert [type(effect) for effect in effects] == [CloseConnection, CloseConnection, SlotLost, LaunchSupervisors]
    assert effects[2].slot_id == "s0" and GIVEN_UP.what in effects[2].error.why


def test_a_supervisor_that_never_came_up_fails_who_waits_and_is_launched_for_the_next_job():
    manager = ResourceManager(capacity=2)
    step(manager, Launched("L", ((0, ("s0",)), (1, ("s1",)))))
    step(manager, SupervisorRegistered(100, supervisor(0, "s0")))
    step(manager, SlotRegistered(0, register_slot("s0")))
    step(manager, RequestSlots("a", "first", 2))
    assert step(manager, SupervisorEnded(1, GIVEN_UP)) == [SlotsRefused("a", GIVEN_UP)]
    assert step(manager, RequestSlots("b", "second", 2))[0] == LaunchSupervisors((1,))
    step(manager, SupervisorRegistered(101, supervisor(1, "s1")))
    assert step(manager, SlotRegistered(1, register_slot("s1"))) == [
        SlotsAllocated("b", (address("s0"), address("s1")))
    ]


def test_a_supervisor_that_dies_again_before_it_has_registered_is_not_launched_for_ever():
    manager = cluster(1)
    step(manager, Disconnected(100))
    assert step(manager, SupervisorEnded(0, GIVEN_UP)) == [LaunchSupervisors((0,))]
    assert step(manager, SupervisorEnded(0, GIVEN_UP)) == []


def test_a_supervisor_that_dies_young_again_and_again_is_launched_later_each_time_and_then_given_up():
    manager = cluster(1)
    now_ms, delays_ms = 0, []
    while True:
        step(manager, Disconnected(100), now_ms)
        if not manager.requests:
            step(manager, RequestSlots("a", "first", 1, timeout_ms=1_000_000), now_ms)
        effects = step(manager, SupervisorEnded(0, GIVEN_UP), now_ms)
        if effects and isinstance(effects[0], SlotsRefused):
            break
        ended_ms = now_ms
        while LaunchSupervisors((0,)) not in effects:
            now_ms += 100
            effects = step(manager, Tick(), now_ms)
        delays_ms.append(now_ms - ended_ms)
        step(manager, SupervisorRegistered(100, supervisor(0, "s0")), now_ms)
    assert delays_ms == [0, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000, 10_000]
    assert "ended 11 times in a row" in effects[0].error.why and GIVEN_UP.why in effects[0].error.why
    assert DEATHS_MAX == 10
    again = step(manager, RequestSlots("b", "second", 1), now_ms)
    assert again == [LaunchSupervisors((0,))], "for the next job that asks"


def test_a_supervisor_that_has_lived_for_a_while_is_launched_again_at_once():
    manager = cluster(1)
    for life in range(1, 20):
        now_ms = life * YOUNG_MS
        step(manager, Disconnected(100), now_ms)
        assert step(manager, SupervisorEnded(0, GIVEN_UP), now_ms) == [LaunchSupervisors((0,))]
        step(manager, SupervisorRegistered(100, supervisor(0, "s0")), now_ms)


def test_a_launch_that_dies_young_while_a_job_waits_comes_again_later_each_time():
    manager = cluster(1)
    step(manager, RequestSlots("a", "first", 1))
    launched_ms = []
    for number in range(4):
        now_ms = number * 1_000
        step(manager, LaunchEnded(manager.lease, GIVEN_UP), now_ms)
        effects = step(manager, RequestSlots("a", "first", 1, replacement=True), now_ms)
        while LaunchSlots() not in effects:
            now_ms += 100
            effects = step(manager, Tick(), now_ms)
        launched_ms.append(now_ms - number * 1_000)
        lease = f"L{number}"
        step(manager, Launched(lease, ((0, (f"{lease}-s",)),)), now_ms)
        step(manager, SupervisorRegistered(200 + number, supervisor(0, f"{lease}-s", lease=lease)), now_ms)
        step(manager, SlotRegistered(300 + number, register_slot(f"{lease}-s", lease=lease)), now_ms)
    assert launched_ms == [0, 200, 400, 800]


def test_a_supervisor_whose_connection_is_gone_is_abandoned_unless_its_end_is_told():
    manager = cluster(2, heartbeat_timeout_ms=1_000)
    step(manager, Disconnected(100), 10)
    step(manager, Disconnected(101), 10)
    step(manager, SupervisorEnded(1, GIVEN_UP), 20)
    assert step(manager, Tick(), 1_009) == []
    assert step(manager, Tick(late_ms=100), 1_100) == [], "the JobManager itself was late"
    assert step(manager, Tick(), 1_110) == [AbandonSupervisors((0,))]
    assert step(manager, Tick(), 9_000) == [], "once"


def test_what_the_launch_waits_for_is_told_only_while_a_supervisor_is_missing():
    manager = cluster(1, request_timeout_ms=10)
    step(manager, RequestSlots("a", "first", 1))
    step(manager, RequestSlots("b", "second", 1))
    [refused] = step(manager, Tick("1 Spark task must start"), 20)
    assert "Spark task" not in refused.error.why
    step(manager, Disconnected(100), 30)
    step(manager, RequestSlots("c", "third", 1), 30)
    [refused] = step(manager, Tick("1 Spark task must start"), 50)
    assert "the launch waits: 1 Spark task must start" in refused.error.why
