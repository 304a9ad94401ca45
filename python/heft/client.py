# SPDX-License-Identifier: Apache-2.0
"""Requests to a coordinator (docs/formats/control.md)."""

from __future__ import annotations

import json
import time
from typing import Any

from heft import errors
from heft._handles import call, encode, encode_or_null, take_text
from heft._native import ffi, lib
from heft.checkpoint import Path
from heft.options import new_options


def request(
    method: str,
    path: str,
    body: Any = None,
    *,
    url: str | None = None,
    deadline_ms: int = 0,
    token_file: Path | None = None,
    ca_file: Path | None = None,
    insecure: bool = False,
) -> Any:
    """One request with a JSON body (None: no body); the reply's JSON, None where it is empty.

    A refusal raises the status and the message that the coordinator gave.
    """
    opts, kept = new_options(
        "heft_client_opts_t",
        {
            "url": url,
            "deadline_ms": deadline_ms,
            "token_file": token_file,
            "ca_file": ca_file,
            "insecure": insecure,
        },
    )
    out = ffi.new("char **")
    text = None if body is None else json.dumps(body)
    call(lib.heft_client_request, opts, encode(method), encode(path), encode_or_null(text), out)
    del kept
    reply = take_text(out)
    return json.loads(reply) if reply else None


def get(path: str, **options: Any) -> Any:
    """GET path; options as of request()."""
    return request("GET", path, **options)


def post(path: str, body: Any = None, **options: Any) -> Any:
    """POST a JSON body to path; options as of request()."""
    return request("POST", path, body, **options)


def status(url: str | None = None, **options: Any) -> dict[str, Any]:
    """Members, versions and the round in flight."""
    found: dict[str, Any] = request("GET", "/v1/status", url=url, **options)
    return found


def await_destinations(n: int, url: str | None = None, *, timeout_s: float = 60) -> None:
    """Wait until n destinations have registered. TimeoutError names those that have.

    A coordinator that cannot be reached yet is waited for as well; its error is raised in the end.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        found = _status_or_none(url, deadline)
        if found is not None and found["destinations"] >= n:
            return
        if found is not None and time.monotonic() >= deadline:
            ids = [one["id"] for one in found["members"] if one["role"] == "destination"]
            raise errors.BY_STATUS[lib.HEFT_ERR_TIMEOUT](
                f"{len(ids)} of {n} destinations after {timeout_s:g} s: "
                + (f"there are {', '.join(ids)}" if ids else "nobody has registered")
            )
        time.sleep(0.05)


def _status_or_none(url: str | None, deadline: float) -> dict[str, Any] | None:
    """None while the coordinator does not answer, until the deadline."""
    try:
        return status(url)
    except (errors.PeerError, errors.TimeoutError):
        if time.monotonic() >= deadline:
            raise
        return None
