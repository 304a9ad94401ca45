# SPDX-License-Identifier: Apache-2.0
"""transformers (5.x): from_pretrained's conversion over a live model; names of checkpoints.

The loading code of transformers 5 renames, stacks and fuses checkpoint tensors (one parameter for
all experts) and then replaces each parameter by a new object. Here it is run unchanged up to that
last step, which copies into the parameter that is there: addresses stay, as a running engine needs.
Weights are read by a pool of threads, as from_pretrained does.

Not parallel over tensors: from_pretrained shards by DTensor, which needs its process group; a
tensor-parallel rank is refused here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from transformers import core_model_loading
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import convert_and_load_state_dict_in_model
from transformers.modeling_utils import LoadStateDictConfig

from heft.engines import Weights
from heft.exceptions import Exception_


def version() -> str:
    return str(transformers.__version__)


def build(
    config: Any,
    *,
    tp: int = 1,
    rank: int = 0,
    expert_parallel: bool = False,
    draft: bool = False,
    device: str = "cpu",
) -> torch.nn.Module:
    """The model class that the config names."""
    if tp != 1 or rank != 0 or expert_parallel or draft:
        raise ValueError(
            f"transformers: rank {rank} of {tp}, expert parallel {expert_parallel}, draft {draft}: "
            "this plug-in loads whole models only"
        )
    if not config.architectures:
        raise ValueError(
            f"transformers: {type(config).__name__} has no architectures: set "
            'config.architectures = ["..ForCausalLM"], as config.json of a checkpoint has it'
        )
    model_class = getattr(transformers, config.architectures[0])
    with torch.device(device):
        model: torch.nn.Module = model_class._from_config(config, dtype=config.dtype)
    return model.eval()


def load(model: torch.nn.Module, weights: Weights) -> None:
    """from_pretrained's conversion over all pairs, into the parameters that are there.

    ValueError names checkpoint tensors that the model does not know, parameters that none of them
    gives, shapes that differ, and conversions that failed.
    """
    config = LoadStateDictConfig(
        weight_mapping=get_model_conversion_mapping(model),
        dtype=model.config.dtype,
        device_map={"": _device_of(model)},
    )
    with _assign_in_place():
        info, _ = convert_and_load_state_dict_in_model(model, dict(weights), config)
    _check(model, info)


def _device_of(model: torch.nn.Module) -> Any:
    return next(model.parameters()).device


@contextmanager
def _assign_in_place() -> Iterator[None]:
    """Replace the last step of the conversion, which sets new parameter objects, by a copy."""
    original: Callable[..., None] = core_model_loading.set_param_for_module
    core_model_loading.set_param_for_module = _copy_param
    try:
        yield
    finally:
        core_model_loading.set_param_for_module = original


def _copy_param(model: Any, name: str, value: Any, info: Any, quantizer: Any) -> None:
    """model.<name> <- value, with the bookkeeping of set_param_for_module."""
    if quantizer is not None:
        raise ValueError(f'"{name}": quantised models are not loaded in place')
    path, _, leaf = name.rpartition(".")
    there = getattr(model.get_submodule(path), leaf)
    info.missing_keys.discard(name)
    if there is None:
        info.unexpected_keys.add(name)
    elif there.shape != value.shape:
        info.mismatched_keys.add((name, value.shape, there.shape))
    else:
        with torch.no_grad():
            there.copy_(value)


def _check(model: torch.nn.Module, info: Any) -> None:
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    problems = [f"{name}: {text}" for name, text in sorted(info.conversion_errors.items())]
    problems += [f"{n}: {list(a)} given, {list(b)} there" for n, a, b in info.mismatched_keys]
    problems += [f"{name}: not a parameter" for name in sorted(info.unexpected_keys)]
    problems += [f"{name}: not given" for name in sorted(info.missing_keys - tied)]
    if problems:
        shown = "; ".join(" ".join(problem.split()) for problem in problems[:5])
        word = "problem" if len(problems) == 1 else "problems"
        raise ValueError(f"transformers: {len(problems)} {word}: {shown}")


def post(model: torch.nn.Module) -> None:
    """Nothing: transformers computes with what was loaded."""


def exceptions(model: torch.nn.Module) -> list[Exception_]:
    """Nothing: what a model does not know is an error in load()."""
    return []


def config_of(model_type: str, architecture: str, dtype: torch.dtype, **sizes: Any) -> Any:
    """A config as config.json of a checkpoint would give it."""
    config = transformers.AutoConfig.for_model(model_type, **sizes)
    config.architectures = [architecture]
    config.dtype = dtype
    return config


def checkpoint_names(config: Any) -> dict[str, torch.Tensor]:
    """Names, shapes and dtypes as save_pretrained writes them, as tensors without storage (meta).

    The reverse of the conversion that loading makes, so that experts are one tensor each where
    published checkpoints have them so. Tied parameters appear once.
    """
    model = build(config, device="meta")
    state = dict(model.state_dict())
    for name in getattr(model, "all_tied_weights_keys", None) or ():
        state.pop(name, None)
    return dict(core_model_loading.revert_weight_conversion(model, state))
