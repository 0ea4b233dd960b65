"""What a Spark Connect session is asked, without a server."""

import socket
from types import SimpleNamespace

import pytest

from flinkish.errors import NotEnoughSlotsError, UnsupportedSparkError
from spark_plugin.connect_application import ConnectApplication, server_address
from spark_plugin.launcher import BarrierLauncher


class Session:
    """The part of a Connect session that is asked."""

    session_id = "session-1"

    def __init__(self, endpoint="127.0.0.1:15002", splits=2, stopped=False, **settings):
        self.client = SimpleNamespace(_builder=SimpleNamespace(endpoint=endpoint))
        self.settings = {f"spark.{key.replace('_', '.')}": value for key, value in settings.items()}
        self.splits, self.is_stopped = splits, stopped
        self.conf = SimpleNamespace(get=self.settings.get)

    def sql(self, text):
        assert text.startswith("EXPLAIN ")
        plan = f"== Physical Plan ==\n*(1) Range (0, 1000000, step=1, splits={self.splits})\n"
        return SimpleNamespace(collect=lambda: [[plan]])


@pytest.mark.parametrize(
    "session, slots",
    [
        (Session(master="local[3]"), 3),
        (Session(master="local[5]", task_cpus="2"), 2),
        (Session(master="local-cluster[2,3,1024]"), 6),
        (Session(master="local[*]", splits=7), 7),
        (Session(master="spark://host:7077", splits=6, task_cpus="3"), 2),
        (Session(master="spark://host:7077", splits=6, default_parallelism="6"), None),
        (Session(master="yarn", splits=6, sql_leafNodeDefaultParallelism="6"), None),
    ],
)
def test_task_slots_come_from_the_master_or_from_the_partitions_of_a_range(session, slots):
    assert ConnectApplication(session, {}).task_slots() == slots


def test_more_slots_than_a_connect_session_has_are_refused_with_both_numbers():
    application = ConnectApplication(Session(master="local[2]"), {})
    with pytest.raises(NotEnoughSlotsError) as caught:
        BarrierLauncher(application, 5, {"taskmanager.numberOfTaskSlots": "2"})
    assert caught.value.why == "the job needs 5 slots, the cluster has 4"
    assert caught.value.where == "Spark Connect session session-1, master local[2]"


@pytest.mark.parametrize(
    "session, environ, what, why",
    [
        (Session(master="local[2]"), {"IS_SERVERLESS": "true"}, "serverless", "kept from connecting"),
        (Session(), {}, "serverless", "kept from connecting"),
        (Session(master="local[2]", stopped=True), {}, "could not start slots", "it has been stopped"),
    ],
)
def test_sessions_that_cannot_carry_slots_are_refused_in_four_lines(session, environ, what, why):
    with pytest.raises(UnsupportedSparkError) as caught:
        ConnectApplication(session, environ)
    lines = str(caught.value).splitlines()
    assert what in lines[0] and why in lines[2]
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["where", "why", "do"]


def test_executors_of_a_local_server_find_the_program_on_the_loopback():
    local = ConnectApplication(Session(master="local[2]"), {})
    assert (local.advertised_hosts(), local.bind_host()) == (["127.0.0.1"], "127.0.0.1")


def test_executors_of_a_cluster_find_the_program_beside_the_driver_or_by_its_way_to_the_server():
    beside = ConnectApplication(Session(master="spark://h:7077", driver_host="192.0.2.7"), {})
    assert beside.advertised_hosts() == ["192.0.2.7"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("198.51.100.9", 15002))
        own = probe.getsockname()[0]
    remote = ConnectApplication(
        Session("198.51.100.9:15002", master="local[2]", driver_host="198.51.100.9"), {}
    )
    assert remote.advertised_hosts() == [own] and not remote.is_on_this_machine()


def test_the_configured_addresses_go_first():
    application = ConnectApplication(Session(master="local[2]"), {})
    configuration = {"jobmanager.rpc.address": "driver.example.org", "jobmanager.bind-host": "0.0.0.0"}
    launcher = BarrierLauncher(application, 1, configuration)
    assert launcher.advertised_hosts() == ["driver.example.org"] and launcher.bind_host() == "0.0.0.0"


def test_a_server_that_is_gone_ends_the_application():
    with socket.create_server(("127.0.0.1", 0)) as server:
        application = ConnectApplication(Session(f"127.0.0.1:{server.getsockname()[1]}", master="local[2]"), {})
        assert application.is_alive()
    assert not application.is_alive()
    assert server_address(SimpleNamespace(client=SimpleNamespace())) is None
