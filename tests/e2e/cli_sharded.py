# SPDX-License-Identifier: Apache-2.0
"""A folder of ranks that hold parts of whole tensors (FSDP): the same as converting the whole, byte for byte."""
import unittest

from cli_support import SIZES, Case, read_checkpoint, run, write_dense_model, write_safetensors

LETS = ("--recipe", "hf-to-engine-dense", "--let", "tp=2")


def part(tensor, rank, n, dim):
    """What FSDP gives a rank: an even share rounded up, so the last ranks have less, or nothing."""
    dtype, shape, raw = tensor
    if dim >= len(shape):
        return tensor
    each = -(-shape[dim] // n)
    begin, end = min(rank * each, shape[dim]), min((rank + 1) * each, shape[dim])
    inner = SIZES[dtype]
    for extent in shape[dim + 1 :]:
        inner *= extent
    outer = 1
    for extent in shape[:dim]:
        outer *= extent
    row = shape[dim] * inner
    cut = b"".join(raw[o * row + begin * inner : o * row + end * inner] for o in range(outer))
    return dtype, (*shape[:dim], end - begin, *shape[dim + 1 :]), cut


class Sharded(Case):
    def setUp(self):
        super().setUp()
        self.model = self.dir / "model"
        write_dense_model(self.model)
        self.tensors = read_checkpoint(self.model)
        self.whole = self.dir / "whole"
        self.heft("convert", self.model, self.whole, *LETS)

    def shards(self, n, dim=0, change=None):
        folder = self.dir / f"ranks-{n}-{dim}"
        for rank in range(n):
            tensors = {name: part(tensor, rank, n, dim) for name, tensor in self.tensors.items()}
            tensors = change(rank, tensors) if change is not None else tensors
            (folder / f"rank-{rank}").mkdir(parents=True)
            write_safetensors(folder / f"rank-{rank}" / "model.safetensors", tensors)
        (folder / "config.json").write_text((self.model / "config.json").read_text())
        return folder

    def ranks(self, folder):
        return {path.name: read_checkpoint(path) for path in sorted(folder.glob("rank-*"))}

    def test_rows_over_any_number_of_ranks(self):
        for n in (1, 2, 3, 7, 16):
            folder, out, back = self.shards(n), self.dir / f"out-{n}", self.dir / f"back-{n}"
            words = (*LETS, "--sharded", 0)
            self.heft("check", folder, *words)
            self.heft("convert", folder, out, *words)
            self.assertEqual(self.ranks(out), self.ranks(self.whole), n)
            self.heft("verify", folder, out, *words)
            self.heft("convert", out, back, *words, "--reverse", "--like", folder)
            want = {f"{rank}.{name}": t for rank, tensors in self.ranks(folder).items() for name, t in tensors.items()}
            self.assertEqual(read_checkpoint(back), want)

    def test_columns_with_whole_vectors_on_each_rank(self):
        folder, out = self.shards(3, 1), self.dir / "out"
        self.heft("convert", folder, out, *LETS, "--sharded", 1)
        self.assertEqual(self.ranks(out), self.ranks(self.whole))

    def test_a_rank_may_have_no_part(self):
        def drop(rank, tensors):
            return {name: t for name, t in tensors.items() if t[2]}

        folder, out = self.shards(16, change=drop), self.dir / "out"
        self.heft("convert", folder, out, *LETS, "--sharded", 0)
        self.assertEqual(self.ranks(out), self.ranks(self.whole))

    def test_a_source_says_which_rank_it_is_read_from(self):
        folder = self.shards(2)
        said = self.heft("explain", "model.norm.weight", folder, *LETS, "--sharded", 0, "--rank", 0).stdout
        self.assertIn("rank-0.model.norm.weight", said)
        self.assertIn("rank-1.model.norm.weight", said)

    def test_a_missing_rank_shows(self):
        folder = self.shards(3)
        for path in (folder / "rank-2").iterdir():
            path.unlink()
        (folder / "rank-2").rmdir()
        done = run("check", folder, *LETS, "--sharded", 0)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("embed_tokens", done.stdout + done.stderr)

    def test_what_is_no_shard_is_refused(self):
        def turn(rank, tensors):
            dtype, shape, raw = tensors["model.embed_tokens.weight"]
            tensors["model.embed_tokens.weight"] = (dtype, shape[::-1] if rank == 1 else shape, raw)
            return tensors

        done = run("check", self.shards(2, change=turn), *LETS, "--sharded", 0)
        self.assertIn('"model.embed_tokens.weight": ranks 0 and 1 hold parts that differ', done.stdout + done.stderr)
        done = run("check", self.model, *LETS, "--sharded", 0)
        self.assertIn("is no rank's tensor", done.stdout + done.stderr)
        done = run("check", self.model, self.model, "--sharded", 0)
        self.assertIn("--sharded needs --recipe", done.stderr)

    def test_in_front_of_a_chain(self):
        first = self.dir / "first.heft"
        first.write_text('"{name*}" [...] -> "m.{name*}" [...]\n')
        second = self.dir / "second.heft"
        second.write_text('"m.{name*}" [...] -> "{name*}" [...]\n')
        folder, out = self.shards(3), self.dir / "out"
        chain = ("--recipe", first, "--recipe", second)
        self.heft("convert", folder, out, *chain, "--sharded", 0)
        self.assertEqual(read_checkpoint(out), self.tensors)


if __name__ == "__main__":
    unittest.main()
