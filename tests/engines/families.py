# SPDX-License-Identifier: Apache-2.0
"""Model families at tiny sizes: real architectures, and the names of their checkpoints.

Sizes keep what makes a loader's offsets interesting: more than one layer of each kind, fewer key
heads than ranks in one family, a vocabulary that is no multiple of the padding.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from heft.engines.transformers import checkpoint_names, config_of

SMALL = {
    "hidden_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "vocab_size": 200,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 128}
LINEAR_ATTENTION = {
    "num_hidden_layers": 4,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}
GROUPED_ROUTING = {
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
}
MLA = {
    "num_key_value_heads": 8,
    "q_lora_rank": 48,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "head_dim": 16,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
DEEPSEEK = {
    **MLA,
    **EXPERTS,
    **GROUPED_ROUTING,
    "moe_layer_freq": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "rope_parameters": YARN,
    "num_nextn_predict_layers": 1,
}
GLM4 = {
    **EXPERTS,
    **GROUPED_ROUTING,
    "use_qk_norm": True,
    "attention_bias": True,
    "num_nextn_predict_layers": 1,
}
# Engines take the head size of these from the width, whatever head_dim says.
WIDE = {"hidden_size": 256}
BLOCK = 128
FP8 = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [BLOCK, BLOCK],
}
MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
WHOLE_BLOCKS = {  # on four ranks, too
    "hidden_size": 256,
    "intermediate_size": 512,
    "moe_intermediate_size": 512,
    "n_routed_experts": 4,
    "n_group": 2,
    "q_lora_rank": 128,
    "kv_lora_rank": 128,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "head_dim": 64,
}
TIED_FEW_KEYS = {**WIDE, "tie_word_embeddings": True, "num_key_value_heads": 2}
GEMMA = {
    "tie_word_embeddings": True,
    "query_pre_attn_scalar": 32,
    "hidden_act": "gelu_pytorch_tanh",
}


class Family(NamedTuple):
    """A real architecture and its small sizes; float32: ends of names kept in that precision."""

    name: str
    model_type: str
    architecture: str
    sizes: dict[str, Any]
    float32: tuple[str, ...] = ()
    draft: bool = False  # its multi-token prediction layers, as a model of their own
    fp8: bool = False  # projections as the published DeepSeek-V3 has them: e4m3, scales of blocks
    mxfp4: bool = False  # experts as the published GPT-OSS has them: two to a byte, scales of 32
    extra: tuple[tuple[str, Any], ...] = ()  # keys of config.json that transformers itself drops

    def config(self, **changes: Any) -> Any:
        sizes = {**SMALL, **self.sizes, **changes}
        config = config_of(self.model_type, self.architecture, torch.bfloat16, **sizes)
        if self.fp8 or self.mxfp4:
            config.quantization_config = FP8 if self.fp8 else MXFP4
        for key, value in self.extra:
            setattr(config, key, value)
        return config

    def names(self, **changes: Any) -> dict[str, torch.Tensor]:
        """The checkpoint's tensors on the meta device, with the layers of a draft."""
        config = self.config(**changes)
        names = checkpoint_names(config)
        if getattr(config, "num_nextn_predict_layers", 0):
            names.update(_draft_names(self, config, **changes))
        for name, tensor in names.items():
            if name.endswith(self.float32):
                names[name] = tensor.to(torch.float32)
        if self.fp8:
            names = dict(_quantised(names))
        return dict(_packed(names)) if self.mxfp4 else names


def _quantised(names: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Projections in e4m3, each with one scale for a block of 128 x 128."""
    for name, tensor in names.items():
        if "_proj" in name and name.endswith(".weight") and "eh_proj" not in name:
            yield name, tensor.to(torch.float8_e4m3fn)
            blocks = [-(-size // BLOCK) for size in tensor.shape]
            yield f"{name}_scale_inv", torch.empty(blocks, device="meta")
        else:
            yield name, tensor


def _packed(names: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Experts transposed, in blocks of 32 values: 16 bytes and one for their exponent."""
    for name, tensor in names.items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            experts, inner, outer = tensor.shape
            shape = (experts, outer, inner // 32)
            yield f"{name}_blocks", torch.empty(*shape, 16, dtype=torch.uint8, device="meta")
            yield f"{name}_scales", torch.empty(shape, dtype=torch.uint8, device="meta")
        else:
            yield name, tensor


def twin_of(name: str) -> str | None:
    """The tensor of the target that a draft's layer repeats."""
    if not name.startswith("model.layers."):
        return None
    twins = {
        "embed_tokens.weight": "model.embed_tokens.weight",
        "shared_head.head.weight": "lm_head.weight",
    }
    return twins.get(name.removeprefix("model.layers.").split(".", 1)[1])


def _draft_names(family: Family, config: Any, **changes: Any) -> dict[str, torch.Tensor]:
    """The layers after the last, which transformers itself does not know."""
    n, width = config.num_hidden_layers, config.hidden_size
    one_more = {**changes, "num_hidden_layers": n + 1, "num_nextn_predict_layers": 0}
    deeper = checkpoint_names(family.config(**one_more))
    prefix = f"model.layers.{n}."
    names = {name: tensor for name, tensor in deeper.items() if name.startswith(prefix)}
    for name in ("enorm", "hnorm", "shared_head.norm"):
        names[f"{prefix}{name}.weight"] = _meta(width)
    names[f"{prefix}eh_proj.weight"] = _meta(width, 2 * width)
    for name in ("embed_tokens", "shared_head.head"):
        names[f"{prefix}{name}.weight"] = _meta(config.vocab_size, width)
    return names


def _meta(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device="meta")


BIAS = ("e_score_correction_bias",)
_ALL = (
    Family("llama", "llama", "LlamaForCausalLM", {}),
    Family("qwen2", "qwen2", "Qwen2ForCausalLM", TIED_FEW_KEYS),
    Family("qwen3", "qwen3", "Qwen3ForCausalLM", {}),
    Family("qwen3-moe", "qwen3_moe", "Qwen3MoeForCausalLM", {**EXPERTS, "num_experts": 8}),
    Family(
        "qwen3-next",
        "qwen3_next",
        "Qwen3NextForCausalLM",
        {
            **EXPERTS,
            **LINEAR_ATTENTION,
            "num_experts": 8,
            "shared_expert_intermediate_size": 128,
        },
        extra=(("full_attention_interval", 4),),
    ),
    Family(
        "qwen3.5",
        "qwen3_5_text",
        "Qwen3_5ForCausalLM",
        LINEAR_ATTENTION,
        float32=("linear_attn.A_log", "linear_attn.norm.weight"),
        extra=(("full_attention_interval", 4),),
    ),
    Family(
        "mixtral",
        "mixtral",
        "MixtralForCausalLM",
        {**WIDE, **EXPERTS, "intermediate_size": 128, "num_local_experts": 8},
    ),
    Family("deepseek-v3", "deepseek_v3", "DeepseekV3ForCausalLM", DEEPSEEK, BIAS),
    Family("deepseek-v3-mtp", "deepseek_v3", "DeepseekV3ForCausalLM", DEEPSEEK, BIAS, True),
    Family(
        "deepseek-v3-fp8",
        "deepseek_v3",
        "DeepseekV3ForCausalLM",
        {**DEEPSEEK, **WHOLE_BLOCKS},
        BIAS,
        fp8=True,
    ),
    Family("glm4-moe", "glm4_moe", "Glm4MoeForCausalLM", GLM4, BIAS),
    Family("glm4-moe-mtp", "glm4_moe", "Glm4MoeForCausalLM", GLM4, BIAS, True),
    Family("gemma2", "gemma2", "Gemma2ForCausalLM", GEMMA),
    Family("gemma3", "gemma3_text", "Gemma3ForCausalLM", GEMMA),
    Family(
        "gpt-oss",
        "gpt_oss",
        "GptOssForCausalLM",
        {
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
        },
    ),
    Family(
        "gpt-oss-mxfp4",
        "gpt_oss",
        "GptOssForCausalLM",
        {"num_local_experts": 8, "num_experts_per_tok": 2},
        mxfp4=True,
    ),
)
FAMILIES = {family.name: family for family in _ALL}
