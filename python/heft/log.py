# SPDX-License-Identifier: Apache-2.0
"""Log lines of the library through Python's logging, for the whole process (include/heft/log.h).

    heft.log.to_logging(logging.INFO)

Lines go to the logger "heft.PART"; the fields of a line are in the record's attribute `heft`.
Nothing is done at import: until then warnings and errors are written to standard error.
"""

from __future__ import annotations

import atexit
import json
import logging
from typing import Any

from heft._handles import call, text_of
from heft._native import ffi, lib

_LEVELS = {
    lib.HEFT_LOG_ERROR: logging.ERROR,
    lib.HEFT_LOG_WARN: logging.WARNING,
    lib.HEFT_LOG_INFO: logging.INFO,
    lib.HEFT_LOG_DEBUG: logging.DEBUG,
    lib.HEFT_LOG_TRACE: logging.DEBUG,
}
_HEAD = ("time", "level", "part", "message")


def to_logging(level: int = logging.WARNING) -> None:
    """Send lines of this level of Python's logging, and above, to loggers. Call it early."""
    if level < logging.DEBUG:
        ours = lib.HEFT_LOG_TRACE
    else:
        ours = max(k for k, v in _LEVELS.items() if v >= min(level, logging.ERROR) and k < 4)
    call(lib.heft_log_configure, ours, lib.HEFT_LOG_JSON, lib.heft_py_log, ffi.NULL)
    atexit.register(to_stderr)


def to_stderr() -> None:
    """Back to warnings and errors on standard error; also done when the interpreter ends."""
    call(lib.heft_log_configure, lib.HEFT_LOG_WARN, lib.HEFT_LOG_PLAIN, ffi.NULL, ffi.NULL)


@ffi.def_extern()
def heft_py_log(arg: Any, level: int, line: Any) -> None:
    """Called by any thread of the library."""
    text = text_of(line)
    try:
        fields = json.loads(text)
    except ValueError:
        fields = {"message": text}
    logger = logging.getLogger(f"heft.{fields.get('part', 'library')}")
    rest = {name: value for name, value in fields.items() if name not in _HEAD}
    message = " ".join([str(fields["message"]), *(f"{k}={v}" for k, v in rest.items())])
    logger.log(_LEVELS[level], "%s", message, extra={"heft": rest})
