# SPDX-License-Identifier: Apache-2.0
"""The tracer: buffers, the log of calls, and what handlers need to append to it."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch

from heft.trace import registry, standin
from heft.trace.answers import Answers
from heft.trace.errors import BypassError, TraceError
from heft.trace.log import Buffer, Call, Ref, Region, Step, Write
from heft.trace.standin import StandIn

_META = torch.device("meta")
_ONES = Answers(1.0)
_TORCH_DIR = str(Path(torch.__file__).parent)
_HEFT_DIR = str(Path(__file__).parent)
_STDLIB_DIR = str(Path(threading.__file__).parent)


class Tracer:
    """Records one run of a loader. Dispatch may be called from any thread."""

    def __init__(self, device: torch.device, answers: Answers = _ONES) -> None:
        self.target = device  # where the engine will load: its arithmetic counts
        self.device = device if is_here(device.type) else torch.device("cpu")  # of stand-ins
        self.answers = answers  # when the loader asks for values
        self.buffers: list[Buffer] = []
        self.calls: list[Call] = []
        self.reads: list[Any] = []  # values that the loader asked for
        self.failures: list[
            TraceError
        ] = []  # refused; raised at the end if the loader swallows them
        self.refused: tuple[Exception, list[str]] | None = (
            None  # the last operator that raised, and its operands
        )
        self.is_closed = False
        self._by_storage: dict[int, Buffer] = {}  # real storages that stand for a buffer
        self._storages: list[Any] = []  # kept, so that no address is used again
        self._lock = threading.RLock()

    # ---- buffers ----

    def new_buffer(self, kind: str, name: str, base: torch.Tensor) -> Buffer:
        with self._lock:
            buffer = Buffer(kind, name, base, len(self.buffers))
            self.buffers.append(buffer)
        return buffer

    def new_source(self, name: str, dtype: torch.dtype, shape: Sequence[int]) -> StandIn:
        with untraced():
            base = torch.empty(tuple(shape), dtype=dtype, device=_META)
            return self.stand_in(Ref(self.new_buffer("source", name, base), base), self.device)

    def bind_storage(self, tensor: torch.Tensor, buffer: Buffer) -> None:
        """From now on this real tensor's storage means that buffer."""
        storage = tensor.untyped_storage()
        self._storages.append(storage)
        self._by_storage[storage._cdata] = buffer

    def stand_in(self, ref: Ref, device: torch.device | None = None) -> StandIn:
        return standin.make(self, ref, device or self.device)

    def fresh(self, call: Call, meta: torch.Tensor, device: torch.device | None = None) -> Ref:
        """A temporary for a result whose geometry PyTorch has computed."""
        ref = Ref(self.new_buffer("temp", "", meta), meta)
        call.outs.append(ref)
        return ref

    # ---- arguments ----

    def known_buffer(self, tensor: torch.Tensor) -> Buffer | None:
        """The buffer a plain tensor's storage stands for, if it does."""
        try:
            return self._by_storage.get(tensor.untyped_storage()._cdata)
        except (
            NotImplementedError,
            RuntimeError,
        ):  # sparse, functional and other tensors without one
            return None

    def ref(self, tensor: Any) -> Ref | None:
        """What a tensor stands for; None for a constant."""
        if isinstance(tensor, StandIn):
            if tensor._heft_tracer is not self:
                self.fail(
                    f"{tensor!r} is left over from an earlier trace: the loader keeps tensors"
                )
            ref = tensor._heft_ref
            shadow = ref.buffer.shadow
            return ref if shadow is None else Ref(shadow, ref.meta)
        buffer = self.known_buffer(tensor)
        if buffer is None:
            return None
        return Ref(buffer, on_storage(buffer, tensor))

    def writable(self, tensor: torch.Tensor) -> Ref:
        """What a destination stands for. A source is copied first; a real tensor is adopted."""
        ref = self.ref(tensor)
        if ref is None:
            return self._adopt(tensor)
        if ref.buffer.kind == "source":
            return self._copy_on_write(ref)
        return ref

    def _copy_on_write(self, ref: Ref) -> Ref:
        source = ref.buffer
        base = torch.empty_like(source.base)
        shadow = self.new_buffer("temp", "", base)
        call = self.begin(
            torch.ops.aten.copy_.default, (Ref(shadow, base), Ref(source, source.base)), {}
        )
        self.copy(call, Ref(shadow, base).region, Ref(source, source.base).region)
        source.shadow = shadow
        return Ref(shadow, ref.meta)

    def _adopt(self, tensor: torch.Tensor) -> Ref:
        """A real tensor that the loader made is written from a source: now it is a temporary."""
        flat = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(
            tensor.untyped_storage()
        )
        base = torch.empty(flat.shape, dtype=flat.dtype, device=_META)
        buffer = self.new_buffer("temp", "", base)
        self.bind_storage(tensor, buffer)
        value = flat.detach().clone()
        call = self.begin(torch.ops.aten.copy_.default, (Ref(buffer, base), value), {})
        self.constant(call, Ref(buffer, base).region, value)
        return Ref(buffer, on_storage(buffer, tensor))

    def meta(self, tensor: torch.Tensor) -> torch.Tensor:
        """A meta tensor of this tensor's geometry, for shape functions."""
        ref = self.ref(tensor)
        if ref is not None:
            return ref.meta
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=_META)

    def meta_call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The geometry of func's results, from PyTorch's own shape functions."""
        args, kwargs = map_tensors(self.meta, args), map_tensors(self.meta, kwargs)
        if kwargs.get("device") is not None:
            kwargs["device"] = _META
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return func(*args, **kwargs)

    # ---- recording ----

    def begin(self, func: Any, args: Any, kwargs: Any) -> Call:
        """A new entry of the log; its writes are appended by copy(), fill() and the others."""

        def keep(tensor: torch.Tensor) -> Any:
            ref = self.ref(tensor)
            return tensor if ref is None else ref

        note = self.where()
        args, kwargs = map_tensors(keep, args), map_tensors(keep, kwargs)
        with self._lock:
            call = Call(len(self.calls), func, args, kwargs, note)
            self.calls.append(call)
        return call

    def append(self, call: Call, write: Write) -> None:
        for dst in write.dsts:
            if any(s == 0 and e > 1 for e, s in zip(dst.extent, dst.stride, strict=True)):
                self.fail(
                    f"{call.op} writes an expanded view of {dst.buffer!r}: elements share memory"
                )
            if not dst.buffer.calls or dst.buffer.calls[-1] is not call:
                dst.buffer.calls.append(call)
        call.writes.append(write)

    def copy(self, call: Call, dst: Region, src: Region) -> None:
        """dst <- src, broadcast to dst; a cast where the dtypes differ."""
        self.append(call, Write("copy", (dst,), (src.expand(dst.extent),)))

    def fill(self, call: Call, dst: Region, value: Any) -> None:
        """dst <- a number, or a real tensor of one element."""
        element = torch.as_tensor(value).to("cpu").reshape(()).to(dst.dtype)
        self.append(call, Write("fill", (dst,), value=bits_of(element)))

    def constant(self, call: Call, dst: Region, value: torch.Tensor) -> None:
        """dst <- a real tensor, broadcast to dst."""
        value = value.detach().to("cpu")
        if value.numel() == 1:
            self.fill(call, dst, value)
            return
        value = value.to(dst.dtype).expand(dst.extent).clone()
        self.append(call, Write("const", (dst,), value=value))

    def assign(self, call: Call, dst: Region, src: Any) -> None:
        """dst <- whatever src is: a stand-in, a Ref, a Region, a real tensor or a number."""
        if isinstance(src, torch.Tensor):
            ref = self.ref(src)
            src = src if ref is None else ref
        if isinstance(src, Ref):
            src = src.region
        if isinstance(src, Region):
            self.copy(call, dst, src)
        elif isinstance(src, torch.Tensor):
            self.constant(call, dst, src)
        else:
            self.fill(call, dst, src)

    def map(self, call: Call, dst: Region, srcs: Sequence[Region], program: Sequence[Step]) -> None:
        srcs = tuple(src.expand(dst.extent) for src in srcs)
        self.append(call, Write("map", (dst,), srcs, program=tuple(program)))

    def opaque(
        self, call: Call, dsts: Sequence[Region], srcs: Sequence[Region], op: str = ""
    ) -> None:
        self.append(call, Write("opaque", tuple(dsts), tuple(srcs), op=op or call.op))

    # ---- answering ----

    def dispatch(self, func: Any, args: Any, kwargs: Any) -> Any:
        """One operator with a stand-in (or a tensor that means a buffer) among its arguments."""
        if self.is_closed:
            raise TraceError(
                f"{func}: a stand-in is used after its trace: the loader keeps tensors"
            )
        try:
            with torch._C.DisableTorchFunction():
                return registry.find(func, fallback_for)(self, func, args, kwargs)
        except TraceError:
            raise
        except Exception as error:  # PyTorch would refuse it as well: wrong shapes, say
            if self.refused is None or self.refused[0] is not error:
                refs = [self.ref(t) for t in tensors_in(args, kwargs)]
                self.refused = (error, [repr(ref.buffer) for ref in refs if ref is not None])
            raise

    def is_on_cpu(self, tensor: torch.Tensor) -> bool:
        """Whether arithmetic on it happens on a CPU where the engine will load."""
        return tensor.device.type == "cpu" and self.target.type == "cpu"

    def device_move(self, tensor: torch.Tensor) -> torch.Tensor:
        """.cuda(): there is no memory, so nothing moves."""
        return tensor

    def constant_value(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The values of a tensor that depends on no source, for free reading; None for others."""
        from heft.trace.replay import value_of_constant

        with untraced():
            return value_of_constant(self, tensor)

    def fail(self, text: str, kind: type[TraceError] = TraceError) -> NoReturn:
        error = kind(f"{self.where()}: {text}")
        self.failures.append(error)  # the loader may swallow it
        raise error

    def bypass(self, text: str) -> NoReturn:
        self.fail(text, BypassError)

    def where(self) -> str:
        """file:line of the innermost frame that is the loader's own."""
        frame = sys._getframe(1)
        while frame is not None:
            if is_loader_frame(frame.f_code.co_filename):
                return f"{short_path(frame.f_code.co_filename)}:{frame.f_lineno}"
            frame = frame.f_back  # type: ignore[assignment]
        return "?"


def is_here(device_type: str) -> bool:
    """Whether this machine has such devices."""
    return device_type in ("cpu", "meta") or torch.get_device_module(device_type).is_available()


@functools.cache
def is_loader_frame(filename: str) -> bool:
    """Whether a file is the loader's own, not PyTorch's, Python's or heft's."""
    if filename.startswith((_TORCH_DIR, _HEFT_DIR, "<frozen")):
        return False
    return (
        not filename.startswith(_STDLIB_DIR)
        or "site-packages" in filename
        or "dist-packages" in filename
    )


@functools.cache
def short_path(name: str) -> str:
    """A source file's path below the folder it is imported from."""
    roots = [p.rstrip("/") + "/" for p in sys.path if p and name.startswith(p.rstrip("/") + "/")]
    return name[len(max(roots, key=len, default="")) :]


@contextlib.contextmanager
def untraced() -> Iterator[None]:
    """PyTorch as it is, while a trace is on: for work of the trace's own."""
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():  # type: ignore[attr-defined]
        yield


def on_storage(buffer: Buffer, tensor: torch.Tensor) -> torch.Tensor:
    """A meta tensor of a real tensor's geometry, on the storage of the buffer it belongs to."""
    out = torch.empty(0, dtype=tensor.dtype, device=_META)
    return out.set_(
        buffer.base.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
    )


def map_tensors(f: Callable[[torch.Tensor], Any], tree: Any) -> Any:
    """f of every tensor in an operator's arguments (lists nest once)."""
    if isinstance(tree, torch.Tensor):
        return f(tree)
    if type(tree) in (list, tuple):
        return type(tree)([map_tensors(f, t) for t in tree])
    if type(tree) is dict:
        return {k: map_tensors(f, v) for k, v in tree.items()}
    return tree


def tensors_in(*trees: Any) -> Iterator[torch.Tensor]:
    """The tensors among an operator's arguments, in order."""
    for tree in trees:
        if isinstance(tree, torch.Tensor):
            yield tree
        elif isinstance(tree, list | tuple):
            yield from tensors_in(*tree)
        elif isinstance(tree, dict):
            yield from tensors_in(*tree.values())


def bits_of(element: torch.Tensor) -> int:
    """The bit pattern of a tensor of one element, little-endian."""
    return int.from_bytes(bytes(element.reshape(1).view(torch.uint8).tolist()), "little")


def fallback_for(func: Any) -> registry.Handler:
    """The handler of an operator that nobody registered."""
    from heft.trace import fallback

    return fallback.choose(func)
