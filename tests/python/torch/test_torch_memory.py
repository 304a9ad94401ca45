# SPDX-License-Identifier: Apache-2.0
"""Where torch tensors lie, every dtype, without copies."""

from __future__ import annotations

import pytest
import torch

import heft
import heft.torch
from heft import DType, errors, memory

DTYPES = {
    torch.bool: DType.BOOL,
    torch.uint8: DType.U8,
    torch.int8: DType.I8,
    torch.uint16: DType.U16,
    torch.int16: DType.I16,
    torch.uint32: DType.U32,
    torch.int32: DType.I32,
    torch.uint64: DType.U64,
    torch.int64: DType.I64,
    torch.float16: DType.F16,
    torch.bfloat16: DType.BF16,
    torch.float32: DType.F32,
    torch.float64: DType.F64,
    torch.float8_e4m3fn: DType.F8_E4M3,
    torch.float8_e5m2: DType.F8_E5M2,
    torch.float8_e8m0fnu: DType.F8_E8M0,
}


@pytest.mark.parametrize(("dtype", "expected"), list(DTYPES.items()), ids=str)
def test_a_tensor_lies_where_torch_says(dtype: torch.dtype, expected: DType) -> None:
    tensor = torch.empty((4, 6), dtype=dtype)[1:, ::2]
    found = memory.describe(tensor, "w")
    assert (found.address, found.dtype) == (tensor.data_ptr(), expected)
    assert (found.shape, found.strides) == ((3, 3), (6, 2))
    assert found.owner is tensor


def test_a_parameter_is_written_in_place() -> None:
    tape = heft.Tape()
    src = tape.add_buffer(heft.BufferKind.SOURCE, "w", DType.BF16, (4, 6))
    dst = tape.add_buffer(heft.BufferKind.PARAM, "p", DType.BF16, (6, 4))
    tape.copy(heft.View.contiguous(dst, (6, 4)), heft.View(src, 0, (6, 4), (1, 6)))
    weight = torch.randn((4, 6)).bfloat16()
    param = torch.nn.Parameter(torch.zeros((6, 4), dtype=torch.bfloat16))
    heft.execute(heft.Plan.create([tape]), {"w": weight}, {"p": param})
    assert torch.equal(param.data, weight.T)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: torch.empty(4, device="meta"), errors.ArgumentError, "memory is on meta"),
        (lambda: torch.zeros(4).to_sparse(), errors.ArgumentError, "layout is torch.sparse_coo"),
        (
            lambda: torch.zeros(4, dtype=torch.complex64),
            errors.ShapeError,
            "torch.complex64 is no dtype",
        ),
        (lambda: torch.zeros(8)[::2], errors.ArgumentError, "not contiguous"),
        (
            lambda: torch.zeros(4, dtype=torch.bfloat16),
            errors.ShapeError,
            "holds BF16, F32 is expected",
        ),
    ],
)
def test_what_cannot_be_used_is_named_in_one_line(make, error, text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        memory.contiguous(make(), "model.w", DType.F32, (4,), writable=True)
    assert '"model.w"' in str(caught.value)


def test_a_pending_negation_is_refused() -> None:
    with pytest.raises(errors.ArgumentError, match="negation pending"):
        memory.describe(torch.zeros(4, dtype=torch.complex64).conj().imag, "w")


def test_storage_that_was_freed_is_refused() -> None:
    tensor = torch.zeros(4)
    tensor.untyped_storage().resize_(0)
    with pytest.raises(errors.ArgumentError, match="without memory"):
        memory.describe(tensor, "w")


def test_tensors_without_memory_are_not_taken_for_tied_ones() -> None:
    with torch.device("meta"):
        model = torch.nn.ModuleDict({k: torch.nn.Linear(3, 3, bias=False) for k in ("a", "b", "c")})
    model["c"].weight = model["a"].weight
    assert list(heft.torch.tensors_of(model)) == ["a.weight", "b.weight"]
    assert heft.torch.aliases_of(model) == {"c.weight": "a.weight"}
    assert heft.torch.manifest_of(model).names == ["a.weight", "b.weight"]


def test_a_list_of_pairs_is_no_source() -> None:
    pairs = list(torch.nn.Linear(2, 2).named_parameters())
    with pytest.raises(errors.ArgumentError, match="a list is no source: give a module"):
        heft.ModulePublisher(pairs, url="http://127.0.0.1:1")
