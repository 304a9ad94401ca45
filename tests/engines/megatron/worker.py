# SPDX-License-Identifier: Apache-2.0
"""One rank of a Megatron-Core job on the CPU: make the weights, or take them over, and write them as a rank folder.

Started by check.py with a JSON task: {family, layout, rank, port, dist, out, make}.
"""
import json
import os
import sys
import warnings

import torch

import models

warnings.filterwarnings("ignore")


def fill(chunks):
    """Values that differ from element to element, norms and biases too."""
    generator = torch.Generator().manual_seed(20)
    for chunk in chunks:
        for name, value in chunk.state_dict().items():
            if not isinstance(value, torch.Tensor) or "_extra_state" in name:
                continue
            noise = torch.randn(value.shape, generator=generator, dtype=torch.float32)
            centre = 1.0 if "norm" in name else 0.0
            scale = 0.5 if "expert_bias" in name else 0.15
            value.copy_((centre + scale * noise).to(value.dtype))


def sharded(chunks, parallel_state):
    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    state = {}
    for c, chunk in enumerate(chunks):
        for key, value in chunk.sharded_state_dict(metadata={"dp_cp_group": group}).items():
            state[f"{c}/{key}"] = value
    return state


def drop_extra(state):
    return {key: value for key, value in state.items() if "_extra_state" not in key}


def logits(chunks, hf):
    n = 12
    tokens = torch.tensor([[(7 * i + 3) % hf["vocab_size"] for i in range(n)]])
    model = chunks[0].eval()
    model.mtp_process, model.config.mtp_num_layers = False, None  # the next-token head alone
    mask = torch.triu(torch.ones(1, 1, n, n, dtype=torch.bool), 1)
    with torch.no_grad():
        return tokens, model(tokens, torch.arange(n)[None], mask)[..., : hf["vocab_size"]]


def main():
    task = json.loads(sys.argv[1])
    hf, layout = models.FAMILIES[task["family"]], task["layout"]
    world = layout["tp"] * layout["pp"] * layout["dp"]
    parallel_state = models.start(task["rank"], world, task["port"], layout)
    models.use_cpu()
    from megatron.core import dist_checkpointing
    from safetensors.torch import save_file
    torch.manual_seed(1)
    chunks = models.build(hf, layout, parallel_state, vocab_multiple=task["vocab_multiple"],
                          extra=task.get("extra"))
    with torch.no_grad():
        if task["make"]:
            fill(chunks)
            os.makedirs(task["dist"], exist_ok=True)
            dist_checkpointing.save(drop_extra(sharded(chunks, parallel_state)), task["dist"])
        else:
            state = drop_extra(sharded(chunks, parallel_state))
            loaded = dist_checkpointing.load(state, task["dist"])
            for c, chunk in enumerate(chunks):
                part = {k.split("/", 1)[1]: v for k, v in loaded.items() if k.startswith(f"{c}/")}
                missing, unexpected = chunk.load_state_dict(part, strict=False)
                missing = [name for name in missing if "_extra_state" not in name]
                assert not missing and not unexpected, (missing, unexpected)
    number = models.folder_number(parallel_state, layout)
    folder = os.path.join(task["out"], f"rank-{number}")
    os.makedirs(folder, exist_ok=True)
    save_file(models.named_weights(chunks), os.path.join(folder, "model.safetensors"))
    if number == 0:
        with open(os.path.join(task["out"], "config.json"), "w") as file:
            json.dump(hf, file)
    if task["make"]:
        tokens, out = logits(chunks, hf)
        torch.save({"tokens": tokens, "logits": out}, os.path.join(task["out"], "logits.pt"))
    torch.distributed.barrier()


if __name__ == "__main__":
    main()
