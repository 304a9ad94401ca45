# SPDX-License-Identifier: Apache-2.0
"""A whole fleet in this process: a coordinator, a publisher, two subscribers on threads."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import signal
import threading
import time
import urllib.request
import weakref
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from models import RECIPE, expected, manifest_of, tensors, zeros_like

import heft
from heft import (
    Bindings,
    Contract,
    Coordinator,
    Hooks,
    Member,
    Publisher,
    Recipe,
    Subscriber,
    errors,
)

DEADLINE_S = 60


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    with Coordinator(deadlines={"poll_ms": 200, "contact_ms": 10_000}) as one:
        yield one


class Engine:
    """One rank that polls on a thread of its own until its block ends."""

    def __init__(self, make: Callable[[Hooks], Subscriber], hooks: Hooks = Hooks()) -> None:  # noqa: B008
        self.calls: list[tuple[object, ...]] = []
        self.raised: list[BaseException] = []
        self.stopped = threading.Event()
        note = self.calls.append
        self.subscriber = make(
            Hooks(
                pause=hooks.pause or (lambda: note(("pause",))),
                flipped=hooks.flipped or (lambda version: note(("flipped", version))),
                resume=hooks.resume or (lambda version: note(("resume", version))),
                locate=hooks.locate,
                load=hooks.load,
            )
        )
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        while not self.stopped.is_set():
            try:
                self.subscriber.poll(200)
            except BaseException as raised:
                self.raised.append(raised)

    def __enter__(self) -> Engine:
        self.thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stopped.set()
        self.thread.join(DEADLINE_S)
        self.subscriber.close()
        assert not self.thread.is_alive()


def by_recipe(url: str, params: dict[str, np.ndarray], tp: int, rank: int, replica: int = 0):
    def make(hooks: Hooks) -> Subscriber:
        recipe, bindings = Recipe.parse(RECIPE, "toy"), Bindings({"tp": tp})
        return Subscriber.create(
            url, recipe, bindings, params, hooks=hooks, member=Member(rank=rank, replica=replica)
        )

    return make


def aligned_like(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Zeros on 64 bytes, as allocators of frameworks give them."""
    out = {}
    for name, array in arrays.items():
        raw = np.zeros(array.nbytes + 64, np.uint8)
        start = -raw.ctypes.data % 64
        out[name] = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    return out


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S} s: {what}"
        threading.Event().wait(0.01)


def push_when_free(publisher: Publisher, version: int) -> None:
    """Members may be letting go of the round that has just failed."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            assert publisher.push(version).state == "committed"
            return
        except errors.BusyError:
            assert time.monotonic() < deadline


@contextlib.contextmanager
def fleet(url: str, source: dict[str, np.ndarray], hooks: Hooks = Hooks()):  # noqa: B008
    """(parameters of two ranks, their engines)."""
    params = [aligned_like(expected(source, 2, rank)) for rank in range(2)]
    with contextlib.ExitStack() as stack:
        makes = [by_recipe(url, params[rank], 2, rank) for rank in range(2)]
        yield params, [stack.enter_context(Engine(make, hooks)) for make in makes]


def assert_holds(params: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    for name, array in wanted.items():
        np.testing.assert_array_equal(params[name], array, err_msg=name)


def test_a_push_brings_every_rank_to_a_version(coordinator: Coordinator) -> None:
    source = tensors(1)
    with (
        fleet(coordinator.url, source) as (params, engines),
        Publisher(coordinator.url, source) as publisher,
    ):
        for version in (1, 2):
            for name, array in tensors(version).items():
                source[name][...] = array
            result = publisher.push(version)
            assert (result.version, result.state, result.n_destinations) == (
                version,
                "committed",
                2,
            )
            assert result.n_bytes > 0
            for rank, engine in enumerate(engines):
                assert_holds(params[rank], expected(source, 2, rank))
                assert engine.subscriber.version == version
                assert engine.subscriber.is_serving
                for name, array in params[rank].items():
                    assert engine.subscriber.digest(name) == heft.digest(array)
        said = heft.client.status(coordinator.url)
        assert said["committed_version"] == 2
        assert len(said["members"]) == 3
    flips = [call for call in engines[0].calls if call[0] != "resume"]
    assert flips == [("pause",), ("flipped", 1), ("pause",), ("flipped", 2)]
    assert ("resume", 2) in engines[0].calls
    assert engines[0].raised == []


def test_a_version_that_is_not_newer_is_refused(coordinator: Coordinator) -> None:
    source = tensors()
    with fleet(coordinator.url, source), Publisher(coordinator.url, source) as publisher:
        publisher.push(5)
        with pytest.raises(errors.VersionError, match=r"4.*5") as caught:
            publisher.push(4)
        assert caught.value.result.version == 4
        assert publisher.push(6).state == "committed"


def test_tensors_may_lie_elsewhere_in_the_next_push(coordinator: Coordinator) -> None:
    source = tensors(1)
    with (
        fleet(coordinator.url, source) as (params, _),
        Publisher(coordinator.url, source) as publisher,
    ):
        publisher.push(1)
        moved = tensors(2)
        publisher.push(2, moved)
        assert_holds(params[1], expected(moved, 2, 1))
        with pytest.raises(errors.ArgumentError, match='"embed" is not given'):
            publisher.push(3, {name: array for name, array in moved.items() if name != "embed"})


def test_what_is_no_version_or_no_source_is_refused_in_words(coordinator: Coordinator) -> None:
    with Publisher(coordinator.url, tensors()) as publisher:
        for version in (None, "1", 1.0, 1 << 63):
            with pytest.raises(errors.ArgumentError, match="versions are integers below"):
                publisher.push(version)
    with pytest.raises(errors.ArgumentError, match="tensors are a list: give a mapping"):
        Publisher(coordinator.url, list(tensors().items()))


def test_python_runs_during_a_push(coordinator: Coordinator) -> None:
    source, released, paused = tensors(), threading.Event(), threading.Event()

    def pause() -> None:
        paused.set()
        assert released.wait(DEADLINE_S)

    with (
        fleet(coordinator.url, source, Hooks(pause=pause)),
        Publisher(coordinator.url, source) as publisher,
    ):
        pushing = threading.Thread(target=publisher.push, args=(1,))
        pushing.start()
        assert paused.wait(DEADLINE_S)  # this thread, and the engines', run while push() blocks
        with pytest.raises(errors.StateError, match="this Publisher is in use by another thread"):
            publisher.push(2)
        released.set()
        pushing.join(DEADLINE_S)
        assert not pushing.is_alive()


def test_ctrl_c_cancels_a_push(coordinator: Coordinator) -> None:
    source, interrupted = tensors(1), threading.Event()

    def is_aborted() -> bool:
        going_on = heft.client.status(coordinator.url)["round"]
        found = heft.client.get(f"/v1/rounds/{going_on}", url=coordinator.url)
        return bool(found["state"] == "aborted")

    def pause() -> None:
        if not interrupted.is_set():
            interrupted.set()
            os.kill(os.getpid(), signal.SIGINT)
            wait_until(is_aborted, "the round is cancelled")

    with (
        fleet(coordinator.url, source, Hooks(pause=pause)) as (params, _),
        Publisher(coordinator.url, source) as publisher,
    ):
        with pytest.raises(KeyboardInterrupt):
            publisher.push(1)
        assert heft.client.status(coordinator.url)["committed_version"] == 0
        assert not params[0]["embed"].any()
        push_when_free(publisher, 2)
        assert_holds(params[0], expected(source, 2, 0))


def test_a_hook_that_raises_fails_the_round_and_says_why(coordinator: Coordinator) -> None:
    source, broken = tensors(1), [True]

    def pause() -> None:
        if broken[0]:
            raise LookupError("the scheduler is gone")

    with (
        fleet(coordinator.url, source, Hooks(pause=pause)) as (params, engines),
        Publisher(coordinator.url, source) as publisher,
    ):
        with pytest.raises(errors.HeftError, match="LookupError: the scheduler is gone") as caught:
            publisher.push(1)
        assert caught.value.result.state == "aborted"
        wait_until(lambda: bool(engines[0].raised or engines[1].raised), "poll raised it")
        assert {type(one) for engine in engines for one in engine.raised} == {LookupError}
        assert not params[0]["embed"].any()
        broken[0] = False
        push_when_free(publisher, 2)
        assert_holds(params[0], expected(source, 2, 0))


def test_memory_lives_as_long_as_members_borrow_it(coordinator: Coordinator) -> None:
    source = tensors()
    params = aligned_like(expected(source))
    gone = [weakref.ref(source["embed"]), weakref.ref(params["embed"])]
    wanted = expected(tensors())
    with Engine(by_recipe(coordinator.url, params, 1, 0)) as engine:
        publisher = Publisher(coordinator.url, source)
        del source, params
        gc.collect()
        assert all(one() is not None for one in gone)
        publisher.push(1)
        np.testing.assert_array_equal(gone[1](), wanted["embed"])
        publisher.close()
        gc.collect()
        assert gone[0]() is None
    del engine
    gc.collect()
    assert gone[1]() is None


def test_a_contract_registers_memory_with_strides(coordinator: Coordinator) -> None:
    source = tensors()
    recipe, bindings = Recipe.parse(RECIPE, "toy"), Bindings()
    made = recipe.synthesize(bindings, manifest_of(source))
    contract = Contract.create(manifest_of(source), recipe, bindings, [made])
    wanted = expected(source)
    params = {name: np.zeros(a.shape[::-1], a.dtype).T for name, a in wanted.items()}

    def make(hooks: Hooks) -> Subscriber:
        return Subscriber.from_contract(coordinator.url, contract, params, hooks=hooks)

    with Engine(make), Publisher(coordinator.url, source) as publisher:
        publisher.push(1)
        assert_holds(params, wanted)
    with pytest.raises(errors.ShapeError, match='"embed"'):
        Subscriber.from_contract(coordinator.url, contract, {**params, "embed": params["embed"].T})
    del params["embed"]
    with pytest.raises(errors.ArgumentError, match='parameter "embed" has no memory'):
        Subscriber.from_contract(coordinator.url, contract, params)


def test_parameters_that_move_are_located_or_named(coordinator: Coordinator) -> None:
    source = tensors()
    recipe, bindings = Recipe.parse(RECIPE, "toy"), Bindings()
    made = recipe.synthesize(bindings, manifest_of(source))
    contract = Contract.create(manifest_of(source), recipe, bindings, [made])
    params, moved = zeros_like(expected(source)), {}

    def make(hooks: Hooks) -> Subscriber:
        return Subscriber.from_contract(coordinator.url, contract, params, hooks=hooks)

    with Engine(make, Hooks(locate=lambda: moved)), Publisher(coordinator.url, source) as publisher:
        publisher.push(1)
        moved["embed"] = np.zeros_like(params["embed"])
        with pytest.raises(errors.HeftError, match="embed"):
            publisher.push(2)
        assert_holds(params, expected(source))


def test_an_engines_own_loader_is_given_what_it_needs(coordinator: Coordinator) -> None:
    tape = heft.Tape()
    src = tape.add_buffer(heft.BufferKind.SOURCE, "w", heft.DType.F32, (4,))
    dst = tape.add_buffer(heft.BufferKind.PARAM, "p", heft.DType.F32, (4,))
    line = ((4,), (1,))
    tape.opaque("engine.sort", [heft.View(dst, 0, *line)], [heft.View(src, 0, *line)], "loader:7")
    source = {"w": np.array([3, 1, 2, 0], np.float32)}
    contract = Contract.create(manifest_of(source), tapes=[tape])
    params = {"p": np.zeros(4, np.float32)}
    given: list[dict[str, tuple[heft.DType, tuple[int, ...]]]] = []

    def load(inputs: dict[str, heft.Memory]) -> None:
        given.append({name: (one.dtype, one.shape) for name, one in inputs.items()})
        params["p"][...] = np.sort(np.frombuffer(inputs["w"].bytes, np.float32))

    def make(hooks: Hooks) -> Subscriber:
        return Subscriber.from_contract(coordinator.url, contract, params, hooks=hooks)

    with pytest.raises(errors.UnsupportedError, match=r"engine\.sort"):
        make(Hooks())
    with Engine(make, Hooks(load=load)), Publisher(coordinator.url, source) as publisher:
        publisher.push(1)
        np.testing.assert_array_equal(params["p"], [0, 1, 2, 3])
    assert given == [{"w": (heft.DType.F32, (4,))}]


def test_an_engine_takes_another_layout_without_leaving(coordinator: Coordinator) -> None:
    source = tensors()
    recipe = Recipe.parse(RECIPE, "toy")

    def layout(tp: int) -> tuple[Contract, dict[str, np.ndarray]]:
        bindings = Bindings({"tp": tp})
        made = [recipe.synthesize(bindings, manifest_of(source), rank=r) for r in range(tp)]
        contract = Contract.create(manifest_of(source), recipe, bindings, made)
        return contract, zeros_like(expected(source, tp))

    (contract, params), (new_contract, new_params) = layout(2), layout(1)
    gone = weakref.ref(params["embed"])
    subscriber = Subscriber.from_contract(coordinator.url, contract, params)
    del params
    with pytest.raises(errors.ShapeError):
        subscriber.renew(new_contract, zeros_like(expected(source, 2)))
    gc.collect()
    assert gone() is not None
    subscriber.renew(new_contract, new_params)
    gc.collect()
    assert gone() is None
    with Engine(lambda hooks: subscriber), Publisher(coordinator.url, source) as publisher:
        publisher.push(1)
        assert_holds(new_params, expected(source))


def test_a_child_that_is_forked_closes_nothing_of_its_parent(coordinator: Coordinator) -> None:
    source = tensors()
    with fleet(coordinator.url, source), Publisher(coordinator.url, source) as publisher:
        child = os.fork()
        if child == 0:  # what a worker of a data loader does at its end
            publisher.close()
            coordinator.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert publisher.push(1).state == "committed"


def test_a_fleet_that_does_not_fit_is_refused_in_preflight(coordinator: Coordinator) -> None:
    source = tensors()
    del source["layers.1.up"]
    with (
        fleet(coordinator.url, tensors()),
        Publisher(coordinator.url, source) as publisher,
        pytest.raises(errors.CallerError, match=r"layers\.1"),
    ):
        publisher.push(1)


def test_a_coordinator_drains_stops_and_remembers(tmp_path) -> None:
    state = tmp_path / "state.json"
    source = tensors()
    with Coordinator(state_file=state) as coordinator:
        with fleet(coordinator.url, source), Publisher(coordinator.url, source) as publisher:
            publisher.push(7)
        coordinator.drain(5000)
        coordinator.stop()
        coordinator.stop()
    with pytest.raises(errors.StateError, match="this Coordinator is closed"):
        coordinator.drain()
    with Coordinator(state_file=state) as coordinator:
        assert heft.client.status(coordinator.url)["committed_version"] == 7


@pytest.mark.parametrize("no_feed", [False, True])
def test_an_engine_that_joins_late_is_fed_by_one_that_serves(no_feed: bool) -> None:
    source = tensors()
    late = [aligned_like(expected(source, 2, rank)) for rank in range(2)]
    with (
        Coordinator(no_feed=no_feed) as coordinator,
        fleet(coordinator.url, source),
        Publisher(coordinator.url, source) as publisher,
    ):
        publisher.push(3)
        with contextlib.ExitStack() as stack:
            engines = [
                stack.enter_context(
                    Engine(by_recipe(coordinator.url, late[rank], 2, rank, replica=1))
                )
                for rank in range(2)
            ]
            if no_feed:
                assert not any(e.subscriber.is_serving for e in engines)
                publisher.push(3)
            wait_until(lambda: all(e.subscriber.is_serving for e in engines), "late join")
            for rank in range(2):
                assert_holds(late[rank], expected(source, 2, rank))


def test_a_coordinator_refuses_what_is_not_safe() -> None:
    with pytest.raises(errors.ArgumentError, match=r"0\.0\.0\.0"):
        Coordinator(address="0.0.0.0")
    with pytest.raises(errors.ArgumentError, match='"flop_ms" is no option; there are: address'):
        Coordinator(deadlines={"flop_ms": 5})


def test_a_coordinator_that_cannot_be_reached_is_a_peer_error() -> None:
    with Coordinator() as coordinator:
        url = coordinator.url
    with pytest.raises(errors.PeerError, match="127"):
        Publisher(url, tensors(), member=Member(deadline_ms=500))
    with pytest.raises(errors.PeerError):
        heft.client.status(url, deadline_ms=500)


def test_a_fleet_is_waited_for_or_who_is_there_is_named(coordinator: Coordinator) -> None:
    with pytest.raises(errors.TimeoutError, match=r"0 of 1 .*after 0\.1 s: nobody has registered"):
        heft.client.await_destinations(1, coordinator.url, timeout_s=0.1)
    with fleet(coordinator.url, tensors()):
        heft.client.await_destinations(2, coordinator.url)
        with pytest.raises(errors.TimeoutError, match=r"2 of 3 .*destination\.heft\.0\.1"):
            heft.client.await_destinations(3, coordinator.url, timeout_s=0.1)


def test_a_coordinator_that_starts_late_is_waited_for() -> None:
    with Coordinator() as coordinator:
        url = coordinator.url
    with pytest.raises(errors.PeerError):
        heft.client.await_destinations(0, url, timeout_s=0.1)
    waiting = threading.Thread(target=heft.client.await_destinations, args=(0, url))
    waiting.start()
    with Coordinator(port=int(url.rsplit(":", 1)[1])):
        waiting.join(60)
        assert not waiting.is_alive()


def test_requests_are_json_and_refusals_are_exceptions(coordinator: Coordinator) -> None:
    with urllib.request.urlopen(f"{coordinator.url}/v1/status", timeout=30) as reply:
        assert (
            json.load(reply)["committed_version"]
            == heft.client.get("/v1/status", url=coordinator.url)["committed_version"]
        )
    with pytest.raises(errors.HeftError) as caught:
        heft.client.post("/v1/recover", {"colour": "red"}, url=coordinator.url)
    assert "colour" in str(caught.value)
    with pytest.raises(errors.NotFoundError):
        heft.client.get("/v1/nothing", url=coordinator.url)


def test_log_lines_go_to_logging(caplog) -> None:
    heft.log.to_logging(logging.INFO)
    try:
        with caplog.at_level(logging.INFO, "heft"):
            source = tensors()
            with (
                Coordinator() as one,
                fleet(one.url, source),
                Publisher(one.url, source) as publisher,
            ):
                publisher.push(1)
    finally:
        heft.log.to_stderr()
    records = [record for record in caplog.records if record.name.startswith("heft.")]
    assert records
    assert all(record.levelno >= logging.INFO for record in records)
    assert any("committed" in record.getMessage() for record in records)
    assert any(record.heft for record in records)


def test_settings_come_from_files_and_variables(tmp_path, monkeypatch) -> None:
    (tmp_path / "heft.conf").write_text("# a comment\npoll-ms = 250\nurl = http://127.0.0.1:1\n")
    monkeypatch.setenv("HEFT_FLIP_MS", "5000")
    monkeypatch.setenv("HEFT_POL_MS", "1")
    with heft.Config(tmp_path / "heft.conf") as config:
        assert config["poll-ms"][1:3] == ("250", 250)
        assert config["poll-ms"].origin.name == "FILE"
        assert config["poll-ms"].line == 2
        assert (config["flip-ms"].number, config["flip-ms"].where) == (5000, "HEFT_FLIP_MS")
        config.set("flip-ms", "6000")
        assert config["flip-ms"].origin.name == "FLAG"
        assert any("HEFT_POL_MS" in line for line in config.warnings)
        with pytest.raises(errors.NotFoundError, match="poll-ms"):
            config["pol-ms"]
    assert "poll-ms" in {knob.name for knob in heft.knobs()}
    (tmp_path / "bad.conf").write_text("colour = red\n")
    with pytest.raises(errors.ArgumentError, match=r"bad\.conf:1"):
        heft.Config(tmp_path / "bad.conf")


A = np.arange(40, dtype=np.float32).reshape(10, 4)
B = A + 1000


def box(name: str, array: np.ndarray, tensor: str, begin: list[int], replica: int = 0):
    part = {"tensor": tensor, "shape": [10, 4], "begin": begin, "replica": replica}
    return {"name": name, "dtype": "F32", "shape": list(array.shape), "part": part}, array


CROSSED = [  # what one rank calls "a" is "b" to the other
    [box("a", A[:5], "a", [0, 0]), box("b", B[:5], "b", [0, 0])],
    [box("a", B[5:], "b", [5, 0]), box("b", A[5:], "a", [5, 0])],
]
OF_RANKS = [  # a name as placements give them
    [box("rank-1.a", A[:5], "a", [0, 0]), box("b", B, "b", [0, 0])],
    [box("a", A[5:], "a", [5, 0])],
]
CUT = [  # a copy that crosses the borders of what it copies
    [box("a", A[:, :2], "a", [0, 0]), box("b", B, "b", [0, 0])],
    [box("a", A[:, 2:], "a", [0, 2])],
    [box("a", A[3:7], "a", [3, 0], 1)],
]


@pytest.mark.parametrize("ranks", [CROSSED, OF_RANKS, CUT])
def test_boxes_arrive_whatever_ranks_call_them(coordinator: Coordinator, ranks) -> None:
    wanted = {"a": A, "b": B}
    params = aligned_like(wanted)
    recipe = Recipe.parse('"a" [n, d] -> "a" [n, d]\n"b" [n, d] -> "b" [n, d]\n', "two")

    def make(hooks: Hooks) -> Subscriber:
        return Subscriber.create(coordinator.url, recipe, Bindings({}), params, hooks=hooks)

    states: list[str] = []
    with Engine(make), contextlib.ExitStack() as stack:
        for rank, held in enumerate(ranks):
            text = {"heft_manifest": 1, "side": "source", "tensors": [entry for entry, _ in held]}
            data = {entry["name"]: np.ascontiguousarray(array) for entry, array in held}
            manifest = heft.Manifest.from_json(json.dumps(text))
            of = Member(rank=rank, deadline_ms=DEADLINE_S * 1000)
            n = len(ranks)
            publisher = Publisher(coordinator.url, data, manifest=manifest, member=of, n_ranks=n)
            stack.enter_context(publisher)
            stack.callback(
                start(lambda publisher=publisher: states.append(publisher.push(1).state)).join
            )
    assert states == ["committed"] * len(ranks)
    assert_holds(params, wanted)


def start(call: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=call)
    thread.start()
    return thread
