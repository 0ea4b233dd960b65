"""What each path does.

Paths and JSON are those of Flink 2's ``rest_v1_dispatcher``, with and without ``/v1``; of these are here:

    GET    /overview                              slots, and jobs by state
    GET    /jobs  /jobs/overview                  all jobs
    GET    /jobs/:jobid  /jobs/:jobid/status
    GET    /jobs/:jobid/watermarks                what holds event time back; ?operator=NAME OR UID
    GET    /jobs/:jobid/vertices/:vertexid/watermarks    [{"id": "0.currentInputWatermark", "value": "..."}]
    PATCH  /jobs/:jobid?mode=cancel               202, 409: it is over
    POST   /jobs/:jobid/savepoints                {"target-directory", "cancel-job", "triggerId"} -> {"request-id"}
    POST   /jobs/:jobid/stop                      {"targetDirectory", "drain", "triggerId"} -> {"request-id"}
    GET    /jobs/:jobid/savepoints/:triggerid     of both; the operation is {"location"}
    POST   /jobs/:jobid/checkpoints               {"triggerId"} -> {"request-id"}
    GET    /jobs/:jobid/checkpoints/:triggerid    {"checkpointId"}
    PATCH  /jobs/:jobid/rescaling?parallelism=N   or {"vertices": {ID, UID OR NAME: N}} -> {"request-id"}
    GET    /jobs/:jobid/rescaling/:triggerid      {}
    GET    /jobs/:jobid/resource-requirements     {VERTEX ID: {"parallelism": {"lowerBound", "upperBound"}}}
    PUT    /jobs/:jobid/resource-requirements     the same: answered at once, and logged when it cannot be done

Flink has ``rescaling`` too, but switched off; its answer says when the job runs again and what went wrong, which
``resource-requirements`` does not.  ``vertices``, ``/jobs/:jobid/watermarks`` (``common.watermark_explanation``) and the
errors in parts (``messages.error_body``) are ours.
"""

from __future__ import annotations

import json
import logging
import re
import time
from typing import AbstractSet, Any, Callable, Mapping, Optional, Protocol, Union

from flinkish.common.job_client import JobHandle
from flinkish.errors import FlinkishError, InvalidJobError
from flinkish.rest import bodies
from flinkish.rest.access import check_host, check_token
from flinkish.rest.messages import HttpError, Request, Response, error_body
from flinkish.rest.operations import Operations

log = logging.getLogger(__name__)

SAVEPOINT, CHECKPOINT, RESCALING = "savepoint", "checkpoint", "rescaling"

_JOB = r"/jobs/(?P<job_id>[0-9a-fA-F]{32})"
_VERTEX = r"/(?P<vertex_id>[0-9a-fA-F]{32})"
_TRIGGER = r"/(?P<trigger_id>[0-9a-fA-F]{1,64})"
_ID = re.compile(r"[0-9a-fA-F]{1,64}")

Call = Callable[..., Response]


class Jobs(Protocol):
    """The jobs of a driver.  Any thread may call these; they may block for a moment."""

    def describe(self) -> list[dict[str, Any]]:
        """Of each cluster what ``Dispatcher.describe`` says."""

    def find(self, job_id: str) -> Optional[JobHandle]: ...


class Handlers:
    """Any thread may call ``handle``.

    Args:
        token: of what changes a job.
        host_names: beside localhost, by which requests may address this driver.
        version: of flinkish.
    """

    def __init__(
        self,
        jobs: Jobs,
        operations: Operations,
        token: str,
        host_names: AbstractSet[str] = frozenset(),
        version: str = "",
    ):
        self._jobs, self._operations = jobs, operations
        self._token, self._host_names, self._version = token, host_names, version
        #: (method, path) -> what to do; all but GET changes something.
        routes: list[tuple[str, str, Call]] = [
            ("GET", "/overview", self._overview),
            ("GET", "/jobs", self._job_ids),
            ("GET", "/jobs/overview", self._jobs_overview),
            ("GET", _JOB, self._job),
            ("GET", f"{_JOB}/status", self._status),
            ("GET", f"{_JOB}/watermarks", self._watermarks),
            ("GET", f"{_JOB}/vertices{_VERTEX}/watermarks", self._vertex_watermarks),
            ("PATCH", _JOB, self._terminate),
            ("POST", f"{_JOB}/savepoints", self._take_savepoint),
            ("POST", f"{_JOB}/stop", self._stop),
            ("GET", f"{_JOB}/savepoints{_TRIGGER}", self._savepoint),
            ("POST", f"{_JOB}/checkpoints", self._take_checkpoint),
            ("GET", f"{_JOB}/checkpoints{_TRIGGER}", self._checkpoint),
            ("PATCH", f"{_JOB}/rescaling", self._rescale),
            ("GET", f"{_JOB}/rescaling{_TRIGGER}", self._rescaling),
            ("GET", f"{_JOB}/resource-requirements", self._requirements),
            ("PUT", f"{_JOB}/resource-requirements", self._require),
        ]
        self._routes = [(method, re.compile(f"(/v1)?{path}/?"), call) for method, path, call in routes]

    def handle(self, request: Request) -> Response:
        """The answer; raises nothing."""
        try:
            check_host(request.headers, self._host_names)
            check_token(request.headers, self._token, needed=request.method != "GET")
            return self._route(request)
        except HttpError as error:
            return Response(error.status, error_body(error.text), refused=error.text if error.refused else "")
        except InvalidJobError as error:
            return Response(400, error_body(str(error), error))
        except FlinkishError as error:
            return Response(500, error_body(str(error), error))
        except Exception as error:  # a bug; whoever has asked is told, and the log says where
            log.error("a request failed method=%s path=%s", request.method, request.path[:200], exc_info=error)
            return Response(500, error_body(f"{type(error).__name__}: {error}"))

    def _route(self, request: Request) -> Response:
        known = False
        for method, path, call in self._routes:
            match = path.fullmatch(request.path)
            if match is None:
                continue
            known = True
            if method == request.method:
                ids = {name: value.lower() for name, value in match.groupdict().items()}
                return call(request, **ids)
        if known:
            raise HttpError(405, f"{request.method} is not possible here.")
        raise HttpError(404, f"Not found: {request.path[:200]}")

    # ---- what is there --------------------------------------------------------------------------

    def _described(self) -> list[dict[str, Any]]:
        return [job for cluster in self._jobs.describe() for job in cluster["jobs"]]

    def _describe(self, job_id: str) -> dict[str, Any]:
        for job in self._described():
            if job["jid"] == job_id:
                return job
        raise _no_job(job_id)

    def _find(self, job_id: str) -> JobHandle:
        job = self._jobs.find(job_id)
        if job is None:
            raise _no_job(job_id)
        return job

    def _overview(self, request: Request) -> Response:
        clusters = self._jobs.describe()
        return Response(
            200,
            bodies.overview(
                [job for cluster in clusters for job in cluster["jobs"]],
                sum(cluster["slots-total"] for cluster in clusters),
                sum(cluster["slots-available"] for cluster in clusters),
                sum(len(cluster["taskmanagers"]) for cluster in clusters),
                self._version,
            ),
        )

    def _job_ids(self, request: Request) -> Response:
        return Response(200, {"jobs": [{"id": job["jid"], "status": job["state"]} for job in self._described()]})

    def _jobs_overview(self, request: Request) -> Response:
        return Response(200, {"jobs": [bodies.job_overview(job, _now_ms()) for job in self._described()]})

    def _job(self, request: Request, job_id: str) -> Response:
        return Response(200, bodies.job_details(self._describe(job_id), _now_ms()))

    def _status(self, request: Request, job_id: str) -> Response:
        return Response(200, {"status": self._describe(job_id)["state"]})

    def _watermarks(self, request: Request, job_id: str) -> Response:
        return Response(200, dict(self._find(job_id).explain_watermarks(request.query.get("operator"))))

    def _vertex_watermarks(self, request: Request, job_id: str, vertex_id: str) -> Response:
        for vertex in self._find(job_id).explain_watermarks()["vertices"]:
            if vertex["id"] == vertex_id:
                return Response(200, bodies.vertex_watermarks(vertex))
        raise HttpError(404, f"Vertex {vertex_id} not found")

    def _requirements(self, request: Request, job_id: str) -> Response:
        return Response(200, bodies.resource_requirements(self._describe(job_id)))

    # ---- what changes it ------------------------------------------------------------------------

    def _terminate(self, request: Request, job_id: str) -> Response:
        mode = request.query.get("mode", "cancel")
        if mode != "cancel":
            raise HttpError(410, f'The mode "{mode}" does not exist; to stop a job use /jobs/{job_id}/stop.')
        job = self._find(job_id)
        if job.status().is_globally_terminal_state():
            raise HttpError(409, f"Job {job_id} is {job.status().name} already.")
        job.cancel()
        return Response(202)

    def _take_savepoint(self, request: Request, job_id: str) -> Response:
        body = _body(
            request, {"target-directory": str, "cancel-job": bool, "formatType": str, "triggerId": str}
        )
        _check_format(body)
        job, directory = self._find(job_id), body.get("target-directory")

        def take() -> dict[str, Any]:
            future = job.stop(False, directory) if body.get("cancel-job") else job.take_savepoint(directory)
            return {"location": future.result()}

        return self._trigger(SAVEPOINT, job_id, body, take)

    def _stop(self, request: Request, job_id: str) -> Response:
        body = _body(request, {"targetDirectory": str, "drain": bool, "formatType": str, "triggerId": str})
        _check_format(body)
        job = self._find(job_id)
        drain, directory = bool(body.get("drain")), body.get("targetDirectory")
        return self._trigger(SAVEPOINT, job_id, body, lambda: {"location": job.stop(drain, directory).result()})

    def _take_checkpoint(self, request: Request, job_id: str) -> Response:
        body = _body(request, {"checkpointType": str, "triggerId": str})
        if body.get("checkpointType", "CONFIGURED") != "CONFIGURED":
            raise HttpError(400, "checkpointType: only CONFIGURED is possible, a checkpoint as the job's settings say.")
        job = self._find(job_id)

        def take() -> dict[str, Any]:
            location = job.take_checkpoint().result()
            return {"checkpointId": int(location.rstrip("/").rpartition("-")[2])}

        return self._trigger(CHECKPOINT, job_id, body, take)

    def _rescale(self, request: Request, job_id: str) -> Response:
        body = _body(request, {"vertices": dict, "triggerId": str})
        parallelism = _parallelism(request.query.get("parallelism"), body.get("vertices"))
        job = self._find(job_id)
        return self._trigger(RESCALING, job_id, body, lambda: job.rescale(parallelism).result() or {})

    def _require(self, request: Request, job_id: str) -> Response:
        wanted = {
            name: _bound(name, requirement) for name, requirement in _body(request, None).items()
        }
        vertices = {vertex["id"] for vertex in self._describe(job_id)["vertices"]}
        if wanted.keys() != vertices:
            raise HttpError(400, "The requirements must be of the vertices of the job: " + ", ".join(sorted(vertices)))
        future = self._find(job_id).rescale(wanted)

        def tell(_: Any) -> None:
            if error := future.exception():
                log.warning("a job could not be rescaled job=%s error=%s", job_id, error)

        future.add_done_callback(tell)
        return Response(200)

    def _trigger(
        self, kind: str, job_id: str, body: Mapping[str, Any], call: Callable[[], dict[str, Any]]
    ) -> Response:
        trigger_id = body.get("triggerId")
        if trigger_id is not None and not _ID.fullmatch(trigger_id):
            raise HttpError(400, "triggerId: it must be a hexadecimal number.")
        trigger_id = None if trigger_id is None else trigger_id.lower()
        return Response(202, {"request-id": self._operations.trigger(kind, job_id, trigger_id, call)})

    def _savepoint(self, request: Request, job_id: str, trigger_id: str) -> Response:
        return Response(200, self._operations.status(SAVEPOINT, job_id, trigger_id))

    def _checkpoint(self, request: Request, job_id: str, trigger_id: str) -> Response:
        return Response(200, self._operations.status(CHECKPOINT, job_id, trigger_id))

    def _rescaling(self, request: Request, job_id: str, trigger_id: str) -> Response:
        return Response(200, self._operations.status(RESCALING, job_id, trigger_id))


def _no_job(job_id: str) -> HttpError:
    return HttpError(404, f"Job {job_id} not found")


def _body(request: Request, fields: Optional[Mapping[str, type]]) -> dict[str, Any]:
    """The request's JSON object; fields that are null are left out.  ``fields`` None: whatever there is.

    Raises:
        HttpError: it is none, or a field is unknown or of another type.
    """
    try:
        body = json.loads(request.body) if request.body.strip() else {}
    except (ValueError, RecursionError) as error:
        raise HttpError(400, f"The body is no JSON: {error}") from None
    if not isinstance(body, dict):
        raise HttpError(400, "The body is no JSON object.")
    body = {name: value for name, value in body.items() if value is not None}
    if fields is None:
        return body
    for name, value in body.items():
        if name not in fields:
            raise HttpError(400, f'There is no field "{name[:100]}" here; known are {", ".join(fields)}.')
        if not isinstance(value, fields[name]):
            raise HttpError(400, f'The field "{name}" is no {fields[name].__name__}.')
    return body


def _check_format(body: Mapping[str, Any]) -> None:
    if body.get("formatType", "CANONICAL") != "CANONICAL":
        raise HttpError(400, "formatType: savepoints are CANONICAL, so that each state backend can read them.")


def _parallelism(text: Optional[str], vertices: Optional[Mapping[str, Any]]) -> Union[int, dict[str, int]]:
    if (text is None) == (not vertices):
        raise HttpError(400, "Give the parallelism of the job (?parallelism=N), or of some vertices in the body.")
    if text is not None:
        return _number("parallelism", int(text) if re.fullmatch("[0-9]{1,9}", text) else text)
    assert vertices is not None
    return {name: _number(name, number) for name, number in vertices.items()}


def _bound(name: str, requirement: Any) -> int:
    parallelism = requirement.get("parallelism") if isinstance(requirement, dict) else None
    if not isinstance(parallelism, dict):
        raise HttpError(400, f'"{name[:100]}" has no {{"parallelism": {{"lowerBound", "upperBound"}}}}.')
    upper = _number(name, parallelism.get("upperBound"))
    if _number(name, parallelism.get("lowerBound", 1)) > upper:
        raise HttpError(400, f'The lower bound of "{name[:100]}" is above the upper one.')
    return upper


def _number(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 2**15:
        raise HttpError(400, f'The parallelism "{name[:100]}" must be a whole number from 1 to {2**15}.')
    return value


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

