"""The main mapping on a real model, judged by NumPy and by the model itself.

Hugging Face -> engine layout (tp = 1 and 3) -> Hugging Face is byte-identical; every fused, split, padded and tied
parameter equals an independent NumPy construction; each planted fault in the recipe or the files is found and named.
Hugging Face -> MaxText (scanned and not) -> Hugging Face is byte-identical as well, and so is MaxText -> engine layout.
Megatron's ranks -> Hugging Face -> Megatron's ranks is byte-identical over tensor and pipeline parallel sizes, and in one
step to the engine's ranks.

    real_model.py HEFT MODEL RECIPE
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import numpy as np

import real_megatron

HEFT, MODEL, RECIPE = (pathlib.Path(arg).resolve() for arg in sys.argv[1:4])
CONFIG = json.loads((MODEL / "config.json").read_text())
L0 = "model.layers.0."
checks = 0


def expect(condition, what):
    global checks
    checks += 1
    if not condition:
        sys.exit(f"real_model: failed: {what}")


def heft(*args, code=0):
    done = subprocess.run([HEFT, *map(str, args)], capture_output=True, text=True, timeout=300)
    if done.returncode != code:
        sys.exit(f"heft {' '.join(map(str, args))}: exit {done.returncode}, expected {code}\n{done.stdout}\n{done.stderr}")
    return done.stdout + done.stderr


def read(folder):
    """name -> (shape, uint16 array), read without heft or any safetensors library."""
    tensors = {}
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        raw = np.memmap(path, dtype=np.uint8, mode="r")
        n = int(raw[:8].view("<u8")[0])
        for name, info in json.loads(bytes(raw[8 : 8 + n])).items():
            if name != "__metadata__":
                begin, end = (8 + n + offset for offset in info["data_offsets"])
                tensors[name] = raw[begin:end].view("<u2").reshape(info["shape"])
    return tensors


def same(a, b):
    return a.shape == b.shape and np.array_equal(a, b)


def rows(weight, rank, parts):
    return np.split(weight, parts, axis=0)[rank]


def expected_rank(source, tp, rank):
    """The engine's parameters of one rank, built the slow and obvious way."""
    kv_parts = min(tp, CONFIG["num_key_value_heads"])
    kv_rank = rank * kv_parts // tp
    out = {"model.norm.weight": source["model.norm.weight"]}
    for layer in range(CONFIG["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        get = lambda kind: source[f"{p}{kind}.weight"]  # noqa: E731
        out[p + "self_attn.qkv_proj.weight"] = np.concatenate(
            [
                rows(get("self_attn.q_proj"), rank, tp),
                rows(get("self_attn.k_proj"), kv_rank, kv_parts),
                rows(get("self_attn.v_proj"), kv_rank, kv_parts),
            ]
        )
        out[p + "self_attn.o_proj.weight"] = np.split(get("self_attn.o_proj"), tp, axis=1)[rank]
        out[p + "mlp.gate_up_proj.weight"] = np.concatenate(
            [rows(get("mlp.gate_proj"), rank, tp), rows(get("mlp.up_proj"), rank, tp)]
        )
        out[p + "mlp.down_proj.weight"] = np.split(get("mlp.down_proj"), tp, axis=1)[rank]
        for norm in ("input_layernorm", "post_attention_layernorm"):
            out[f"{p}{norm}.weight"] = get(norm)
    return out


def padded_rows(weight, total, rank, tp):
    full = np.zeros((total, weight.shape[1]), dtype=weight.dtype)
    full[: len(weight)] = weight
    return rows(full, rank, tp)


def check_layout(source, folder, tp):
    for rank in range(tp):
        actual = read(folder / f"rank-{rank}" if tp > 1 else folder)
        expected = expected_rank(source, tp, rank)
        embed = actual["model.embed_tokens.weight"]
        expected["model.embed_tokens.weight"] = padded_rows(
            source["model.embed_tokens.weight"], len(embed) * tp, rank, tp
        )
        if "lm_head.weight" in actual:
            expected["lm_head.weight"] = expected["model.embed_tokens.weight"]
        expect(set(actual) == set(expected), f"tp={tp} rank {rank}: names {set(actual) ^ set(expected)}")
        for name, value in expected.items():
            expect(same(actual[name], value), f"tp={tp} rank {rank}: {name} differs from NumPy's")


def round_trip(source, work, tp):
    args = ["--recipe", RECIPE, "--let", f"tp={tp}"]
    out, back = work / f"tp{tp}", work / f"back{tp}"
    heft("check", MODEL, *args)
    heft("convert", MODEL, out, *args)
    check_layout(source, out, tp)
    heft("verify", MODEL, out, *args)
    heft("convert", out, back, *args, "--reverse", "--like", MODEL)
    returned = read(back)
    expect(set(returned) == set(source), f"tp={tp}: names after the way back")
    for name, value in source.items():
        expect(same(returned[name], value), f"tp={tp}: {name} after the way back")
    return out


def through_maxtext(source, work, engine):
    """To a trainer's tree and back, and from the tree straight to the engine's ranks."""
    recipes, config = RECIPE.parent, ["--config", MODEL / "config.json"]
    for scan in ("true", "false"):
        tree, back = work / f"tree-{scan}", work / f"from-tree-{scan}"
        heft("convert", MODEL, tree, "--recipe", recipes / "hf-to-maxtext-llama3.heft", "--let", f"scan={scan}")
        names = read(tree)
        expect(len(names) == (11 if scan == "true" else len(source)), f"a tree with scan={scan} has {len(names)} tensors")
        heft("convert", tree, back, "--recipe", recipes / "maxtext-to-hf-llama3.heft", "--let", "wire=bf16", *config)
        returned = read(back)
        expect(set(returned) == set(source), f"scan={scan}: names after the way back")
        for name, value in source.items():
            expect(same(returned[name], value), f"scan={scan}: {name} after the way back")
    lets = ["--let", "wire=bf16", "--let", "tp=3"]
    heft("convert", work / "tree-true", work / "straight", "--recipe", recipes / "maxtext-to-engine-llama3.heft", *lets, *config)
    for rank in range(3):
        straight, stepwise = (read(folder / f"rank-{rank}") for folder in (work / "straight", engine))
        expect(set(straight) == set(stepwise), f"names straight from the tree, rank {rank}")
        for name, value in stepwise.items():
            expect(same(straight[name], value), f"straight from the tree: {name} of rank {rank}")
    for folder in ("tree-true", "tree-false", "from-tree-true", "from-tree-false", "straight"):
        shutil.rmtree(work / folder)


def equal_tensors(got, want, what):
    expect(set(got) == set(want), f"{what}: names {sorted(set(got) ^ set(want))[:4]}")
    for name, value in want.items():
        expect(same(got[name], value), f"{what}: {name}")


def through_megatron(source, work, engine):
    """From Megatron's ranks and back, and in a chain from them straight to the engine's ranks."""
    name, config = "megatron-to-hf-dense", ["--config", MODEL / "config.json"]
    recipe = ["--recipe", RECIPE.parent / f"{name}.heft"]
    for tp, pp, dp in ((1, 1, 1), (3, 1, 1), (1, 2, 1), (3, 2, 1), (1, 3, 2)):
        tree, out, back = (work / f"{what}-{tp}-{pp}" for what in ("megatron", "hf", "again"))
        ranks = real_megatron.ranks(source, CONFIG, tp, pp, dp)
        real_megatron.write(tree, ranks)
        lets = ["tp=%d" % tp, "pp=%d" % pp, "dp=%d" % dp, "wire=source"]
        args = [word for let in lets for word in ("--let", let)]
        heft("convert", tree, out, *recipe, *args, *config)
        equal_tensors(read(out), source, f"from Megatron's tp={tp} pp={pp} dp={dp}")
        heft("convert", out, back, *recipe, *args, *config, "--reverse", "--like", tree)
        want = {f"rank-{number}.{key}": value for number, tensors in ranks.items() for key, value in tensors.items()}
        equal_tensors(read(back), want, f"back to Megatron's tp={tp} pp={pp} dp={dp}")
        if (tp, pp) == (3, 2):
            both = [word for let in lets for word in ("--let", f"{name}.{let}")] + ["--let", f"{RECIPE.stem}.tp=3"]
            heft("convert", tree, work / "chain", *recipe, "--recipe", RECIPE, *both, *config)
            for rank in range(3):
                straight, stepwise = (read(folder / f"rank-{rank}") for folder in (work / "chain", engine))
                equal_tensors(straight, stepwise, f"from Megatron to the engine's rank {rank}")
            shutil.rmtree(work / "chain")
        for folder in (tree, out, back):
            shutil.rmtree(folder)


def mutated(work, name, edit):
    text = RECIPE.read_text()
    changed = edit(text)
    expect(changed != text, f"the fault {name} could be planted")
    path = work / f"{name}.heft"
    path.write_text(changed)
    return path


def drop_rule(text, source):
    """Remove the rule whose source pattern ends with this name."""
    return re.sub(rf'^(optional )?"[^"]*{re.escape(source)}"[^\n]*\n(?:[ \t]+[^\n]*\n)*', "", text, count=1, flags=re.M)


def double_rule(text, source):
    match = re.search(rf'^(optional )?"[^"]*{re.escape(source)}"[^\n]*\n(?:[ \t]+[^\n]*\n)*', text, flags=re.M)
    return text[: match.end()] + match.group(0) + text[match.end() :]


def swap_halves(text):
    marks = {"(0:2": "(1:2", "(1:2": "(0:2"}
    return re.sub(r"\([01]:2", lambda m: marks[m.group(0)], text)


def planted_faults(work, out):
    args = ["--let", "tp=3"]
    path = mutated(work, "removed", lambda t: drop_rule(t, "v_proj.weight"))
    said = heft("check", MODEL, "--recipe", path, *args, code=1)
    expect(f"{L0}self_attn.v_proj.weight" in said and f"{L0}self_attn.qkv_proj.weight" in said, f"removed rule: {said}")

    path = mutated(work, "doubled", lambda t: double_rule(t, "k_proj.weight"))
    said = heft("check", MODEL, "--recipe", path, *args, code=1)
    expect("qkv_proj.weight" in said, f"duplicated rule: {said}")

    path = mutated(work, "shifted", lambda t: t.replace("@q_rows/qkv_rows", "@{q_rows - 1}/qkv_rows", 1))
    said = heft("check", MODEL, "--recipe", path, *args, code=1)
    expect(f'"{L0}self_attn.qkv_proj.weight"' in said and "[191..192, 0..576)" in said, f"off by one: {said}")

    path = mutated(work, "misspelt", lambda t: t.replace("o_proj.weight", "o_prj.weight", 1))
    said = heft("check", MODEL, "--recipe", path, *args, code=1)
    expect("o_prj" in said or "o_proj.weight" in said, f"misspelt name: {said}")

    path = mutated(work, "swapped", swap_halves)
    heft("check", MODEL, "--recipe", path, *args)
    said = heft("verify", MODEL, out, "--recipe", path, *args, code=1)
    expect("gate_up_proj.weight" in said, f"swapped gate and up: {said}")


def planted_file_faults(work, out):
    args = ["--recipe", RECIPE, "--let", "tp=3"]
    broken = work / "broken"
    shutil.copytree(out, broken)
    path = broken / "rank-1" / "model.safetensors"
    raw = np.memmap(path, dtype=np.uint8, mode="r+")
    n = int(raw[:8].view("<u8")[0])
    header = json.loads(bytes(raw[8 : 8 + n]))
    name = "model.layers.7.mlp.gate_up_proj.weight"
    begin, end = (8 + n + offset for offset in header[name]["data_offsets"])
    half = (end - begin) // 2
    first = raw[begin : begin + half].copy()
    raw[begin : begin + half] = raw[begin + half : end]
    raw[begin + half : end] = first
    raw.flush()
    said = heft("verify", MODEL, broken, *args, code=1)
    expect(name in said and "rank 1" in said, f"swapped halves in a file: {said}")

    short = work / "short"
    short.mkdir()
    shutil.copy(MODEL / "config.json", short)
    with open(MODEL / "model.safetensors", "rb") as full, open(short / "model.safetensors", "wb") as cut:
        cut.write(full.read(1 << 20))
    said = heft("check", short, *args, code=3)
    expect("model.safetensors" in said, f"truncated file: {said}")


def main():
    work = pathlib.Path(tempfile.mkdtemp(prefix="heft-real-"))
    try:
        source = read(MODEL)
        out = None
        for tp in (1, 3):
            out = round_trip(source, work, tp)
        through_maxtext(source, work, out)
        through_megatron(source, work, out)
        planted_faults(work, out)
        planted_file_faults(work, out)
    finally:
        shutil.rmtree(work)
    print(f"real_model: {checks} checks on {len(source)} tensors")


if __name__ == "__main__":
    main()
