# SPDX-License-Identifier: Apache-2.0
"""vLLM: model classes built through its own configuration, loaded by load_weights.

build() makes the VllmConfig that `vllm serve` would make for this config and rank, sets up vLLM's
groups without peers (_one_rank.py), and calls vLLM's initialize_model. What stands in for a running
engine is only that: no device communicators, no shared-memory broadcaster.

On a CPU, post() repacks linear layers for oneDNN and drops their weights: what the loader wrote is
gone then. Delivery into a model that serves needs the layout before that step: keep_layout() makes
vLLM compute with it.
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
import vllm
from vllm import _custom_ops
from vllm.config import set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader.utils import (
    initialize_model,
    process_weights_after_loading,
)
from vllm.model_executor.models import registry
from vllm.platforms import current_platform
from vllm.utils.torch_utils import set_default_torch_dtype

from heft.engines import Weights, _names, _one_rank
from heft.exceptions import Exception_


def version() -> str:
    return str(vllm.__version__)


def build(
    config: Any,
    *,
    tp: int = 1,
    rank: int = 0,
    expert_parallel: bool = False,
    draft: bool = False,
    device: str = "cpu",
) -> torch.nn.Module:
    """The model class that vLLM's registry gives for the config; draft: that of its MTP layers."""
    vllm_config = _config_of(config, tp, expert_parallel, draft)
    _start_groups(vllm_config, tp, rank)
    # fp8 is refused on a CPU that lacks its kernels (no AMX, or vLLM built for AVX2); loading runs
    # none
    is_quantised = getattr(config, "quantization_config", None) is not None
    amx = {"_is_amx_tile_supported": lambda: True} if is_quantised else {}
    operators = {"_supports_cpu_fp8_w8a16": True} if is_quantised else {}
    model_config = vllm_config.model_config
    if draft:
        model_config = vllm_config.speculative_config.draft_model_config
    with (
        set_default_torch_dtype(model_config.dtype),
        torch.device(device),
        _one_rank.replaced(torch.cpu, **amx),
        _one_rank.replaced(_custom_ops, **operators),
    ):
        model: torch.nn.Module = initialize_model(vllm_config, model_config=model_config)
    model.heft_vllm_config = vllm_config  # for post()
    model.heft_is_draft = draft  # for exceptions()
    return model


def _config_of(config: Any, tp: int, expert_parallel: bool, draft: bool) -> Any:
    with (
        tempfile.TemporaryDirectory() as folder,
        _one_rank.replaced(registry._LazyRegisteredModel, inspect_model_cls=_inspect_here),
    ):
        config.save_pretrained(folder)
        return EngineArgs(
            model=folder,
            tokenizer=folder,
            skip_tokenizer_init=True,
            load_format="dummy",
            dtype=str(config.dtype).removeprefix("torch."),
            tensor_parallel_size=tp,
            enable_expert_parallel=expert_parallel,
            distributed_executor_backend="mp" if tp > 1 else None,
            speculative_config=_DRAFT if draft else None,
            max_model_len=256,
            enforce_eager=True,
        ).create_engine_config()


_DRAFT = {"method": "mtp", "num_speculative_tokens": 1}


def _inspect_here(self: Any) -> Any:
    """vLLM looks at model classes in another process, seconds each; nothing here needs that."""
    return registry._ModelInfo.from_model_cls(self.load_model_cls())


def _start_groups(vllm_config: Any, tp: int, rank: int) -> None:
    parallel_state.destroy_model_parallel()
    parallel_state.destroy_distributed_environment()
    _one_rank.start(tp, rank)
    original = parallel_state.init_model_parallel_group

    def group_without_devices(
        group_ranks: Any, local_rank: int, backend: str, *args: Any, **options: Any
    ) -> Any:
        name = options.get("group_name")
        return original(
            group_ranks, local_rank, backend, False, group_name=name, use_device_communicator=False
        )

    with (
        set_current_vllm_config(vllm_config),
        _one_rank.subgroups_without_peers(),
        _one_rank.replaced(
            parallel_state,
            init_model_parallel_group=group_without_devices,
            _node_count=lambda group: 1,
        ),
    ):
        parallel_state.init_distributed_environment(
            world_size=tp, rank=rank, local_rank=rank, backend="fake"
        )
        parallel_state.initialize_model_parallel(tp)


def load(model: torch.nn.Module, weights: Weights) -> None:
    """The model's load_weights."""
    model.load_weights(weights)


def post(model: torch.nn.Module) -> None:
    """vLLM's process_weights_after_loading, as often as it is called.

    On a CPU it packs experts when their kernel is made, and not again: so it makes another one.
    """
    device = next(model.parameters()).device
    for module in model.modules() if device.type == "cpu" else ():
        method = getattr(module, "quant_method", None)
        if getattr(method, "moe_kernel", None) is not None:
            method.moe_kernel = None
    vllm_config = model.heft_vllm_config
    with set_current_vllm_config(vllm_config):
        process_weights_after_loading(model, vllm_config.model_config, device)


def keep_layout() -> None:
    """Before an engine is made on a CPU: compute with weights as they are loaded, unpacked.

    Slower than oneDNN's packed weights, and then rounds can write into what serves.
    """
    if current_platform.is_cpu() and not torch.cpu._is_amx_tile_supported():
        _custom_ops._supports_onednn = False
    elif current_platform.is_cpu():
        raise RuntimeError("vLLM packs weights for AMX on this CPU and drops what was loaded")


def exceptions(model: torch.nn.Module) -> list[Exception_]:
    """A draft takes the embedding and the head twice: from its own layer and from the target."""
    config = model.config
    if not model.heft_is_draft:
        return _names.unused_by_target(config)
    again = "the checkpoint has it in the draft's layer and in the target"
    return [
        *_names.unused_by_draft(config),
        _names.equal("model.embed_tokens.weight", again),
        _names.equal("model.layers.*.shared_head.head.weight", again),
        _names.unused("lm_head.weight", "the draft's layer has its own"),
    ]
