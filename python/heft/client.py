# SPDX-License-Identifier: Apache-2.0
"""Requests to a coordinator (docs/formats/control.md)."""

from __future__ import annotations

import json
from typing import Any

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
    """Wait until n destinations have registered.

    A coordinator that cannot be reached yet is waited for as well; its error is raised in the end.
    TimeoutError names the destinations that are there, and ranks that are missing below them.
    """
    opts, kept = new_options("heft_client_opts_t", {"url": url})
    timeout_ms = min(round(timeout_s * 1000), 2**32 - 1)
    call(lib.heft_client_await_destinations, opts, n, timeout_ms, ffi.NULL, ffi.NULL)
    del kept
