"""Who may ask what.

Everybody who reaches the port may look; what changes a job wants the token.  A page in a browser reaches the port too:
it can neither set the header of the token nor read an answer, unless its own name leads here (DNS rebinding), so a
request must be addressed to a number, to ``localhost`` or to a name that the settings know.
"""

from __future__ import annotations

import hmac
import ipaddress
from typing import AbstractSet, Mapping

from flinkish.rest.messages import HttpError

_SCHEME = "bearer "


def check_host(headers: Mapping[str, str], names: AbstractSet[str]) -> None:
    """Raises HttpError: the request is addressed to somebody else.  ``names``: beside localhost, in small letters."""
    host = _host_of(headers.get("host", ""))
    if host == "localhost" or host in names:
        return
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise HttpError(403, "the request is for another host; if it is this one, set rest.address", True) from None


def check_token(headers: Mapping[str, str], token: str, needed: bool) -> None:
    """Raises HttpError: the token is wrong, or is needed and not there."""
    given = headers.get("authorization")
    if given is None:
        if needed:
            raise HttpError(401, "what changes a job wants the token of its driver: Authorization: Bearer TOKEN", True)
        return
    is_bearer = given[: len(_SCHEME)].lower() == _SCHEME
    if not is_bearer or not hmac.compare_digest(given[len(_SCHEME) :].strip().encode(), token.encode()):
        raise HttpError(401, "that is not the token of this driver", True)


def _host_of(header: str) -> str:
    """Without port and brackets, in small letters."""
    text = header.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0]
