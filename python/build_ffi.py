#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write the C source of heft._native from the public headers.

The declarations that cffi reads are what a C preprocessor makes of include/heft/heft.h: they are
never written a second time, so the package cannot disagree with the library. The compiler then
checks every one of them against the same header (API mode).

    build_ffi.py --include DIR --cc CC --out FILE
"""

from __future__ import annotations

import argparse
import pathlib
import re
import subprocess
import tempfile

import cffi

# What Python gives to C: callbacks; `arg` is a handle (ffi.new_handle).
CALLBACKS = """
extern "Python" {
    int heft_py_progress(void *arg, int64_t done_bytes, int64_t total_bytes);
    void heft_py_release(void *arg, uint32_t i);
    void heft_py_group_begin(void *arg, uint32_t group, uint32_t n_groups, const char *param);
    int heft_py_diff(void *arg, const heft_tensor_info_t *a, const heft_tensor_info_t *b,
                     const heft_tensor_diff_t *diff);
    int heft_py_pause(void *arg);
    int heft_py_flipped(void *arg, int64_t version);
    int heft_py_resume(void *arg, int64_t version);
    int heft_py_locate(void *arg);
    int heft_py_load(void *arg, const heft_input_t *inputs, uint32_t n_inputs);
    const char *heft_py_explain(void *arg);
    void heft_py_log(void *arg, heft_log_level_t level, const char *line);
}
"""

# The head of DLPack's two capsules, for tensors that offer nothing else (heft/memory.py).
DLPACK = """
typedef struct { int32_t device_type; int32_t device_id; } heft_py_device_t;
typedef struct { uint8_t code; uint8_t bits; uint16_t lanes; } heft_py_dtype_t;
typedef struct {
    void *data; heft_py_device_t device; int32_t ndim; heft_py_dtype_t dtype;
    int64_t *shape; int64_t *strides; uint64_t byte_offset;
} heft_py_tensor_t;
typedef struct { heft_py_tensor_t tensor; void *context; void *deleter; } heft_py_managed_t;
typedef struct {
    uint32_t major; uint32_t minor; void *context; void *deleter; uint64_t flags;
    heft_py_tensor_t tensor;
} heft_py_versioned_t;
"""

SYSTEM_HEADERS = ("stddef.h", "stdint.h")  # cffi knows what is in them
INTEGER_MACRO = re.compile(
    r"#define (HEFT_[A-Z0-9_]+) (\(?-?[0-9][0-9a-fxA-FXuUlL<> ]*\)?|UINT32_MAX)$"
)


def preprocess(cc: str, include: pathlib.Path, *options: str) -> str:
    """The text of heft/heft.h after preprocessing, system headers empty."""
    with tempfile.TemporaryDirectory() as empty:
        for name in SYSTEM_HEADERS:
            (pathlib.Path(empty) / name).touch()
        command = [
            cc,
            "-E",
            "-P",
            "-std=c17",
            "-nostdinc",
            f"-I{empty}",
            f"-I{include}",
            "-D__attribute__(x)=",
            "-D_Static_assert(x,y)=",
            *options,
            "-include",
            str(include / "heft" / "heft.h"),
            "-x",
            "c",
            "/dev/null",
        ]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def declarations(cc: str, include: pathlib.Path) -> str:
    """Every declaration of the public headers, and their integer macros."""
    text = re.sub(r"^\s*;", "", preprocess(cc, include), flags=re.M)
    macros = preprocess(cc, include, "-dM").splitlines()
    constants = [match[1] for match in map(INTEGER_MACRO.match, macros) if match]
    return text + "".join(f"\n#define {name} ..." for name in sorted(constants)) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--include", type=pathlib.Path, required=True)
    parser.add_argument("--cc", required=True)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    ffi = cffi.FFI()
    ffi.cdef(declarations(args.cc, args.include.resolve()))
    ffi.cdef(DLPACK)
    ffi.cdef(CALLBACKS)
    ffi.set_source("heft._native", '#include "heft/heft.h"\n' + DLPACK)
    ffi.emit_c_code(args.out)


if __name__ == "__main__":
    main()
