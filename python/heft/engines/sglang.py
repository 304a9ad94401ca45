# SPDX-License-Identifier: Apache-2.0
"""SGLang: model classes built as its weight-cache daemon does, loaded by load_weights.

SGLang's modules import kernels for GPUs (the package sglang-kernel). Where that is not installed,
names of its stand there and each raises when it is called: no loader calls one.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import tempfile
import types
from typing import Any

import torch

from heft.engines import Weights, _names, _one_rank
from heft.exceptions import Exception_

_KERNELS = "sgl_kernel"
_WITHOUT = f"{_KERNELS}.scalar_type"  # SGLang has its own where this cannot be imported
# Operators that modules look up while they are imported. Others are probed for: not here.
_OPERATORS = (
    "fused_qk_gemma_rmsnorm_cpu",
    "fused_qk_gemma_rmsnorm_with_gate_cpu",
    "fused_qkvzba_split_reshape_cat_contiguous_cpu",
    "fused_qkvzba_split_reshape_cat_cpu",
    "fused_sigmoid_mul_cpu",
)


class _Kernels(types.ModuleType):
    """A module whose every name is a kernel that is not there."""

    __path__: list[str] = []  # noqa: RUF012  a package: it has modules inside

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"

        def kernel(*args: Any, **options: Any) -> Any:
            raise NotImplementedError(f"{full}: the package sglang-kernel is not installed")

        return kernel


class _KernelFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name.split(".")[0] != _KERNELS or name == _WITHOUT:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Kernels(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def _make_importable() -> None:
    """What SGLang needs to be imported where its kernels are not installed."""
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    if importlib.util.find_spec(_KERNELS) is None:
        sys.meta_path.append(_KernelFinder())
        for name in _OPERATORS:
            _operators.define(f"{name}(Tensor x) -> Tensor")


_operators = torch.library.Library(_KERNELS, "FRAGMENT")
_make_importable()

import sglang  # noqa: E402
from sglang.srt.configs.load_config import LoadConfig  # noqa: E402
from sglang.srt.configs.model_config import ModelConfig  # noqa: E402
from sglang.srt.configs.update_config import adjust_config_with_unaligned_cpu_tp  # noqa: E402
from sglang.srt.distributed import parallel_state  # noqa: E402
from sglang.srt.layers.dp_attention import (  # noqa: E402
    init_dp_gathered_buffer,
    initialize_dp_attention,
)
from sglang.srt.layers.moe import initialize_moe_config  # noqa: E402
from sglang.srt.model_loader.loader import (  # noqa: E402
    DefaultModelLoader,
    _get_quantization_config,
    _initialize_model,
)
from sglang.srt.model_loader.utils import set_default_torch_dtype  # noqa: E402
from sglang.srt.runtime_context import SpawnRanks, publish, reset_context  # noqa: E402
from sglang.srt.server_args import ServerArgs  # noqa: E402


def version() -> str:
    return str(sglang.__version__)


def build(
    config: Any,
    *,
    tp: int = 1,
    rank: int = 0,
    expert_parallel: bool = False,
    draft: bool = False,
    device: str = "cpu",
) -> torch.nn.Module:
    """The class that SGLang's registry gives for the config; draft: that of its NextN layers."""
    _stop_groups()  # what is published below is checked against groups that are there
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        dtype = str(config.dtype).removeprefix("torch.")
        args = ServerArgs(
            model_path=folder,
            tokenizer_path=folder,
            skip_tokenizer_init=True,
            device="cpu",
            dtype=dtype,
            load_format="dummy",
            tp_size=tp,
            ep_size=tp if expert_parallel else 1,
            attention_backend=_attention_of(config),
            disable_radix_cache=True,
        )
        publish(args, role="weight_cache_daemon", ranks=SpawnRanks(world_rank=rank, gpu_id=rank))
        initialize_moe_config()
        model_config = ModelConfig(model_path=folder, dtype=dtype, is_draft_model=draft)
    load_config = LoadConfig(load_format="dummy")
    if device == "cpu":  # heads are padded to what the CPU's kernels want
        model_config = adjust_config_with_unaligned_cpu_tp(model_config, load_config, tp)
    _start_groups(tp, rank)
    initialize_dp_attention(args)
    init_dp_gathered_buffer(model_config)
    quant_config = _get_quantization_config(model_config, load_config)
    with set_default_torch_dtype(model_config.dtype), torch.device(device):
        model: torch.nn.Module = _initialize_model(model_config, load_config, quant_config)
    model.heft_is_draft = draft  # for exceptions()
    return model


def _attention_of(config: Any) -> str:
    """A backend that SGLang accepts for the model on a CPU; it computes nothing while loading."""
    return "intel_amx" if config.model_type == "gpt_oss" else "torch_native"


def _stop_groups() -> None:
    if parallel_state.model_parallel_is_initialized():
        parallel_state.destroy_model_parallel()
        parallel_state.destroy_distributed_environment()
    reset_context()


def _start_groups(tp: int, rank: int) -> None:
    _one_rank.start(tp, rank)
    original = parallel_state.init_model_parallel_group

    def group_without_devices(
        group_ranks: Any, local_rank: int, backend: str, **options: Any
    ) -> Any:
        return original(
            group_ranks,
            local_rank,
            backend,
            use_pynccl=False,
            use_custom_allreduce=False,
            use_mscclpp=False,
            use_torch_symm_mem_allreduce=False,
            group_name=options.get("group_name"),
        )

    with (
        _one_rank.subgroups_without_peers(),
        _one_rank.replaced(parallel_state, init_model_parallel_group=group_without_devices),
    ):
        parallel_state.init_distributed_environment(
            world_size=tp, rank=rank, local_rank=rank, backend="fake"
        )
        parallel_state.initialize_model_parallel(backend="fake")


def load(model: torch.nn.Module, weights: Weights) -> None:
    """The model's load_weights, wrapped as SGLang's default loader wraps it."""
    DefaultModelLoader.load_weights_only(model, weights, torch.device("cpu"))


def post(model: torch.nn.Module) -> None:
    """SGLang's postprocess_weights."""
    DefaultModelLoader.postprocess_weights(model, torch.device("cpu"))


_CACHE_SCALES = ("k_scale", "v_scale")  # parameters that checkpoints have rarely


def exceptions(model: torch.nn.Module) -> list[Exception_]:
    """A draft has the target's embedding and head, which SGLang puts there after loading."""
    config = model.config
    cache = [_names.untouched(f"*.{name}", "of the cache; kept") for name in _CACHE_SCALES]
    if not model.heft_is_draft:
        return [*_names.unused_by_target(config), *cache]
    shared = "the target's, put there by set_embed_and_head"
    both = ("model.embed_tokens.weight", "lm_head.weight")
    return [
        *cache,
        *_names.unused_by_draft(config),
        _names.unused(f"model.layers.{config.num_hidden_layers}.shared_head.head.weight", shared),
        _names.unused(f"model.layers.{config.num_hidden_layers}.embed_tokens.weight", shared),
        *(_names.unused(name, shared) for name in both),
        *(_names.untouched(name, shared) for name in both),
    ]
