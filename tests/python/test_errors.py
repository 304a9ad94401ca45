# SPDX-License-Identifier: Apache-2.0
"""Exceptions say what the library's statuses say."""

from __future__ import annotations

import pickle

import pytest

import heft
from heft import errors
from heft._native import ffi, lib

STATUSES = {
    value: name for value, name in ffi.typeof("heft_status_t").elements.items() if value < 0
}


def test_every_status_has_an_exception_of_its_remedy() -> None:
    assert set(errors.BY_STATUS) == set(STATUSES)
    for value, cls in errors.BY_STATUS.items():
        remedy = lib.heft_status_get_remedy(value)
        assert cls.status == value
        assert "HEFT_" + cls.status_name == STATUSES[value]
        assert issubclass(cls, errors.BY_REMEDY[remedy])
        assert issubclass(cls, errors.HeftError)
        assert getattr(errors, cls.__name__) is cls


def test_every_remedy_has_an_exception_but_none() -> None:
    names = {cls.remedy: cls.__name__ for cls in errors.BY_REMEDY.values()}
    assert names == {
        "CALLER": "CallerError",
        "RETRY": "RetryError",
        "PEER": "PeerError",
        "DATA": "DataError",
        "LOCAL": "LocalError",
        "BUG": "BugError",
    }


def test_a_failure_has_message_status_errno_and_rank() -> None:
    with pytest.raises(errors.NotFoundError, match='"nothing"') as caught:
        heft.Tape().find_buffer(heft.BufferKind.SOURCE, "nothing")
    assert caught.value.status == lib.HEFT_ERR_NOT_FOUND
    assert caught.value.status_name == "ERR_NOT_FOUND"
    assert caught.value.remedy == "CALLER"
    assert (caught.value.sys_errno, caught.value.peer_rank) == (0, -1)
    assert str(caught.value) == caught.value.message


def test_an_error_travels_to_another_process() -> None:
    error = errors.ProofError("refused", peer_rank=3, issues=["a"])
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is errors.ProofError
    assert (copy.message, copy.peer_rank, copy.issues) == ("refused", 3, ("a",))


@pytest.mark.parametrize(
    ("enumeration", "prefix", "c_type"),
    [
        (heft.DType, "HEFT_DTYPE_", "heft_dtype_t"),
        (heft.OpCode, "HEFT_OP_", "heft_op_code_t"),
        (heft.BufferKind, "HEFT_BUFFER_", "heft_buffer_kind_t"),
        (heft.ExceptionKind, "HEFT_EXCEPTION_", "heft_exception_kind_t"),
        (heft.FindingKind, "HEFT_FINDING_", "heft_finding_kind_t"),
    ],
)
def test_an_enumeration_has_every_member_of_the_library(enumeration, prefix, c_type) -> None:
    elements = ffi.typeof(c_type).elements
    expected = {name.removeprefix(prefix): value for value, name in elements.items()}
    expected.pop("NONE", None)
    assert {member.name: member.value for member in enumeration} == expected


@pytest.mark.parametrize("dtype", list(heft.DType))
def test_a_dtype_is_found_by_both_of_its_names(dtype: heft.DType) -> None:
    assert heft.DType.from_name(dtype.name) is dtype
    assert heft.DType.from_name(dtype.name.lower()) is dtype
    assert heft.DType(dtype.name.lower()) is dtype
    assert dtype.is_packed == (dtype.bits < 8)
    assert dtype.unit_bytes == max(dtype.bits // 8, 1)


def test_a_dtype_that_is_none_is_refused_with_those_there_are() -> None:
    with pytest.raises(errors.ArgumentError, match='"float" is no dtype; there are: BOOL, U8'):
        heft.DType.from_name("float")
