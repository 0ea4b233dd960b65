"""A master that cannot work is refused before a JVM starts."""

from __future__ import annotations

import socket
import time

import pytest

from flinkish.errors import ConnectionLostError, UnsupportedSparkError
from spark_plugin import master_check
from spark_plugin.master_check import check_master_works, master_addresses


def test_yarn_needs_its_configuration():
    with pytest.raises(UnsupportedSparkError) as refused:
        check_master_works("yarn", {})
    error = refused.value
    assert error.what == "could not start Spark on YARN" and error.where == "master yarn"
    assert "HADOOP_CONF_DIR" in error.why and "HADOOP_CONF_DIR" in error.do
    check_master_works("yarn", {"YARN_CONF_DIR": "/etc/hadoop"})


@pytest.mark.parametrize(
    "form, advice",
    [("spark://{}", "start the master"), ("k8s://https://{}", "kubectl"), ("k8s://{}", "kubectl"),
     ("sc://{}/;token=secret", "start the server")],
)  # fmt: skip
def test_a_master_that_nobody_listens_at_is_refused_with_its_address(form, advice, monkeypatch):
    monkeypatch.setattr(master_check, "START_TIMEOUT_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        check_master_works(form.format(address), {})
    with pytest.raises(ConnectionLostError) as refused:
        check_master_works(form.format(address), {})
    error = refused.value
    assert error.where == f"master {form.format(address).removesuffix(';token=secret')}" and advice in error.do
    assert error.why == f"tried {address} (Connection refused)"


def test_one_master_of_several_is_enough_and_silence_ends(monkeypatch):
    monkeypatch.setattr(master_check, "ANSWER_TIMEOUT_S", 0.2)
    monkeypatch.setattr(master_check, "START_TIMEOUT_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        check_master_works(f"spark://127.0.0.1:1,127.0.0.1:{server.getsockname()[1]}", {})
        waiting = []
        while not waiting or waiting[-1].connect_ex(full.getsockname()) == 0:  # until its queue is full
            waiting.append(socket.socket())
            waiting[-1].settimeout(0.2)
        began_s = time.monotonic()
        with pytest.raises(ConnectionLostError, match="nobody answers"):
            check_master_works(f"spark://127.0.0.1:{full.getsockname()[1]}", {})
        assert time.monotonic() - began_s < 3
        for sock in waiting:
            sock.close()


def test_a_master_that_is_just_starting_is_waited_for(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as found:
        address = found.getsockname()
    servers = []

    def start_late(seconds):  # instead of the wait between two tries
        if not servers:
            servers.append(socket.create_server(address))

    monkeypatch.setattr(master_check.time, "sleep", start_late)
    check_master_works(f"spark://127.0.0.1:{address[1]}", {})
    assert len(servers) == 1, "the first try was refused"
    servers[0].close()


def test_where_a_proxy_stands_between_or_the_master_says_no_address_nothing_is_tried():
    assert master_addresses("k8s://https://127.0.0.1:1", {"https_proxy": "http://proxy"}) == []
    assert master_addresses("sc://connect.cluster", {"http_proxy": "http://proxy"}) == []
    beside_it = {"http_proxy": "http://proxy", "no_proxy": ".cluster,127.0.0.1"}
    assert master_addresses("sc://connect.cluster", beside_it) == [("connect.cluster", 15002)]
    for master in ("", "local[2]", "local-cluster[2,1,1024]", "yarn", "spark://without-port"):
        assert master_addresses(master, {}) == []
