"""Requests and their answers, without a network: jobs are what a JobManager says of them."""

import json

import pytest

from flinkish.common.completable_future import CompletableFuture
from flinkish.common.job_status import JobStatus
from flinkish.errors import InvalidJobError, NotEnoughSlotsError
from flinkish.rest.handlers import Handlers
from flinkish.rest.messages import Request
from flinkish.rest.operations import Operations

ID, OTHER = "ab" * 16, "cd" * 16
TOKEN = "the token of the driver"
RIGHT = {"host": "127.0.0.1:8081", "authorization": f"Bearer {TOKEN}"}


def description(job_id=ID, state="RUNNING"):
    return {
        "jid": job_id, "name": "counts", "state": state, "timestamps": {"CREATED": 1_000, state: 1_500},
        "tasks": [
            {"vertex": "a", "state": "RUNNING"}, {"vertex": "a", "state": "FINISHED"},
            {"vertex": "b", "state": "RUNNING"},
        ],
        "vertices": [
            {"id": "a", "name": "Source", "parallelism": 2, "max-parallelism": 128, "slot-sharing-group": "default",
             "uids": ["numbers"], "inputs": []},
            {"id": "b", "name": "Sink", "parallelism": 1, "max-parallelism": 64, "slot-sharing-group": "default",
             "uids": [], "inputs": [("a", "HASH")]},
        ],
    }  # fmt: skip


class Job:
    """Keeps what was asked of it; each request is answered by ``answers``."""

    def __init__(self, state=JobStatus.RUNNING):
        self.state, self.asked, self.answers = state, [], []

    def status(self):
        return self.state

    def cancel(self):
        self.asked.append("cancel")

    def take_savepoint(self, directory=None):
        return self._answer(("savepoint", directory))

    def take_checkpoint(self):
        return self._answer("checkpoint")

    def stop(self, drain, directory=None):
        return self._answer(("stop", drain, directory))

    def rescale(self, parallelism):
        return self._answer(("rescale", parallelism))

    def explain_watermarks(self, operator=None):
        if operator == "unknown":
            raise InvalidJobError("could not find the operator")
        subtasks = [{"subtask": 0, "input-watermark": -(2**63)}, {"subtask": 1, "input-watermark": 499}]
        return {"operator": operator, "watermark": 499, "vertices": [{"id": OTHER, "subtasks": subtasks}]}

    def _answer(self, question):
        self.asked.append(question)
        answer = self.answers.pop(0)
        future = CompletableFuture()
        future.set_exception(answer) if isinstance(answer, Exception) else future.set_result(answer)
        return future


class Driver:
    def __init__(self, host_names=frozenset()):
        self.job = Job()
        self.handlers = Handlers(self, Operations(), TOKEN, host_names, "0.1.0")

    def describe(self):
        supervisors = [{"task": 0}, {"task": 1}]
        ended = description(OTHER, "FAILED")
        return [{"slots-total": 4, "slots-available": 1, "taskmanagers": supervisors, "jobs": [description(), ended]}]

    def find(self, job_id):
        return self.job if job_id == ID else None

    def ask(self, method, path, body=None, headers=RIGHT, **query):
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        return self.handlers.handle(Request(method, path, headers, query, data))

    def result(self, method, path, results, body=None, **query):
        """Of an operation that is triggered there."""
        triggered = self.ask(method, f"/v1/jobs/{ID}/{path}", body, **query)
        assert triggered.status == 202, triggered.body
        while True:
            answer = self.ask("GET", f"/v1/jobs/{ID}/{results}/{triggered.body['request-id']}")
            assert answer.status == 200
            if answer.body["status"]["id"] == "COMPLETED":
                return answer.body["operation"]


def test_jobs_are_shown_as_flink_shows_them():
    driver = Driver()
    first, ended = driver.ask("GET", "/v1/jobs/overview").body["jobs"]
    assert (first["jid"], first["name"], first["state"]) == (ID, "counts", "RUNNING")
    assert (first["start-time"], first["end-time"], first["last-modification"]) == (1_000, -1, 1_500)
    assert (ended["end-time"], ended["duration"]) == (1_500, 500)
    assert first["tasks"]["total"] == 3 and first["tasks"]["running"] == 2 and first["tasks"]["finished"] == 1
    assert driver.ask("GET", "/jobs").body == {
        "jobs": [{"id": ID, "status": "RUNNING"}, {"id": OTHER, "status": "FAILED"}]
    }
    details = driver.ask("GET", f"/jobs/{ID.upper()}").body
    assert [(one["id"], one["parallelism"], one["status"]) for one in details["vertices"]] == [
        ("a", 2, "RUNNING"), ("b", 1, "RUNNING"),
    ]  # fmt: skip
    assert details["maxParallelism"] == 128 and details["timestamps"]["RUNNING"] == 1_500
    assert details["plan"]["nodes"][1]["inputs"][0]["id"] == "a"
    assert driver.ask("GET", f"/jobs/{ID}/status").body == {"status": "RUNNING"}
    overview = driver.ask("GET", "/overview").body
    assert (overview["taskmanagers"], overview["slots-total"], overview["slots-available"]) == (2, 4, 1)
    assert (overview["jobs-running"], overview["jobs-failed"], overview["flink-version"]) == (1, 1, "0.1.0")
    json.dumps([details, overview])


def test_who_changes_a_job_needs_the_token_and_a_wrong_one_is_never_right():
    driver = Driver()
    host = {"host": "localhost:1"}
    for method, path in (
        ("PATCH", ""), ("POST", "/savepoints"), ("POST", "/stop"), ("POST", "/checkpoints"), ("PATCH", "/rescaling"),
        ("PUT", "/resource-requirements"), ("DELETE", ""),
    ):  # fmt: skip
        for headers in (host, {**host, "authorization": "Bearer x"}, {**host, "authorization": f"Basic {TOKEN}"}):
            answer = driver.ask(method, f"/jobs/{ID}{path}", {}, headers)
            assert answer.status == 401 and answer.refused and TOKEN not in str(answer.body)
    assert driver.ask("GET", "/jobs", headers=host).status == 200
    assert driver.ask("GET", "/jobs", headers={**host, "authorization": "Bearer x"}).status == 401
    assert driver.job.asked == []


@pytest.mark.parametrize("host", ["127.0.0.1", "10.0.0.7:80", "[::1]:8081", "localhost", "LocalHost:1", "jobs.example:80"])
def test_a_request_to_a_number_or_a_known_name_is_answered(host):
    assert Driver({"jobs.example"}).ask("GET", "/jobs", headers={"host": host}).status == 200


@pytest.mark.parametrize("host", [None, "", "evil.example", "localhost.evil.example:80", "127.0.0.1.evil.example"])
def test_a_request_to_another_name_is_refused_as_a_page_that_leads_its_name_here_makes_it(host):
    answer = Driver({"jobs.example"}).ask("GET", "/jobs", headers={} if host is None else {"host": host})
    assert answer.status == 403 and answer.refused


def test_savepoints_checkpoints_and_stops_are_operations_that_are_asked_for():
    driver = Driver()
    driver.job.answers = ["/s/savepoint-1", "/s/savepoint-2", "/c/job/chk-41", "/s/savepoint-3"]
    flinks = {"target-directory": "/s", "cancel-job": False, "formatType": "CANONICAL", "triggerId": None}
    assert driver.result("POST", "savepoints", "savepoints", flinks) == {"location": "/s/savepoint-1"}
    stop = {"targetDirectory": None, "drain": True, "triggerId": "AB12"}
    assert driver.result("POST", "stop", "savepoints", stop) == {"location": "/s/savepoint-2"}
    assert driver.result("POST", "checkpoints", "checkpoints", {"checkpointType": "CONFIGURED"}) == {"checkpointId": 41}
    assert driver.result("POST", "savepoints", "savepoints", {"cancel-job": True}) == {"location": "/s/savepoint-3"}
    asked = [("savepoint", "/s"), ("stop", True, None), "checkpoint", ("stop", False, None)]
    assert driver.job.asked == asked
    # Again with the same trigger: it has happened already.
    assert driver.ask("POST", f"/jobs/{ID}/stop", stop).body == {"request-id": "ab12"}
    assert driver.job.asked == asked
    assert driver.ask("GET", f"/jobs/{ID}/checkpoints/ab12").status == 404, "of another kind"
    assert driver.ask("GET", f"/jobs/{OTHER}/savepoints/ab12").status == 404, "of another job"


def test_a_job_is_rescaled_as_a_whole_by_operators_or_by_requirements():
    driver = Driver()
    driver.job.answers = [None, None, None]
    assert driver.result("PATCH", "rescaling", "rescaling", parallelism="3") == {}
    assert driver.result("PATCH", "rescaling", "rescaling", {"vertices": {"numbers": 2}}) == {}
    requirements = driver.ask("GET", f"/jobs/{ID}/resource-requirements").body
    assert requirements["a"] == {"parallelism": {"lowerBound": 1, "upperBound": 2}}
    requirements["a"]["parallelism"]["upperBound"] = 4
    assert driver.ask("PUT", f"/jobs/{ID}/resource-requirements", requirements).status == 200
    assert driver.job.asked == [("rescale", 3), ("rescale", {"numbers": 2}), ("rescale", {"a": 4, "b": 1})]
    del requirements["b"]
    assert driver.ask("PUT", f"/jobs/{ID}/resource-requirements", requirements).status == 400


def test_what_goes_wrong_is_told_in_flinks_form_and_in_parts():
    driver = Driver()
    too_few = NotEnoughSlotsError("could not get slots", why="it needs 9", do="add some")
    driver.job.answers = [too_few, ValueError("a bug")]
    failure = driver.result("PATCH", "rescaling", "rescaling", parallelism="9")["failure-cause"]
    assert failure["class"] == "NotEnoughSlotsError" and "why: it needs 9" in failure["stack-trace"]
    assert failure["error"] == {
        "type": "NotEnoughSlotsError", "what": "could not get slots", "where": "", "why": "it needs 9", "do": "add some",
    }  # fmt: skip
    failure = driver.result("PATCH", "rescaling", "rescaling", parallelism="9")["failure-cause"]
    assert failure["class"] == "ValueError" and "error" not in failure
    driver.job.cancel = lambda: (_ for _ in ()).throw(InvalidJobError("no", why="of another process"))
    answer = driver.ask("PATCH", f"/jobs/{ID}", mode="cancel")
    assert answer.status == 400 and answer.body["error"]["why"] == "of another process"


def test_a_job_is_cancelled_once():
    driver = Driver()
    assert driver.ask("PATCH", f"/v1/jobs/{ID}", {}, mode="cancel").status == 202
    driver.job.state = JobStatus.CANCELED
    answer = driver.ask("PATCH", f"/v1/jobs/{ID}", {}, mode="cancel")
    assert (answer.status, answer.body) == (409, {"errors": [f"Job {ID} is CANCELED already."]})
    assert driver.ask("PATCH", f"/v1/jobs/{ID}", {}, mode="stop").status == 410
    assert driver.ask("PATCH", f"/v1/jobs/{OTHER}", {}, mode="cancel").status == 404
    assert driver.job.asked == ["cancel"]


@pytest.mark.parametrize(
    "method, path, body, status",
    [
        ("GET", "/nothing", None, 404),
        ("GET", "/v2/jobs", None, 404),
        ("GET", "/jobs/../jobs", None, 404),
        ("GET", f"/jobs/{ID}0", None, 404),
        ("GET", f"/jobs/{'ef' * 16}", None, 404),
        ("DELETE", f"/jobs/{ID}", None, 405),
        ("POST", f"/jobs/{ID}/savepoints", b"{", 400),
        ("POST", f"/jobs/{ID}/savepoints", b"[" * 60_000, 400),
        ("POST", f"/jobs/{ID}/savepoints", b"\xff", 400),
        ("POST", f"/jobs/{ID}/savepoints", [], 400),
        ("POST", f"/jobs/{ID}/savepoints", {"target-directory": 1}, 400),
        ("POST", f"/jobs/{ID}/savepoints", {"targetDirectory": "/s"}, 400),
        ("POST", f"/jobs/{ID}/savepoints", {"formatType": "NATIVE"}, 400),
        ("POST", f"/jobs/{ID}/savepoints", {"triggerId": "../x"}, 400),
        ("POST", f"/jobs/{ID}/checkpoints", {"checkpointType": "FULL"}, 400),
        ("PATCH", f"/jobs/{ID}/rescaling", {}, 400),
        ("PATCH", f"/jobs/{ID}/rescaling", {"vertices": {"a": 0}}, 400),
        ("PATCH", f"/jobs/{ID}/rescaling", {"vertices": {"a": True}}, 400),
        ("PATCH", f"/jobs/{ID}/rescaling", {"vertices": {"a": 10**12}}, 400),
        ("PUT", f"/jobs/{ID}/resource-requirements", {"a": {"parallelism": {"lowerBound": 3, "upperBound": 2}}}, 400),
        ("PUT", f"/jobs/{ID}/resource-requirements", {"a": 1}, 400),
    ],
)
def test_what_is_no_request_changes_nothing(method, path, body, status):
    driver = Driver()
    answer = driver.ask(method, path, body)
    assert answer.status == status and answer.body["errors"] and driver.job.asked == []


def test_too_many_operations_are_not_begun():
    driver = Driver()
    waits = CompletableFuture()
    driver.job.take_savepoint = lambda directory=None: waits
    asked = [driver.ask("POST", f"/jobs/{ID}/savepoints", {}) for _ in range(33)]
    assert [answer.status for answer in asked] == [202] * 32 + [503]
    first = asked[0].body["request-id"]
    assert driver.ask("GET", f"/jobs/{ID}/savepoints/{first}").body["status"] == {"id": "IN_PROGRESS"}
    waits.set_result("/s/savepoint-1")


def test_watermarks_of_a_vertex_are_shown_as_flink_shows_them_and_what_holds_them_back_by_us():
    driver = Driver()
    assert driver.ask("GET", f"/v1/jobs/{ID}/vertices/{OTHER}/watermarks").body == [
        {"id": "0.currentInputWatermark", "value": "-9223372036854775808"},
        {"id": "1.currentInputWatermark", "value": "499"},
    ]
    assert driver.ask("GET", f"/jobs/{ID}/vertices/{ID}/watermarks").status == 404
    answer = driver.ask("GET", f"/jobs/{ID}/watermarks", operator="counts")
    assert (answer.status, answer.body["operator"], answer.body["watermark"]) == (200, "counts", 499)
    assert driver.ask("GET", f"/jobs/{ID}/watermarks", operator="unknown").status == 400
    assert driver.ask("GET", f"/jobs/{OTHER}/watermarks").status == 404
