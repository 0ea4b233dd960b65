"""A request and its answer, apart from how they travel."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Mapping, Optional

from flinkish.errors import FlinkishError


@dataclass(frozen=True)
class Request:
    """``path`` without its query; names of ``headers`` in small letters; ``query``: the last value of each name."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True)
class Response:
    status: int
    body: Any = field(default_factory=dict)
    #: Why somebody without the right to ask was turned away; for the log.
    refused: str = ""

    def encode(self) -> bytes:
        return json.dumps(self.body).encode()


class HttpError(Exception):
    """Ends a request with a status; the text is shown to who has asked."""

    def __init__(self, status: int, text: str, refused: bool = False):
        super().__init__(text)
        self.status, self.text, self.refused = status, text, refused


def error_body(text: str, error: Optional[FlinkishError] = None) -> dict[str, Any]:
    """Flink's form; ``error`` in parts beside it, so that our client can raise it again."""
    body: dict[str, Any] = {"errors": [text]}
    if error is not None:
        body["error"] = error_parts(error)
    return body


def error_parts(error: FlinkishError) -> dict[str, str]:
    return {
        "type": type(error).__name__,
        "what": str(error) if "traceback_text" in error.fields else error.what,
        "where": error.where,
        "why": error.why,
        "do": error.do,
    }
