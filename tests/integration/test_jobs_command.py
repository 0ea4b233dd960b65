"""The command line, from a process of its own, against jobs of scripts that run in others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from flinkish.cli import main
from flinkish.errors import JobCancelledError
from tests.integration.recovery_program import build, counted_without_gap
from tests.integration.running_jobs import all_tasks_run
from tests.integration.waiting import wait_until

CHECKOUT = Path(__file__).resolve().parents[2]
CLUSTER = {"slots": 2}
SETTINGS = {"parallelism.default": 1, "execution.checkpointing.interval": "100 ms"}
FOR_EVER = 1 << 40

SCRIPT = """
import sys
from pathlib import Path
from flinkish.datastream import StreamExecutionEnvironment
from flinkish.testing import MiniCluster
from tests.integration.recovery_program import build

settings = {settings!r}
if sys.argv[2] == "spark":
    env = StreamExecutionEnvironment.get_execution_environment(settings)
else:
    env = MiniCluster(slots=3).get_execution_environment(settings)
build(env, Path(sys.argv[1]), {records})
env.execute("counts")
print("the script goes on")
"""


def wait_until_it_counts(folder, more):
    before = sum(counted_without_gap(folder).values())
    wait_until(lambda: sum(counted_without_gap(folder).values()) >= before + more, "results", 120)


@pytest.fixture
def start(tmp_path):
    """Starts a command that runs the script; what is left at the end is killed."""
    started = []
    script = tmp_path / "job.py"
    script.write_text(textwrap.dedent(SCRIPT.format(settings=SETTINGS, records=FOR_EVER)))

    def run(command, kind):
        with open(tmp_path / "log", "w") as log:
            process = subprocess.Popen(
                [*command, script, tmp_path, kind],
                env={**os.environ, "PYTHONPATH": str(CHECKOUT), "PYSPARK_PYTHON": sys.executable},
                stdout=log, stderr=subprocess.STDOUT, cwd=tmp_path, start_new_session=True,
            )  # fmt: skip
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait(60)


@pytest.mark.parametrize(
    "kind, parallelisms",
    [
        ("mini-cluster", (3, 2)),
        pytest.param("spark", (2,), marks=pytest.mark.launch),
        pytest.param("spark", (3, 2), marks=[pytest.mark.launch, pytest.mark.soak]),
    ],
)
def test_a_script_that_runs_is_rescaled_saved_and_stopped_by_commands(tmp_path, run_python, start, kind, parallelisms):
    def flinkish(*arguments):
        done = run_python("-m", "flinkish.cli", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    master = ["--master", f"local[{max(parallelisms) + 1}]"] if kind == "spark" else []
    process = start([sys.executable, "-m", "flinkish.cli", "run", *master], kind)
    wait_until(lambda: (tmp_path / "out").exists() and counted_without_gap(tmp_path), "results", 120)
    (job,) = json.loads(flinkish("list", "--json"))["jobs"]
    assert (job["name"], job["state"], job["tasks"]["running"]) == ("counts", "RUNNING", 2)

    for parallelism in parallelisms:
        result = json.loads(flinkish("rescale", "counts", "-p", parallelism, "--json"))
        assert set(result["parallelism"].values()) == {parallelism}
        wait_until_it_counts(tmp_path, 20)
    said = flinkish("savepoint", job["jid"][:8], "savepoints")
    location = Path(said.removeprefix("Savepoint completed. Path: ").strip())
    assert location.parent == tmp_path / "savepoints" and (location / "_metadata").exists()
    assert "(RUNNING)" in flinkish("list", "-r") and process.poll() is None
    assert json.loads(flinkish("checkpoint", "counts", "--json"))["checkpointId"] > 1

    stopped = json.loads(flinkish("stop", "counts", "--drain", "--savepointPath", tmp_path / "stopped", "--json"))
    assert stopped["jid"] == job["jid"] and Path(stopped["location"], "_metadata").exists()
    assert process.wait(60) == 0, (tmp_path / "log").read_text()
    assert "the script goes on" in (tmp_path / "log").read_text()
    assert sum(counted_without_gap(tmp_path).values()) > 100
    assert flinkish("list", "-a") == "No running jobs.\n"


@pytest.fixture
def jobs(cluster, tmp_path):
    """Two of the same name."""
    clients = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        env = cluster.get_execution_environment(SETTINGS)
        build(env, folder, FOR_EVER)
        clients.append(env.execute_async("twins"))
    wait_until(lambda: all(map(all_tasks_run, clients)), "both run")
    yield clients
    for client in clients:
        client._handle.cancel()
        client._handle.wait_ended(30)


def test_a_job_is_named_by_as_much_as_tells_it_from_the_others(jobs, capsys):
    one, other = (client.job_id for client in jobs)
    assert main(["checkpoint", "twins"]) == 1
    what, where, why, do = capsys.readouterr().err.splitlines()
    assert what == 'could not find the job "twins"' and where.startswith("  where: drivers of this user, in ")
    assert why.startswith("  why: 2 jobs are meant: ") and one in why and other in why
    assert do == "  do: give the id of one of them; flinkish list --all shows all"
    assert main(["checkpoint", "nobody"]) == 1 and "it is none of" in capsys.readouterr().err
    assert main(["cancel", one[:12].upper()]) == 0 and capsys.readouterr().out == f"Cancelled job {one}.\n"
    with pytest.raises(JobCancelledError):
        jobs[0].wait(30_000)
    assert main(["checkpoint", "twins"]) == 0  # one of them runs
    assert other in capsys.readouterr().out
    assert main(["list", "-a"]) == 0 and "twins (CANCELED)" in capsys.readouterr().out
    assert main(["cancel", one]) == 1 and f"Job {one} is CANCELED already." in capsys.readouterr().err
    assert main(["savepoint", other]) == 1  # no folder is known
    assert "execution.checkpointing.savepoint-dir" in capsys.readouterr().err
    assert main(["rescale", other, "nobody=2"]) == 1 and 'could not find operator "nobody"' in capsys.readouterr().err


def test_a_driver_of_somebody_else_is_named_and_wants_its_token(cluster, jobs, tmp_path, monkeypatch, capsys):
    host, port = cluster.job_manager.rest.address
    token, job_id = cluster.job_manager.rest.token, jobs[0].job_id
    monkeypatch.setenv("FLINKISH_RUN_DIR", str(tmp_path / "another user's"))
    address = ["-m", f"{host}:{port}"]
    assert main(["list"]) == 0 and capsys.readouterr().out == "No running jobs.\n"
    assert main(["list", *address]) == 0 and job_id in capsys.readouterr().out
    assert main(["checkpoint", job_id]) == 1 and "why: no job runs there" in capsys.readouterr().err
    assert main(["checkpoint", job_id, *address]) == 1
    assert "do: ask as the user that runs the driver, or give its token" in capsys.readouterr().err
    monkeypatch.setenv("FLINKISH_REST_TOKEN", "wrong")
    assert main(["checkpoint", job_id, *address]) == 1
    assert "that is not the token of this driver" in capsys.readouterr().err
    monkeypatch.setenv("FLINKISH_REST_TOKEN", token)
    assert main(["checkpoint", job_id, *address]) == 0
    monkeypatch.delenv("FLINKISH_REST_TOKEN")
    (tmp_path / "token").write_text(f"{token}\n")
    assert main(["checkpoint", job_id, *address, "--token-file", str(tmp_path / "token")]) == 0
    assert main(["list", "-m", f"{host}:1"]) == 1
    what, why, do = capsys.readouterr().err.splitlines()
    assert what == f"could not reach the driver at {host}:1" and "ConnectionRefusedError" in why and do
