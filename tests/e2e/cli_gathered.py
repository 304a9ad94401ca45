# SPDX-License-Identifier: Apache-2.0
"""Quantisation blocks whose rows lie with several sources: engines run the kernel on what all of them send."""
import json
import os
import random
import struct
import unittest
import unittest.mock
import urllib.request

from cli_price import LINKS, rows
from cli_rounds import TP
from cli_sources import Fleet
from cli_support import read_checkpoint, run, write_safetensors

ROWS, COLUMNS, LAYERS = TP * 300, 200, 2  # a last block of 44 rows, one of 72 columns
RECIPE = f"""
let tp = {TP}
ranks tp as rank
dtype source
"l.{{n}}.weight" [({{rank}}:tp o), i]
  -> "l.{{n}}.weight" [o, i], "l.{{n}}.weight_scale_inv" [o, i] by fp8_quantise(128, 128) in f8_e4m3
"whole" [o, i] -> "whole" [o, i], "whole_scale" [o, i] by fp8_quantise(128, 128) in f8_e4m3
"plain" [({{rank}}:tp o), i] -> "plain" [o, i]
"norm" [d] -> "norm" [d]
"""


class Quantising(Fleet):
    coordinator_args = ("--relay", "on")

    def setUp(self):
        self.recipe = ()
        super().setUp()

    def write_model(self, folder, seed=1):
        recipe = self.dir / "fp8.heft"
        recipe.write_text(RECIPE)
        self.recipe = ("--recipe", recipe)
        rng = random.Random(seed)

        def floats(*shape):
            count = 1
            for extent in shape:
                count *= extent
            bits = [rng.getrandbits(1) << 15 | rng.randrange(0x3000, 0x4200) for _ in range(count)]
            return "BF16", shape, struct.pack(f"<{count}H", *bits)

        tensors = {f"l.{layer}.weight": floats(ROWS, COLUMNS) for layer in range(LAYERS)}
        tensors |= {"whole": floats(130, 130), "plain": floats(TP * 7, 3), "norm": floats(8)}
        folder.mkdir()
        write_safetensors(folder / "model.safetensors", tensors)

    def grow(self, n_ranks, version, model):
        """The inputs of kernels need staging that is not there: it gets a new place, and all push again; by
        themselves, unless a source found the place gone before the destination could say why."""
        children = [self.start(rank, n_ranks, version, model=model) for rank in range(n_ranks)]
        ended = [self.finish(child) for child in children]
        if any(code != 0 for code, _, _ in ended):
            self.assertEqual({code for code, _, _ in ended}, {5}, ended)
            self.assertIn("staging has a new place", ended[0][2])
            result = self.push(n_ranks, version, model=model)
        else:
            result = ended[0][1]
        with urllib.request.urlopen(self.url + "/v1/rounds", timeout=60) as reply:
            states = {r["round"]: r["state"] for r in json.loads(reply.read())["rounds"]}
        number = f"{result['round_epoch']}.{result['round_seq'] - 1}"
        self.assertEqual(states[number], "aborted")
        return result

class Gathered(Quantising):
    def test_any_number_of_sources(self):
        trained = self.dir / "trained"
        self.write_model(trained, seed=2)
        alone = self.push(1, 1)
        self.expect_weights(self.model)
        result = self.grow(2, 2, trained)  # "whole" alone: each rank's half of a layer is one source's
        self.assertEqual(result["bytes"], alone["bytes"] + TP * (130 * 130 - 4 * 4))  # bf16 instead of codes and scales
        self.expect_weights(trained)
        result = self.grow(4, 3, self.model)
        self.expect_weights(self.model)
        self.push(4, 4, model=trained)
        self.expect_weights(trained)
        self.push(3, 5, model=self.model)
        self.expect_weights(self.model)
        self.push(11, 6, model=trained)
        self.expect_weights(trained)
        self.push(1, 7)
        self.expect_weights(self.model)
        for process in self.engines:
            self.assertEqual(process.stop(), 0, process.errors)

    def test_in_place_there_is_no_room_for_inputs(self):
        engine = self.engines.pop()
        self.assertEqual(engine.stop(), 0)
        self.engines.append(self.serve(TP - 1, "--in-place"))
        for code, _, errors in [self.finish(child) for child in [self.start(rank, 4, 1) for rank in range(4)]]:
            self.assertEqual(code, 5)
            self.assertIn(
                'parameter "l.0.weight": no source holds all that heft.fp8_quantise/1 needs, and in place there is no staging '
                "for what several send",
                errors,
            )

    def test_relays_forward_inputs(self):
        relayed = [self.serve(rank, "--replica", 1) for rank in range(TP)]
        self.grow(4, 1, self.model)
        of_relay = {m["id"]: m["relay"] for m in self.status()["members"] if "relay" in m}
        self.assertEqual(of_relay, {f"destination.heft.1.{rank}": f"destination.heft.0.{rank}" for rank in range(TP)})
        for process in relayed:
            process.wait_event("live", version=1)
        self.engines += relayed
        self.expect_weights(self.model)

    def test_who_joins_late_waits_for_a_push(self):
        self.grow(4, 1, self.model)
        late = [self.serve(rank, "--replica", 1) for rank in range(TP)]
        self.grow(4, 1, self.model)  # nobody can feed them; the sources bring the version that is committed
        for process in late:
            process.wait_event("live", version=1)
        with urllib.request.urlopen(self.url + "/metrics", timeout=60) as reply:
            self.assertIn('heft_feeds_total{outcome="committed"} 0', reply.read().decode())
        self.engines += late
        self.expect_weights(self.model)

    def test_what_receivers_run_is_priced(self):
        folder = self.dir / "ranks"
        for rank in range(4):
            (folder / f"rank-{rank}").mkdir(parents=True)
            tensors = {name: rows(tensor, rank, 4) for name, tensor in read_checkpoint(self.model).items()}
            write_safetensors(folder / f"rank-{rank}" / "model.safetensors", tensors)
        links = self.dir / "links.json"
        links.write_text(json.dumps(LINKS))
        words = ("plan", folder, *self.recipe, "--sharded", 0, "--links", links)
        priced = self.json(*words)
        inputs = 2 * (LAYERS * ROWS * COLUMNS + TP * 130 * 130)
        self.assertEqual(priced["kernel_input_bytes"], inputs)
        self.assertEqual(priced["price"]["bytes"], inputs + 2 * TP * 7 * 3 + TP * 8 * 2)
        self.assertRegex(self.heft(*words).stdout, r"(?m)^kernel inputs +.* of several senders")


class InChunks(Quantising):
    def setUp(self):
        if "ucx (" not in run("version").stdout:
            self.skipTest("OpenUCX is not on this host")
        ucx = unittest.mock.patch.dict(os.environ, {"HEFT_TRANSPORT": "ucx", "HEFT_UCX_ALLOW_TCP": "1"})
        ucx.start()
        self.addCleanup(ucx.stop)
        super().setUp()

    def test_inputs_come_packed_and_are_forwarded(self):
        relayed = [self.serve(rank, "--replica", 1) for rank in range(TP)]
        self.grow(3, 1, self.model)
        self.engines += relayed
        self.expect_weights(self.model)
        self.push(3, 2)
        self.expect_weights(self.model)


if __name__ == "__main__":
    unittest.main()
