"""The REST endpoint of a process: who shares it, how long it is there, and what is refused."""

import os
import socket
import threading

import pytest

from flinkish.errors import ConfigurationError, InvalidJobError, ResourceError
from flinkish.rest.client import RestClient
from flinkish.rest.registration import DriverAddress, find_drivers
from flinkish.shell import rest_endpoint
from flinkish.shell.rest_endpoint import join


class Manager:
    """As far as the endpoint knows a JobManager."""

    def __init__(self, name):
        self.name = name

    def describe(self):
        job = {"jid": self.name * 32, "name": self.name, "state": "RUNNING", "timestamps": {"RUNNING": 1}, "tasks": []}
        return {"slots-total": 1, "slots-available": 1, "taskmanagers": [], "jobs": [{**job, "vertices": []}]}

    def jobs(self):
        return []


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FLINKISH_RUN_DIR", str(tmp_path / "run"))


def names(client):
    return sorted(job["name"] for job in client.jobs())


def can_connect(address):
    try:
        socket.create_connection(address, 5).close()
    except ConnectionRefusedError:
        return False
    return True


def test_job_managers_of_a_process_share_an_endpoint_that_is_there_until_the_last_leaves():
    first, second = Manager("a"), Manager("b")
    endpoint = join(first, {})
    assert join(second, {}) is endpoint and endpoint.address[0] == "127.0.0.1"
    (driver,) = find_drivers()
    assert (driver.port, driver.token, driver.pid) == (endpoint.address[1], endpoint.token, os.getpid())
    assert len(driver.token) >= 32 and driver.token not in repr(endpoint)
    client = RestClient(driver)
    assert names(client) == ["a", "b"]
    endpoint.leave(first)
    assert names(client) == ["b"]
    with pytest.raises(InvalidJobError, match=f"Job {'b' * 32} not found"):
        client.cancel("b" * 32)
    endpoint.leave(second)
    assert not can_connect(endpoint.address) and find_drivers() == []
    again = join(first, {})
    assert again is not endpoint
    again.leave(first)


def test_settings_choose_the_port_or_none_and_a_port_that_is_taken_is_refused():
    manager = Manager("a")
    assert join(manager, {"rest.port": "-1"}) is None
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with pytest.raises(ResourceError, match="could not open the port for REST") as refused:
            join(manager, {"rest.port": port})
        assert port in refused.value.where and "rest.port" in refused.value.do
    endpoint = join(manager, {"web.port": port})  # Flink 1.x
    assert endpoint.address == ("127.0.0.1", int(port))
    endpoint.leave(manager)
    for wrong in ({"rest.port": "70000"}, {"rest.bind-address": "nowhere.invalid"}):
        with pytest.raises(ResourceError):
            join(manager, wrong)


def test_a_token_may_be_given_and_must_be_one(tmp_path):
    path, manager = tmp_path / "token", Manager("a")
    for text in (None, "", "short", "\xe9" * 20):
        if text is not None:
            path.write_text(text)
        with pytest.raises(ConfigurationError, match="could not read the token for REST") as refused:
            join(manager, {"flinkish.rest.token-file": str(path)})
        assert text in (None, "") or text not in str(refused.value)
    path.write_text("a long and random text\nand more\n")
    endpoint = join(manager, {"flinkish.rest.token-file": str(path)})
    assert endpoint.token == "a long and random text"
    endpoint.leave(manager)


def test_a_name_that_the_settings_know_is_answered():
    manager = Manager("a")
    endpoint = join(manager, {"rest.address": "Jobs.example"})
    for name, expected in (("jobs.example", b"200"), ("evil.example", b"403")):
        with socket.create_connection(endpoint.address, 10) as sock:
            sock.sendall(f"GET /jobs HTTP/1.1\r\nHost: {name}\r\n\r\n".encode())
            assert sock.recv(65536).split(b" ")[1] == expected
    endpoint.leave(manager)


def test_a_folder_that_cannot_be_used_costs_the_driver_only_that_it_is_found(tmp_path, caplog):
    (tmp_path / "run").mkdir(0o755)
    manager = Manager("a")
    endpoint = join(manager, {})
    assert "is not found by the command line" in caplog.text
    assert names(RestClient(DriverAddress(*endpoint.address, ""))) == ["a"]
    endpoint.leave(manager)


def test_the_last_one_leaves_when_results_have_been_read():
    manager = Manager("a")
    endpoint = join(manager, {})
    client = RestClient(DriverAddress(*endpoint.address, endpoint.token))
    gate = threading.Event()
    trigger = endpoint._operations.trigger("savepoint", "a" * 32, None, lambda: gate.wait(30) and {"location": "here"})
    leaving = threading.Thread(target=endpoint.leave, args=(manager,))
    leaving.start()
    gate.set()
    path = f"/jobs/{'a' * 32}/savepoints/{trigger}"
    while (answer := client.request("GET", path))["status"]["id"] != "COMPLETED":
        pass
    assert answer["operation"] == {"location": "here"}
    leaving.join(rest_endpoint._TELL_RESULTS_S / 2)
    assert not leaving.is_alive() and not can_connect(endpoint.address)


def test_a_forked_process_keeps_neither_the_port_nor_the_file():
    manager = Manager("a")
    endpoint = join(manager, {})
    hold, release = os.pipe()
    let_go, told = os.pipe()
    child = os.fork()
    if not child:
        os.close(release)
        rest_endpoint.leave_to_parent()
        os.write(told, b"x")
        os.read(hold, 1)
        os._exit(0)
    try:
        os.close(hold)
        os.read(let_go, 1)
        assert names(RestClient(find_drivers()[0])) == ["a"]
        endpoint.leave(manager)
        assert not can_connect(endpoint.address)
    finally:
        os.close(release)
        os.waitpid(child, 0)
        os.close(let_go)
        os.close(told)
