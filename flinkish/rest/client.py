"""Asks a driver over REST, as Flink's ``RestClusterClient`` does."""

from __future__ import annotations

import http.client
import json
import time
from typing import Any, Mapping, Optional
from urllib.parse import urlencode

from flinkish import errors
from flinkish.errors import AuthenticationError, ConnectionLostError, ExternalError, FlinkishError, InvalidJobError
from flinkish.rest.registration import DriverAddress

TIMEOUT_S = 40.0  # more than a driver takes to say that it is busy
_POLL_S = 0.1


class RestClient:
    """Its methods raise, besides what is said there:

    ConnectionLostError: there is no driver, or it does not answer.
    AuthenticationError: the token is wrong or missing.
    InvalidJobError: there is no such job, or what is asked for cannot be.
    """

    def __init__(self, driver: DriverAddress):
        self.driver = driver

    def jobs(self) -> list[dict[str, Any]]:
        """Entries of ``/jobs/overview``."""
        return self.request("GET", "/jobs/overview")["jobs"]

    def job(self, job_id: str) -> dict[str, Any]:
        return self.request("GET", f"/jobs/{job_id}")

    def cancel(self, job_id: str) -> None:
        """Returns at once."""
        self.request("PATCH", f"/jobs/{job_id}", {"mode": "cancel"})

    def take_savepoint(self, job_id: str, directory: Optional[str]) -> str:
        """Its location.  Raises FlinkishError: what it has failed with."""
        return self._operation("POST", job_id, "savepoints", "savepoints", {"target-directory": directory})["location"]

    def stop(self, job_id: str, drain: bool, directory: Optional[str]) -> str:
        """The location of the savepoint, when the job is FINISHED.  Raises FlinkishError: what it has failed with."""
        body = {"targetDirectory": directory, "drain": drain}
        return self._operation("POST", job_id, "stop", "savepoints", body)["location"]

    def take_checkpoint(self, job_id: str) -> int:
        """Its number.  Raises FlinkishError: what it has failed with."""
        body = {"checkpointType": "CONFIGURED"}
        return self._operation("POST", job_id, "checkpoints", "checkpoints", body)["checkpointId"]

    def rescale(
        self, job_id: str, parallelism: Optional[int] = None, vertices: Optional[Mapping[str, int]] = None
    ) -> None:
        """Returns when all tasks run again.  Raises FlinkishError: why they do not with that parallelism."""
        query = {} if parallelism is None else {"parallelism": str(parallelism)}
        self._operation("PATCH", job_id, "rescaling", "rescaling", {"vertices": vertices}, query)

    def _operation(
        self, method: str, job_id: str, path: str, results: str, body: Mapping[str, Any], query: Mapping[str, str] = {}
    ) -> dict[str, Any]:
        """Trigger it, and wait until it is over."""
        request_id = self.request(method, f"/jobs/{job_id}/{path}", query, body)["request-id"]
        while True:
            answer = self.request("GET", f"/jobs/{job_id}/{results}/{request_id}")
            if answer["status"]["id"] == "COMPLETED":
                break
            time.sleep(_POLL_S)
        failure = answer["operation"].get("failure-cause")
        if failure is not None:
            raise _error_of(failure.get("error")) or ExternalError(failure["stack-trace"], where=f"job {job_id}")
        return answer["operation"]

    def request(
        self, method: str, path: str, query: Mapping[str, str] = {}, body: Optional[Mapping[str, Any]] = None
    ) -> Any:
        """The body of the answer."""
        headers = {"Host": str(self.driver), "Content-Type": "application/json"}
        if self.driver.token:
            headers["Authorization"] = f"Bearer {self.driver.token}"
        connection = http.client.HTTPConnection(self.driver.host, self.driver.port, timeout=TIMEOUT_S)
        target = f"/v1{path}" + (f"?{urlencode(query)}" if query else "")
        try:
            connection.request(method, target, json.dumps(body or {}), headers)
            response = connection.getresponse()
            status, document = response.status, json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ConnectionLostError(
                f"could not reach the driver at {self.driver}",
                why=f"{type(error).__name__}: {error}",
                do="see whether its program still runs: flinkish list",
            ) from error
        finally:
            connection.close()
        if status >= 400:
            raise self._refusal(status, document)
        return document

    def _refusal(self, status: int, document: Any) -> FlinkishError:
        document = document if isinstance(document, dict) else {}
        text = "; ".join(map(str, document.get("errors", ()))) or f"it answers {status}"
        where = f"the driver at {self.driver}"
        if status == 401:
            return AuthenticationError(
                "could not change a job",
                where=where,
                why=text,
                do="ask as the user that runs the driver, or give its token: --token-file FILE or FLINKISH_REST_TOKEN",
            )
        error = _error_of(document.get("error"))
        if error is not None:
            return error
        if status < 500:
            return InvalidJobError("could not do what was asked for", where=where, why=text)
        return ExternalError("the driver could not do what was asked for", where=where, why=text)


def _error_of(parts: Any) -> Optional[FlinkishError]:
    """The error that the driver had, from ``messages.error_parts``."""
    if not isinstance(parts, dict):
        return None
    kind = getattr(errors, str(parts.get("type")), None)
    if not (isinstance(kind, type) and issubclass(kind, FlinkishError)):
        kind = ExternalError
    texts = {label: str(parts.get(label, "")) for label in ("what", "where", "why", "do")}
    return kind(texts.pop("what"), **texts)
