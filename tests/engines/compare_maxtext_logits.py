#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""MaxText's model and transformers' model with the weights that `heft convert` makes of it: the same logits?

Small sizes, random weights, float32, the CPU. This does not depend on MaxText's converter. Needs what
compare_maxtext.py needs.

    compare_maxtext_logits.py --maxtext CHECKOUT [--heft HEFT] [FAMILY ...]
"""
import argparse
import pathlib
import shutil
import tempfile

import compare_maxtext as base

TOKENS = 16
SETTINGS = {
    "pure_nnx": "true",
    "enable_nnx": "true",
    "dtype": "float32",
    "attention": "dot_product",
    "matmul_precision": "highest",
    "sparse_matmul": "false",
    "capacity_factor": -1.0,
}


def maxtext_logits(mt, config, tokens):
    """Random weights in MaxText's model: the tree, and the model's logits."""
    import jax
    from flax import nnx
    from maxtext.utils import model_creation_utils

    np = mt.np
    mesh = mt.mesh_class(mt.maxtext_utils.create_device_mesh(config), config.mesh_axes)
    model = model_creation_utils.from_config(config, mesh=mesh, rngs=nnx.Rngs(params=0, dropout=1))
    rng = np.random.default_rng(1)

    def fresh(path, leaf):
        name = ".".join(str(key.key) for key in path if hasattr(key, "key"))
        noise = rng.standard_normal(leaf.shape).astype(np.float32)
        return jax.numpy.asarray(1 + 0.1 * noise if "norm" in name and "scale" in name else 0.3 * noise)

    nnx.update(model, jax.tree_util.tree_map_with_path(fresh, nnx.state(model, nnx.Param)))
    leaves = jax.tree_util.tree_leaves_with_path(nnx.state(model, nnx.Param).to_pure_dict())
    arrays = {".".join(str(key.key) for key in path): np.asarray(leaf) for path, leaf in leaves}
    with mesh:
        logits = model(
            decoder_input_tokens=jax.numpy.asarray(tokens),
            decoder_positions=jax.numpy.arange(TOKENS)[None],
            decoder_segment_ids=jax.numpy.ones((1, TOKENS), jax.numpy.int32),
            enable_dropout=False,
        )
    return arrays, np.asarray(logits[0] if isinstance(logits, tuple) else logits, dtype=np.float32)


def transformers_logits(mt, class_name, hf, checkpoint, tokens, folder):
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    hf.save_pretrained(folder)
    shutil.copy(checkpoint, folder / "model.safetensors")
    kind = getattr(transformers, class_name)
    model, report = kind.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    missing = [name for name in report["missing_keys"] if "vis" not in name and "multi_modal" not in name]
    if missing or report["unexpected_keys"]:
        base.fail(f"transformers lacks {missing[:3]}, does not know {list(report['unexpected_keys'])[:3]}")
    with torch.no_grad():
        return model.eval()(input_ids=torch.from_numpy(tokens)).logits.numpy()


def run_family(mt, binary, family, work):
    recipe, model, sizes, extra, class_name = base.FAMILIES[family]
    config = mt.config(model, {**base.SIZES, **sizes, **SETTINGS}, True)
    hf = mt.hf_config(model, config, extra)
    if getattr(hf, "vision_config", None) is not None:  # not of interest, and large
        setattr(hf.vision_config, "depth" if hasattr(hf.vision_config, "depth") else "num_hidden_layers", 1)
    tokens = mt.np.random.default_rng(2).integers(0, base.SIZES["vocab_size"], (1, TOKENS))
    arrays, ours = maxtext_logits(mt, config, tokens)
    base.convert_with_heft(binary, recipe, arrays, hf, "f32", work / "heft")
    (work / "hf").mkdir()
    checkpoint = work / "heft" / "out" / "model.safetensors"
    theirs = transformers_logits(mt, class_name, hf, checkpoint, tokens, work / "hf")
    n = min(ours.shape[-1], theirs.shape[-1])
    difference = mt.np.abs(ours[..., :n] - theirs[..., :n]).max()
    agree = (ours[..., :n].argmax(-1) == theirs[..., :n].argmax(-1)).mean()
    print(
        f"{family}: logits differ by at most {difference:.2g} of {mt.np.abs(theirs).max():.3g}; "
        f"the likeliest token agrees in {agree:.0%} of {TOKENS} places",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--maxtext", required=True, help="a checkout of MaxText")
    parser.add_argument("--heft", default=str(base.ROOT / "build/release/src/cli/heft"))
    parser.add_argument("family", nargs="*", help=", ".join(base.FAMILIES))
    args = parser.parse_args()
    mt = base.MaxText(args.maxtext)
    for family in args.family or base.FAMILIES:
        work = pathlib.Path(tempfile.mkdtemp(prefix="heft-logits-"))
        try:
            run_family(mt, args.heft, family, work)
        finally:
            shutil.rmtree(work)


if __name__ == "__main__":
    main()
