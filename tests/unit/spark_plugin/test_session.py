import logging

import pytest

from flinkish.common.notices import listen
from flinkish.errors import ConfigurationError
from spark_plugin import session
from spark_plugin.session import (
    choose_master,
    connect_url,
    is_local,
    is_on_this_machine,
    task_slots_of_master,
    wait_until_registered,
)


@pytest.mark.parametrize(
    "asked, found, cores, tasks, master",
    [
        (None, None, 8, 2, "local[8]"),
        (None, "local[*]", 2, 3, "local[4]"),
        (None, "local[*,3]", 2, 3, "local[4,3]"),
        (None, "local[2]", 8, 3, "local[2]"),
        (None, "local", 8, 1, "local"),
        (None, "spark://host:7077", 8, 3, "spark://host:7077"),
        ("local[2]", "local[*]", 8, 3, "local[2]"),
        ("local[*]", "local[2]", 1, 1, "local[2]"),
    ],
)
def test_a_local_master_without_a_number_gets_a_core_more_than_the_slots(asked, found, cores, tasks, master):
    assert choose_master(asked, found, cores, tasks) == master


@pytest.mark.parametrize(
    "master, remote, variable, url",
    [
        (None, None, None, None),
        ("local[2]", None, None, None),
        ("sc://a", None, None, "sc://a"),
        ("sc://a", "sc://a", "sc://b", "sc://a"),
        (None, "sc://a", "sc://b", "sc://a"),
        (None, None, "sc://b", "sc://b"),
    ],
)
def test_settings_name_a_connect_server_before_the_environment_does(master, remote, variable, url):
    configuration = {"flinkish.spark.master": master, "spark.remote": remote}
    assert connect_url(configuration, {"SPARK_REMOTE": variable} if variable else {}) == url


def test_a_process_that_is_in_connect_mode_already_has_a_server_of_no_name():
    assert connect_url({}, {"SPARK_CONNECT_MODE_ENABLED": "1"}) == ""


@pytest.mark.parametrize(
    "configuration, environ, where",
    [
        ({"spark.remote": "sc://b"}, {}, "spark.remote"),
        ({}, {"SPARK_REMOTE": "sc://b/;token=secret"}, "SPARK_REMOTE"),
    ],
)
def test_a_master_beside_a_connect_server_is_refused_without_its_token(configuration, environ, where):
    with pytest.raises(ConfigurationError) as refused:
        connect_url({"flinkish.spark.master": "local[2]", **configuration}, environ)
    assert refused.value.where.endswith(where)
    assert "local[2]" in refused.value.why and "sc://b" in refused.value.why and "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "master, task_cpus, slots",
    [
        ("local", 1, 1),
        ("local[3]", 1, 3),
        ("local[5]", 2, 2),
        ("local[4,2]", 1, 4),
        ("local[*]", 1, 8),
        ("local-cluster[2,1,1024]", 1, 2),
        ("local-cluster[3, 5, 1024]", 2, 6),
        ("spark://host:7077", 1, None),
    ],
)
def test_task_slots_follow_from_the_master_where_it_says_them(master, task_cpus, slots):
    assert task_slots_of_master(master, task_cpus, cores=8) == slots


def test_local_cluster_is_on_this_machine_but_not_local():
    assert [is_local(m) for m in ("local", "local[2]", "local-cluster[1,1,512]", "yarn")] == [True, True, False, False]
    assert is_on_this_machine("local-cluster[1,1,512]") and not is_on_this_machine("spark://host:1")


def test_who_waits_for_executors_is_told_once_for_how_many(monkeypatch, caplog):
    monkeypatch.setattr(session, "_WAIT_NOTICE_S", 0)
    monkeypatch.setattr(session, "_EXECUTORS_POLL_S", 0)
    heard = []
    for listener in (heard.append, None):
        listen(listener)
        counts = iter([0, 2, 2, 2, 4])
        wait_until_registered(lambda: next(counts), 4, 60_000, "master spark://h:7077")
    logged = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    text = "Waiting for executors for 4 tasks, have them for 0 (master spark://h:7077)"
    assert heard == logged == [text]


def test_the_wait_ends_when_no_further_executor_comes(monkeypatch):
    monkeypatch.setattr(session, "_EXECUTORS_POLL_S", 0)
    asked = []

    def next_executor_s():
        asked.append(counts.pop())
        return -1.0  # the last one came long ago

    counts = ["none comes"]
    wait_until_registered(lambda: 2, 4, 60_000, "here", next_executor_s)
    assert asked == ["none comes"]
    wait_until_registered(lambda: 0, 4, 0, "here")
    wait_until_registered(lambda: 4, 4, 60_000, "here")
