# SPDX-License-Identifier: Apache-2.0
"""Rounds into PyTorch modules that serve on another thread."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import pathlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator

import pytest
import torch
from torch import nn

import heft
from heft import DType, Held, LiveModel, Member, ModulePublisher, errors
from heft.torch import aliases_of, manifest_of
from heft.trace import trace

pytestmark = pytest.mark.timeout(120)
Weights = Iterable[tuple[str, torch.Tensor]]


@pytest.fixture
def url() -> Iterator[str]:
    with heft.Coordinator() as coordinator:
        yield coordinator.url


class Trainer(nn.Module):
    """What is pushed: q, k, v apart, a head that is tied to the embedding, a transposed weight."""

    def __init__(self, d: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, d)
        self.q = nn.Linear(d, d, bias=False)
        self.k = nn.Linear(d, d, bias=False)
        self.v = nn.Linear(d, d, bias=False)
        self.norm = nn.Parameter(torch.ones(d))
        self.down = nn.Parameter(torch.zeros(2 * d, d).t())
        self.head = nn.Linear(d, 32, bias=False)
        self.head.weight = self.embed.weight

    def fill(self, version: int) -> None:
        with torch.no_grad():
            for i, tensor in enumerate(self.parameters()):
                n = torch.arange(tensor.numel(), dtype=tensor.dtype).view(tensor.shape)
                tensor.copy_(version * 1000 + i * 100 + n % 97)


class Engine(nn.Module):
    """What serves: q, k, v fused, down cast to bf16 in memory of its own strides, norm plus one."""

    def __init__(self, d: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, d)
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.norm = nn.Parameter(torch.ones(d))
        self.down = nn.Parameter(torch.zeros(2 * d, d + 3, dtype=torch.bfloat16)[:, :d].t())
        self.head = nn.Linear(d, 32, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("plus_one", torch.zeros(d))

    def load_weights(self, weights: Weights) -> None:
        d = self.norm.shape[0]
        for name, tensor in weights:
            if name in ("q.weight", "k.weight", "v.weight"):
                i = "qkv".index(name[0])
                self.qkv.weight.data[i * d : (i + 1) * d].copy_(tensor)
            elif name == "norm":
                self.norm.data.copy_(tensor)
            elif name == "down":
                self.down.data.copy_(tensor)
            elif name == "embed.weight":
                self.embed.weight.data.copy_(tensor)
            else:
                raise KeyError(name)

    def derive(self) -> None:
        self.plus_one.copy_(self.norm + 1)

    def fingerprint(self) -> torch.Tensor:
        """A vector that differs for every version, and for every mixture of two."""
        parts = [self.embed.weight, self.qkv.weight, self.down, self.norm, self.plus_one]
        return torch.stack([part.double().sum() for part in parts])


def expected(trainer: Trainer) -> Engine:
    """The engine's own cold load."""
    engine = Engine()
    with torch.no_grad():
        engine.load_weights((n, t) for n, t in trainer.named_parameters())
        engine.derive()
    return engine


def contract_of(trainer: nn.Module, engine: nn.Module, **options: object) -> heft.Contract:
    return trace(engine, manifest_of(trainer), **options).contract()


def assert_same(one: nn.Module, other: nn.Module) -> None:
    state = other.state_dict()
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, state[name]), name


def test_every_request_sees_one_whole_version(url: str) -> None:
    trainer, engine = Trainer(), Engine()
    contract = contract_of(trainer, engine)
    addresses = {name: t.data_ptr() for name, t in engine.state_dict().items()}
    wanted: dict[int, torch.Tensor] = {}
    for version in range(1, 9):
        trainer.fill(version)
        wanted[version] = expected(trainer).fingerprint()
    seen: collections.Counter[int] = collections.Counter()
    torn: list[int] = []
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            with contextlib.suppress(TimeoutError), live.gate.serving(0.05) as version:
                seen[version] += 1
                if not torch.equal(engine.fingerprint(), wanted[version]):
                    torn.append(version)

    derive = Engine.derive
    with (
        ModulePublisher(trainer, url=url) as publisher,
        LiveModel(engine, contract, url=url, derive=derive, derived=["plus_one"]) as live,
    ):
        threads = [threading.Thread(target=serve) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for version in range(1, 9):
                trainer.fill(version)
                result = publisher.push(version)
                assert result.state == "committed"
                assert live.version == version
                assert_same(engine, expected(trainer))
                while seen[version] == 0:
                    stop.wait(0.001)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert torn == []
        assert {name: t.data_ptr() for name, t in engine.state_dict().items()} == addresses
        # digests do not depend on strides
        assert live.digest("down") == heft.digest(engine.down.detach().contiguous())


def test_an_engine_in_another_process(url: str) -> None:
    here = pathlib.Path(__file__).parent
    command = [sys.executable, str(here / "live_engine.py"), url, "3"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as engine:
        assert engine.stdout is not None
        try:
            assert engine.stdout.readline() == "ready\n"
            trainer = Trainer()
            with ModulePublisher(trainer, url=url) as publisher:
                for version in (1, 2, 3):
                    trainer.fill(version)
                    publisher.push(version)
                    served, *sums = engine.stdout.readline().split()
                    assert int(served) == version
                    assert list(map(float, sums)) == expected(trainer).fingerprint().tolist()
            assert engine.wait(60) == 0
        finally:
            engine.kill()


def test_in_place_without_staging(url: str) -> None:
    trainer, engine = Trainer(), Engine()
    contract = contract_of(trainer, engine)
    with (
        ModulePublisher(trainer, url=url) as publisher,
        LiveModel(engine, contract, url=url, derive=Engine.derive, in_place=True) as live,
    ):
        for version in (1, 2):
            trainer.fill(version)
            publisher.push(version)
            assert_same(engine, expected(trainer))
            assert live.version == version


def test_a_parameter_that_moved_is_named_and_the_old_version_serves(url: str) -> None:
    trainer, engine = Trainer(), Engine()
    contract = contract_of(trainer, engine)
    trainer.fill(1)
    with (
        ModulePublisher(trainer, url=url) as publisher,
        LiveModel(engine, contract, url=url, derive=Engine.derive) as live,
    ):
        publisher.push(1)
        before = expected(trainer)
        kept = engine.norm.data
        engine.norm.data = kept.clone()
        trainer.fill(2)
        with pytest.raises(errors.HeftError, match='parameter "norm" moved from'):
            publisher.push(2)
        engine.norm.data = kept
        assert live.version == 1 and live.is_serving
        assert_same(engine, before)
        replaced, engine.qkv.weight = engine.qkv.weight, nn.Parameter(engine.qkv.weight.detach())
        with pytest.raises(errors.HeftError, match=r'"qkv\.weight" is another Parameter'):
            publisher.push(2)
        engine.qkv.weight = replaced
        engine.down.data = engine.down.data.float()
        with pytest.raises(errors.HeftError, match=r'"down" was torch\.bfloat16 .* torch\.float32'):
            publisher.push(2)
        assert live.version == 1 and live.is_serving


def test_requests_that_do_not_end_abort_the_round(url: str) -> None:
    trainer, engine = Trainer(), Engine()
    contract = contract_of(trainer, engine)
    trainer.fill(1)
    with (
        ModulePublisher(trainer, url=url) as publisher,
        LiveModel(engine, contract, url=url, drain_s=0.05) as live,
    ):
        publisher.push(1)
        with (
            live.gate.serving(5) as version,
            pytest.raises(errors.HeftError, match="1 requests are still running"),
        ):
            publisher.push(2)
        assert version == 1
        with live.gate.serving(5) as version:
            assert version == 1
        assert publisher.push(2).state == "committed"


class Product(nn.Module):
    """p cannot be written by copies: it is a product of two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.ones(4, 4))
        self.a = nn.Parameter(torch.zeros(4, 4))
        self.c = nn.Parameter(torch.zeros(3))
        self.calls: list[list[str]] = []
        self.is_strict = False

    def load_weights(self, weights: Weights) -> None:
        given = dict(weights)
        self.calls.append(sorted(given))
        if "c" in given:
            self.c.data.copy_(given["c"])
        self.a.data.copy_(given["a"])
        if self.is_strict and not bool((self.p == 1).all()):
            raise RuntimeError("not the contents of a cold start")
        self.p.data.copy_(given["a"] @ given["b"])
        given["a"].zero_()


def test_the_engines_loader_is_called_once_for_each_version(url: str) -> None:
    engine = Product()
    state = {"a": torch.rand(4, 4), "b": torch.rand(4, 4), "c": torch.rand(3)}
    traced = trace(engine, state)  # in the place of its contract
    assert "p" in traced.opaque
    engine.calls.clear()
    engine.is_strict = True
    with (
        ModulePublisher(state, url=url) as publisher,
        LiveModel(engine, traced, url=url) as live,
    ):
        for version in (1, 2, 3):
            for tensor in state.values():
                tensor.uniform_()
            publisher.push(version)
            assert torch.equal(engine.p.data, state["a"] @ state["b"])
            assert torch.equal(engine.a.data, state["a"])
            assert torch.equal(engine.c.data, state["c"])
            assert engine.calls == [["a", "b"]] * version
            assert live.digest("p") == heft.digest(engine.p.detach())


def test_without_a_loader_the_engine_is_refused(url: str) -> None:
    engine = Product()
    state = {"a": torch.rand(4, 4), "b": torch.rand(4, 4), "c": torch.rand(3)}
    contract = trace(engine, state).contract()
    plain = nn.Module()
    for name, parameter in engine.named_parameters():
        plain.register_parameter(name, parameter)
    with pytest.raises(errors.HeftError, match='only the engine\'s loader can write "p"'):
        LiveModel(plain, contract, url=url)


class Blocks(nn.Module):
    """Keeps w as 2x2 blocks while it serves: the loader's element 4 is the kernel's element 2."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(4, 4))

    def load_weights(self, weights: Weights) -> None:
        for _, tensor in weights:
            self.w.data.copy_(tensor)

    def to_blocks(self) -> None:
        w = self.w.data
        w.copy_(w.view(2, 2, 2, 2).transpose(1, 2).reshape(4, 4).clone())

    def from_blocks(self) -> None:
        w = self.w.data
        w.copy_(w.view(2, 2, 2, 2).transpose(1, 2).reshape(4, 4).clone())


def test_a_kernel_layout_is_restored_before_and_packed_after(url: str) -> None:
    engine, state = Blocks(), {"w": torch.arange(16.0).view(4, 4)}
    contract = trace(engine, state).contract()
    with (
        ModulePublisher(state, url=url) as publisher,
        LiveModel(
            engine, contract, url=url, restore=Blocks.from_blocks, post_process=Blocks.to_blocks
        ) as live,
    ):
        for version in (1, 2):
            state["w"] += 100
            publisher.push(version)
            reload = Blocks()
            reload.load_weights([("w", state["w"])])
            reload.to_blocks()
            assert torch.equal(engine.w.data, reload.w.data)
            assert engine.w.data.view(-1)[2] == state["w"].view(-1)[4]
            assert live.digest("w") == heft.digest(engine.w.detach())
        kept = engine.w.data.clone()
        live.drain_s = 0.05
        with live.gate.serving(5), pytest.raises(errors.HeftError, match="still running"):
            publisher.push(3)
        assert torch.equal(engine.w.data, kept)  # what serves is packed, called off or not


class Packed(Blocks):
    """Packs into new memory, under the same name and another shape, and drops what it was."""

    def pack(self) -> None:
        w = self.w.data
        self.w = nn.Parameter(w.view(2, 2, 2, 2).transpose(1, 2).reshape(8, 2).clone())


def test_the_loaders_memory_is_kept_where_packing_makes_new(url: str) -> None:
    engine, state = Packed(), {"w": torch.arange(16.0).view(4, 4)}
    contract = trace(engine, state).contract()
    address = 0
    with (
        ModulePublisher(state, url=url) as publisher,
        LiveModel(engine, contract, url=url, restore="keep", post_process=Packed.pack) as live,
    ):
        for version in (1, 2, 3):
            state["w"] += 100
            publisher.push(version)
            reload = Packed()
            reload.load_weights([("w", state["w"])])
            reload.pack()
            with live.gate.serving(5) as served:
                assert served == version
                assert torch.equal(engine.w.data, reload.w.data)
            assert address in (0, engine.w.data_ptr())  # kernels find it where it was
            address = engine.w.data_ptr()
        kept, engine.w = engine.w, nn.Parameter(engine.w.detach().clone())
        with pytest.raises(errors.HeftError, match='parameter "w" moved from'):
            publisher.push(4)
        engine.w = kept
        publisher.push(4)


def test_a_round_that_is_called_off_packs_the_old_version_again(url: str) -> None:
    state = {"w": torch.arange(16.0).view(4, 4)}
    engines = [Blocks(), Blocks()]
    contract = trace(Blocks(), state).contract()
    with contextlib.ExitStack() as stack:
        lives = [
            stack.enter_context(
                LiveModel(
                    engine,
                    contract,
                    url=url,
                    member=Member(replica=replica),
                    restore=Blocks.from_blocks,
                    post_process=Blocks.to_blocks,
                    drain_s=0.05 if replica else 30,
                )
            )
            for replica, engine in enumerate(engines)
        ]
        publisher = stack.enter_context(ModulePublisher(state, url=url))
        publisher.push(1)
        kept = [engine.w.data.clone() for engine in engines]
        state["w"] += 1
        with lives[1].gate.serving(5), pytest.raises(errors.HeftError, match="still running"):
            publisher.push(2)  # the first engine has been paused and restored by then, or not yet
        for live, engine, before in zip(lives, engines, kept, strict=True):
            with live.gate.serving(5) as version:
                assert version == 1
                assert torch.equal(engine.w.data, before)
        publisher.push(2)
        assert not torch.equal(engines[0].w.data, kept[0])
        assert torch.equal(engines[0].w.data, engines[1].w.data)


class Slots(nn.Module):
    """Experts in slots by a map, as a balancer of experts places them."""

    def __init__(self, order: list[int]) -> None:
        super().__init__()
        self.place(order)

    def place(self, order: list[int]) -> None:
        self.order = order
        self.w = nn.Parameter(torch.zeros(len(order), 6))

    def load_weights(self, weights: Weights) -> None:
        for name, tensor in weights:
            for slot, expert in enumerate(self.order):
                if name == f"experts.{expert}.w":
                    self.w.data[slot].copy_(tensor)


def test_another_expert_map_while_it_runs(url: str) -> None:
    state = {f"experts.{i}.w": torch.zeros(6) for i in range(3)}
    engine = Slots([0, 1, 2])
    with (
        ModulePublisher(state, url=url) as publisher,
        LiveModel(engine, trace(engine, state), url=url) as live,
    ):
        for version, order in enumerate([[0, 1, 2], [2, 1, 0, 0, 1], [1, 0, 2]], start=1):
            if version > 1:
                engine.place(order)  # more slots, elsewhere in memory
                live.renew(trace(engine, state))
                assert live.version == 0
                with pytest.raises(TimeoutError), live.gate.serving(0.01):
                    pass
            for i, tensor in enumerate(state.values()):
                tensor.fill_(10 * version + i)
            publisher.push(version)
            with live.gate.serving(5) as served:
                assert served == version
                assert engine.w[:, 0].tolist() == [10 * version + i for i in order]


def test_a_trainer_declares_what_it_holds_now(url: str) -> None:
    shares = [[0, 1], [2]]
    state = {f"experts.{i}.w": torch.full((6,), float(i)) for i in range(3)}
    engine = Slots([2, 0, 1])

    def held(rank: int) -> Callable[[], Held]:
        def read() -> Held:
            found = Held(rank, 2)
            for expert in shares[rank]:
                name = f"experts.{expert}.w"
                found.add(name, DType.F32, (6,), state[name])
            return found

        return read

    with (
        ModulePublisher(held(0), url=url) as first,
        ModulePublisher(held(1), url=url) as second,
        LiveModel(engine, trace(engine, state), url=url),
    ):

        def push(version: int) -> None:
            with concurrent.futures.ThreadPoolExecutor() as pool:
                for done in [pool.submit(one.push, version) for one in (first, second)]:
                    done.result(60)

        push(1)
        shares[:] = [[1], [0, 2]]
        with pytest.raises(
            errors.HeftError, match=r'"experts.0.w" is gone.*renew\(\) the publisher'
        ):
            first.push(2)
        for tensor in state.values():
            tensor += 10
        for one in (second, first):
            one.renew()
        push(2)
        assert engine.w[:, 0].tolist() == [12, 10, 11]


def test_restore_and_post_process_belong_together(url: str) -> None:
    engine, state = Blocks(), {"w": torch.zeros(4, 4)}
    contract = trace(engine, state).contract()
    with pytest.raises(errors.HeftError, match="belong together"):
        LiveModel(engine, contract, url=url, post_process=Blocks.to_blocks)
    with pytest.raises(errors.HeftError, match="without a derive hook: w_kc"):
        LiveModel(engine, contract, url=url, derived=["w_kc"])


def test_a_failing_hook_says_why(url: str) -> None:
    def derive(model: nn.Module) -> None:
        raise ValueError("no such head")

    trainer, engine = Trainer(), Engine()
    contract = contract_of(trainer, engine)
    with (
        ModulePublisher(trainer, url=url) as publisher,
        LiveModel(engine, contract, url=url, derive=derive) as live,
    ):
        with pytest.raises(errors.HeftError, match="ValueError: no such head"):
            publisher.push(1)
        assert not live.is_serving
        assert isinstance(live.failure, ValueError)


def count_events(n_params: int, url: str) -> int:
    """Python calls, and calls from Python into C, on the thread that takes part, for one push."""
    engine = nn.Module()
    for i in range(n_params):
        engine.register_parameter(f"w{i}", nn.Parameter(torch.zeros(7)))

    def load(weights: Weights) -> None:
        parameters = dict(engine.named_parameters())
        for name, tensor in weights:
            parameters[name].data.copy_(tensor)

    state = {f"w{i}": torch.full((7,), float(i)) for i in range(n_params)}
    contract = trace(engine, state, load=load).contract()
    events: collections.Counter[str] = collections.Counter()

    def profile(frame: object, event: str, arg: object) -> None:
        events[event] += 1

    threading.setprofile(profile)
    try:
        live = LiveModel(engine, contract, url=url, load=load).start()
    finally:
        threading.setprofile(None)
    with live, ModulePublisher(state, url=url) as publisher:
        publisher.push(1)
        lines = []
        for version in (2, 3):
            before = events["call"]
            publisher.push(version)
            lines.append(events["call"] - before)
        assert torch.equal(engine.get_parameter(f"w{n_params - 1}").data, state[f"w{n_params - 1}"])
    return min(lines)


def test_a_round_runs_no_python_for_each_tensor() -> None:
    counts = []
    for n_params in (3, 300):
        with heft.Coordinator() as coordinator:
            counts.append(count_events(n_params, coordinator.url))
    print(f"calls of Python functions in a round: {counts[0]} for 3 tensors, {counts[1]} for 300")
    assert counts[1] < counts[0] + 60  # polls that found nothing differ from run to run


def test_publisher_names_ties_and_copies_what_is_strided(url: str) -> None:
    trainer = Trainer()
    assert aliases_of(trainer) == {"head.weight": "embed.weight"}
    with ModulePublisher(trainer, url=url) as publisher:
        assert [info.name for info in publisher.manifest] == sorted(
            ["embed.weight", "q.weight", "k.weight", "v.weight", "norm", "down"]
        )
        assert publisher.copied_bytes == trainer.down.nbytes
        kept = trainer.norm.data
        trainer.norm.data = kept.clone()
        with pytest.raises(errors.HeftError, match='tensor "norm" moved from'):
            publisher.push(1)


def test_publisher_refuses_a_module_that_is_not_what_it_was(url: str) -> None:
    def refusal(change: Callable[[torch.nn.Module], None]) -> str:
        trainer = Trainer()
        with ModulePublisher(trainer, url=url) as publisher:
            change(trainer)
            with pytest.raises(errors.ArgumentError) as caught:
                publisher.push(1)
        return str(caught.value)

    def replace(trainer: torch.nn.Module) -> None:
        old = trainer.norm  # kept: nothing else may get its address
        trainer.norm = torch.nn.Parameter(old.detach().clone())
        trainer.old = [old]

    def retype(trainer: torch.nn.Module) -> None:
        trainer.norm = torch.nn.Parameter(trainer.norm.detach().double())

    assert 'tensor "norm" moved from' in refusal(replace)
    assert 'tensor "norm" was torch.float32' in refusal(retype)
    assert 'tensor "norm" is gone' in refusal(lambda t: delattr(t, "norm"))
    added = refusal(lambda t: t.register_buffer("scale", torch.ones(2)))
    assert 'tensor "scale" was not there' in added


def test_a_tensor_that_cannot_be_sent_is_named() -> None:
    with pytest.raises(errors.ArgumentError, match=r'tensor "a": torch\.complex64 is no dtype'):
        manifest_of({"a": torch.zeros(2, dtype=torch.complex64)})
    with pytest.raises(errors.ArgumentError, match=r'tensor "b" is torch\.sparse_coo'):
        manifest_of({"b": torch.zeros(2, 2).to_sparse()})


def test_a_model_of_transformers(url: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=128,
        tie_word_embeddings=True,
    )
    torch.manual_seed(1)
    trainer = transformers.LlamaForCausalLM(config).eval()
    engine = transformers.LlamaForCausalLM(config).eval()

    def load(weights: Weights) -> None:
        parameters = dict(engine.named_parameters())
        for name, tensor in weights:
            parameters[name].data.copy_(tensor)

    tokens = torch.arange(12).view(1, 12)
    contract = contract_of(trainer, engine, load=load)
    with (
        ModulePublisher(trainer, url=url) as publisher,
        LiveModel(engine, contract, url=url, load=load) as live,
        torch.no_grad(),
    ):
        for version in (1, 2):
            for parameter in trainer.parameters():
                parameter.normal_(std=0.1)
            publisher.push(version)
            with live.gate.serving(5) as served:
                assert served == version
                assert torch.equal(engine(tokens).logits, trainer(tokens).logits)


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-q"]))
