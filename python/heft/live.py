# SPDX-License-Identifier: Apache-2.0
"""Live delivery into a PyTorch module: rounds write into the parameters it serves with.

The bytes are moved by the library. In a round without an engine loader no Python runs for each
tensor: addresses are compared by a few calls into C over all of them, and the hooks run once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter, getitem, is_
from typing import TYPE_CHECKING, Any, Literal

import torch

from heft import errors
from heft._handles import argument_error, state_error
from heft.contract import Contract
from heft.experts import ExpertTable
from heft.manifest import Manifest
from heft.memory import Memory
from heft.publisher import Member
from heft.subscriber import Hooks, Subscriber
from heft.torch import tensor_of

if TYPE_CHECKING:
    from heft.trace import Trace

_dtype = attrgetter("dtype")


class Gate:
    """Keeps requests and rounds apart: many requests at a time, or one round.

    A request runs inside `with gate.serving() as version:`, which waits while the engine may not
    serve. A round closes the gate and waits until the requests that are inside have left.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._version = 0  # 0: closed
        self._n_inside = 0

    @contextmanager
    def serving(self, timeout: float | None = None) -> Iterator[int]:
        """Yields the version that is served. TimeoutError: none was within `timeout` seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._version > 0, timeout):
                raise TimeoutError(f"no version is served after {timeout} s")
            self._n_inside += 1
            version = self._version
        try:
            yield version
        finally:
            with self._changed:
                self._n_inside -= 1
                self._changed.notify_all()

    def close(self, timeout: float) -> None:
        """Let nobody in any more, and wait until nobody is inside; else open as before."""
        with self._changed:
            version, self._version = self._version, 0
            if not self._changed.wait_for(lambda: self._n_inside == 0, timeout):
                n, self._version = self._n_inside, version
                self._changed.notify_all()
                raise TimeoutError(f"{n} requests are still running after {timeout} s")

    def open(self, version: int) -> None:
        """Serve this version; 0: none."""
        with self._changed:
            self._version = version
            self._changed.notify_all()


class Snapshot:
    """Where the tensors of a module are, to be compared again and again.

    Comparing runs no Python code for each tensor: `map` calls methods of PyTorch's C class.
    """

    def __init__(self, model: torch.nn.Module, names: Sequence[str]) -> None:
        self.names = list(names)
        homes = [_home_of(model, name) for name in self.names]
        self._dicts = [home for home, _ in homes]
        self._keys = [key for _, key in homes]
        self.tensors: list[torch.Tensor] = list(map(getitem, self._dicts, self._keys))
        self._facts = _facts_of(self.tensors)
        self._memories: list[torch.Tensor] = []

    def keep_memory(self) -> Snapshot:
        """For put_back and copy_back: the memory stays, whatever the tensors are given."""
        self._memories = [tensor.detach() for tensor in self.tensors]
        return self

    def by_name(self) -> dict[str, torch.Tensor]:
        return dict(zip(self.names, self.tensors, strict=True))

    def current(self, i: int) -> torch.Tensor | None:
        """What the module holds under name i now; None: nothing."""
        tensor = self._dicts[i].get(self._keys[i])
        return tensor if isinstance(tensor, torch.Tensor) else None

    def is_unchanged(self) -> bool:
        try:
            current = list(map(getitem, self._dicts, self._keys))
        except KeyError:
            return False
        return all(map(is_, current, self.tensors)) and _facts_of(self.tensors) == self._facts

    def put_back(self) -> None:
        """The module holds these objects with this memory again."""
        for i, (tensor, memory) in enumerate(zip(self.tensors, self._memories, strict=True)):
            if tensor.data_ptr() != memory.data_ptr() or tensor.size() != memory.size():
                tensor.data = memory
            self._dicts[i][self._keys[i]] = tensor

    def copy_back(self) -> None:
        """The same, with the values that are in their places now."""
        for i, memory in enumerate(self._memories):
            now = self.current(i)
            if now is None or (now.dtype, now.size()) != (memory.dtype, memory.size()):
                text = "is gone" if now is None else f"is now {now.dtype} {list(now.size())}"
                raise RuntimeError(f'"{self.names[i]}" {text}: kernels had {list(memory.size())}')
            if now.data_ptr() != memory.data_ptr():
                memory.copy_(now.data)
        self.put_back()

    def changes(self) -> Iterator[tuple[int, torch.Tensor | None, str]]:
        """Every tensor that is not what it was: index, what is there now, how it differs."""
        facts = list(zip(*self._facts, strict=True))
        for i, tensor in enumerate(self.tensors):
            now = self.current(i)
            if now is None:
                yield i, None, "is gone"
            elif now is not tensor or next(zip(*_facts_of([now]), strict=True)) != facts[i]:
                yield i, now, _describe(facts[i], now)


def _facts_of(tensors: list[torch.Tensor]) -> tuple[tuple[Any, ...], ...]:
    cls = torch.Tensor
    return (
        tuple(map(cls.data_ptr, tensors)),
        tuple(map(cls.stride, tensors)),
        tuple(map(cls.size, tensors)),
        tuple(map(_dtype, tensors)),
    )


def _describe(facts: tuple[Any, ...], now: torch.Tensor) -> str:
    address, stride, size, dtype = facts
    if (now.dtype, tuple(now.size())) != (dtype, tuple(size)):
        return f"was {dtype} {list(size)} and is {now.dtype} {list(now.size())}"
    if now.data_ptr() != address:
        return f"moved from {address:#x} to {now.data_ptr():#x}"
    if now.stride() != stride:
        return f"had strides {stride} and has {now.stride()}"
    return f"is another {type(now).__name__} object"


def _home_of(model: torch.nn.Module, name: str) -> tuple[dict[str, Any], str]:
    """The dictionary in which a module keeps this parameter, buffer or plain tensor."""
    path, _, key = name.rpartition(".")
    try:
        owner = model.get_submodule(path)
    except AttributeError:
        raise argument_error(f'tensor "{name}": there is no module "{path}"') from None
    for home in (owner._parameters, owner._buffers, vars(owner)):
        if isinstance(home.get(key), torch.Tensor):
            return home, key
    raise argument_error(f'tensor "{name}": "{path}" has no tensor "{key}"')


class LiveModel:
    """A module that rounds deliver into, and the thread that takes part in them.

    contract: of a traced loader (or a recipe), with the manifest of this rank, or the trace itself;
    the model must be in the layout that its loader writes into. In a round the gate is closed and
    drained, `restore` brings the model back into that layout, the library writes the parameters,
    the engine's own `load` gets the tensors that only it can handle, once, `post_process` packs for
    kernels again and `derive` recomputes what is made of parameters, in place. Nothing may move: a
    tensor that is replaced, or gets other memory, refuses the round by name, and the old version
    serves on.

    load: called with an iterable of (name, tensor); default model.load_weights.
    restore: "keep" where post_process gives parameters other memory: the loader's is kept beside it
    and put back before each flip, and kernels' tensors keep their addresses.
    derived: names that `derive` recomputes; default those that the trace found.
    recorded: names that post_process or derive change; default all where post_process is given.
    experts: says which table of experts the engine has now. A round that finds another one than
    when this layout was announced is refused, so that it cannot write by a table that is over.
    drain_s: how long a round waits for requests that are inside the gate.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        contract: Contract | Trace,
        *,
        url: str | None = None,
        member: Member = Member(),  # noqa: B008  immutable
        in_place: bool = False,
        buffer_bytes: int = 0,
        gate: Gate | None = None,
        drain_s: float = 60,
        load: Callable[[Iterable[tuple[str, torch.Tensor]]], Any] | None = None,
        restore: Callable[[torch.nn.Module], Any] | Literal["keep"] | None = None,
        post_process: Callable[[torch.nn.Module], Any] | None = None,
        derive: Callable[[torch.nn.Module], Any] | None = None,
        derived: Iterable[str] | None = None,
        recorded: Iterable[str] | None = None,
        experts: Callable[[], Any] | None = None,
    ) -> None:
        contract, derived = _settle(contract, derived)
        if derived and derive is None:
            raise argument_error(f"derived tensors without a derive hook: {', '.join(derived)}")
        if (restore is None) != (post_process is None):
            raise argument_error("restore and post_process belong together: one undoes the other")
        self.model = model
        self.gate = gate if gate is not None else Gate()
        self.drain_s = drain_s
        self.failure: BaseException | None = None  # the last that a round or a hook raised
        self._load = load if load is not None else getattr(model, "load_weights", None)
        self._restore, self._post_process, self._derive = restore, post_process, derive
        self._is_processed = False  # post_process has run since the last restore
        self._kernels: Snapshot | None = None  # what it made, where the loader's memory is kept
        self._moved: list[str] = []
        self._rank = member.rank
        self._experts = experts
        self._table = self._table_now()
        manifest = self._manifest_of(contract)
        self._snapshot = Snapshot(model, [info.name for info in manifest])
        if restore == "keep":
            self._snapshot.keep_memory()
        self._derived = Snapshot(model, derived)
        self.subscriber = Subscriber.from_contract(
            url,
            contract,
            self._snapshot.by_name(),
            manifest=manifest,
            recorded=self._recorded(self._snapshot, recorded),
            hooks=self._hooks(),
            member=member,
            in_place=in_place,
            buffer_bytes=buffer_bytes,
        )
        self._stop = threading.Event()
        self._turn = threading.Lock()  # held while polling
        self._is_wanted = False  # by another thread
        self._thread: threading.Thread | None = None

    def _manifest_of(self, contract: Contract) -> Manifest:
        manifest = contract.destination(self._rank - contract.first_rank)
        if manifest is None:
            raise argument_error(f"the contract has no manifest of rank {self._rank}")
        return manifest

    def _recorded(self, snapshot: Snapshot, recorded: Iterable[str] | None) -> Iterable[str]:
        if recorded is not None:
            return recorded
        return snapshot.names if self._post_process is not None else ()

    def _hooks(self) -> Hooks:
        return Hooks(
            pause=self._on_pause,
            flipped=self._on_flipped,
            resume=self._on_resume,
            locate=self._on_locate,
            load=self._on_load if self._load is not None else None,
        )

    # ---- life ----

    def start(self) -> LiveModel:
        """Take part in rounds on a thread of its own."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="heft-live", daemon=True)
            self._thread.start()
        return self

    def close(self) -> None:
        """Leave the fleet. What the model holds stays."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.subscriber.close()

    def __enter__(self) -> LiveModel:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with self._turn:
                    self.subscriber.poll(200)
            except errors.StaleError as error:
                self.failure = error
                return  # another process has this rank
            except BaseException as error:  # a hook's own: the round's result says it, too
                self.failure = error
                if isinstance(error, errors.HeftError):
                    self._stop.wait(0.05)
            if self._is_wanted:
                self._stop.wait(0.002)

    def renew(
        self,
        contract: Contract | Trace | Callable[[], Contract | Trace],
        *,
        derived: Iterable[str] | None = None,
        recorded: Iterable[str] | None = None,
        keeps_version: bool = False,
        timeout_s: float = 60,
    ) -> None:
        """The model has another layout now (other tensors, another expert map): deliver into that.

        contract: of that layout; or a function that changes the model and returns it, called once
        requests are drained and while no round can begin (one that raises must leave the model as
        it was). Between rounds; one that is in flight is waited for. The model serves again once a
        round has brought it to a version; with keeps_version at once, its version in the new
        layout, which the model has brought there itself. Any thread but the polling one.
        """
        if keeps_version and self._restore == "keep":
            raise argument_error(
                'keeps_version: with restore="keep" the loader\'s memory does not hold what serves'
            )
        until = time.monotonic() + timeout_s
        self._is_wanted = True
        try:
            while not self._renew_once(contract, derived, recorded, keeps_version):
                if time.monotonic() > until:
                    raise TimeoutError(f"a round is in flight after {timeout_s} s")
                time.sleep(0.002)
        finally:
            self._is_wanted = False

    def _renew_once(
        self,
        contract: Contract | Trace | Callable[[], Contract | Trace],
        derived: Iterable[str] | None,
        recorded: Iterable[str] | None,
        keeps_version: bool,
    ) -> bool:
        with self._turn:
            if self.subscriber.is_in_round:
                return False
            version = self.version if self.is_serving else 0
            self.gate.close(self.drain_s)
            try:
                self._renew_drained(contract, derived, recorded, keeps_version)
            finally:  # what failed has changed nothing
                self.gate.open(version if self.is_serving else 0)
            return True

    def _renew_drained(
        self,
        contract: Contract | Trace | Callable[[], Contract | Trace],
        derived: Iterable[str] | None,
        recorded: Iterable[str] | None,
        keeps_version: bool,
    ) -> None:
        made = contract() if callable(contract) else contract
        settled, derived = _settle(made, derived)
        table, manifest = self._table_now(), self._manifest_of(settled)
        snapshot = Snapshot(self.model, [info.name for info in manifest])
        if self._restore == "keep":
            snapshot.keep_memory()
        derived_now = Snapshot(self.model, derived)
        try:
            self.subscriber.renew(
                settled,
                snapshot.by_name(),
                manifest=manifest,
                recorded=self._recorded(snapshot, recorded),
                keeps_version=keeps_version,
            )
        finally:
            if self.subscriber.manifest is manifest:  # it stands, also where nobody heard of it
                self._snapshot, self._derived, self._moved = snapshot, derived_now, []
                self._table, self._kernels = table, None
                self._is_processed = self._is_processed and keeps_version

    def _table_now(self) -> ExpertTable | None:
        """The engine's own word; a table that no engine can have is refused."""
        if self._experts is None:
            return None
        now = self._experts()
        return now if isinstance(now, ExpertTable) else ExpertTable(now)

    def _check_table(self) -> None:
        now = self._table_now()
        if now is None or self._table is None or now == self._table:
            return
        text = f"{now!r}, was {self._table!r}"
        if (now.n_layers, now.n_slots) == (self._table.n_layers, self._table.n_slots):
            first = now.moved(self._table)[0]
            text = f"layer {first.layer} slot {first.slot} is expert {first.now}, was {first.was}"
        raise RuntimeError(f"the table of experts has changed and was not announced: {text}")

    # ---- state ----

    @property
    def version(self) -> int:
        """The version that the parameters hold; 0: none."""
        return self.subscriber.version

    @property
    def is_serving(self) -> bool:
        return self.subscriber.is_serving

    def digest(self, name: str) -> int:
        """The digest that this parameter has at the live version."""
        return self.subscriber.digest(name)

    def await_version(self, version: int, timeout_s: float = 30) -> None:
        """Wait until this version, or a later one, is served."""
        until = time.monotonic() + timeout_s
        while self.version < version or not self.is_serving:
            if time.monotonic() > until:
                raise TimeoutError(f"version {self.version} after {timeout_s} s, not {version}")
            time.sleep(0.002)

    # ---- hooks, on the polling thread ----

    def _on_pause(self) -> None:
        self.gate.close(self.drain_s)
        if self._restore is not None and self._is_processed:
            with torch.no_grad():
                if self._restore == "keep":
                    self._snapshot.put_back()
                else:
                    self._restore(self.model)
            self._is_processed = False

    def _on_locate(self) -> Mapping[str, torch.Tensor]:
        """What lies elsewhere than the library was told last."""
        self._check_table()
        if self._kernels is not None and self._is_processed:
            self._check_kernels(self._kernels)
            return {}
        if self._snapshot.is_unchanged():
            back, self._moved = self._moved, []
            tensors = self._snapshot.by_name() if back else {}
            return {name: tensors[name] for name in back}
        moved = {}
        for i, now, text in self._snapshot.changes():
            if now is None or "moved" not in text:
                raise RuntimeError(f'parameter "{self._snapshot.names[i]}" {text}')
            moved[self._snapshot.names[i]] = now  # the library compares, and says which
        self._moved = list({*self._moved, *moved})
        return moved

    def _check_kernels(self, kernels: Snapshot) -> None:
        """What serves is where it was; the loader's memory is nobody's but this object's."""
        for i, _, text in () if kernels.is_unchanged() else kernels.changes():
            raise RuntimeError(f'parameter "{kernels.names[i]}" {text}')

    def _on_load(self, inputs: dict[str, Memory]) -> None:
        if self._load is None:
            raise state_error("there is no loader")
        with torch.no_grad():
            self._load((name, tensor_of(memory)) for name, memory in inputs.items())

    def _on_flipped(self, version: int) -> None:
        """From the loader's layout to the one that serves."""
        self._pack()
        if self._derive is not None:
            with torch.no_grad():
                self._derive(self.model)
        for i, _, text in () if self._derived.is_unchanged() else self._derived.changes():
            raise RuntimeError(f'derived "{self._derived.names[i]}" {text}: recompute it in place')

    def _pack(self) -> None:
        if self._post_process is not None and not self._is_processed:
            with torch.no_grad():
                self._post_process(self.model)
                if self._restore == "keep":
                    self._settle_kernels()
            self._is_processed = True

    def _settle_kernels(self) -> None:
        """Graphs hold the addresses of what was made first: later versions go there."""
        if self._kernels is not None:
            self._kernels.copy_back()
            return
        names = self._snapshot.names
        there = [name for i, name in enumerate(names) if self._snapshot.current(i) is not None]
        self._kernels = Snapshot(self.model, there).keep_memory()

    def _on_resume(self, version: int) -> None:
        if version > 0:
            self._pack()  # where the round was called off, the old version is packed again
        self.gate.open(version)


def _settle(
    contract: Contract | Trace, derived: Iterable[str] | None
) -> tuple[Contract, list[str]]:
    """A trace stands for its contract, and names what its loader derives."""
    if isinstance(contract, Contract):
        return contract, list(derived or ())
    found = [d.name for d in contract.derived] if derived is None else derived
    return contract.contract(), list(found)
