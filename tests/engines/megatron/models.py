# SPDX-License-Identifier: Apache-2.0
"""Small Megatron-Core models on the CPU, in any parallel layout, and the Hugging Face models of the same shape.

Everything is built by the frameworks themselves: names, shapes and values are theirs. Megatron-Core looks for a GPU in a
few places that have nothing to do with weights (the device of a rotary table, the generator of dropout); `use_cpu` sends
those to the CPU.
"""
import contextlib
import os

import torch
import torch.distributed as dist

LAYOUT_KEYS = ("tp", "pp", "vpp", "ep", "etp", "dp")

# One entry a family: the Hugging Face configuration (sizes differ from each other wherever they can).
FAMILIES = {
    "llama3": dict(
        model_type="llama", hidden_size=48, intermediate_size=40, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=4, head_dim=6, vocab_size=96, rms_norm_eps=1e-5, tie_word_embeddings=False,
        max_position_embeddings=64, rope_theta=500000.0),
    "llama3_tied": dict(
        model_type="llama", hidden_size=48, intermediate_size=40, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=4, head_dim=6, vocab_size=96, rms_norm_eps=1e-5, tie_word_embeddings=True,
        max_position_embeddings=64, rope_theta=500000.0),
    "qwen2": dict(
        model_type="qwen2", hidden_size=48, intermediate_size=40, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=4, vocab_size=90, rms_norm_eps=1e-6, tie_word_embeddings=False,
        max_position_embeddings=64, rope_theta=1000000.0),
    "qwen3": dict(
        model_type="qwen3", hidden_size=32, intermediate_size=40, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=4, head_dim=6, vocab_size=90, rms_norm_eps=1e-6, tie_word_embeddings=True,
        max_position_embeddings=64, rope_theta=1000000.0),
    "qwen3_moe": dict(
        model_type="qwen3_moe", hidden_size=32, intermediate_size=40, moe_intermediate_size=20, num_hidden_layers=4,
        num_attention_heads=8, num_key_value_heads=4, head_dim=6, vocab_size=96, rms_norm_eps=1e-6,
        tie_word_embeddings=False, num_experts=8, num_experts_per_tok=2, norm_topk_prob=True, decoder_sparse_step=1,
        mlp_only_layers=[], max_position_embeddings=64, rope_theta=1000000.0),
    "deepseek_v3": dict(
        model_type="deepseek_v3", hidden_size=32, intermediate_size=40, moe_intermediate_size=20, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=4, vocab_size=96, rms_norm_eps=1e-6, tie_word_embeddings=False,
        q_lora_rank=24, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=10, n_routed_experts=8,
        n_shared_experts=2, num_experts_per_tok=2, n_group=1, topk_group=1, norm_topk_prob=True,
        routed_scaling_factor=2.5, first_k_dense_replace=1, num_nextn_predict_layers=1, max_position_embeddings=64,
        rope_theta=10000.0, rope_interleave=True),
}


class Nothing:
    """Stands for a class that is not there."""

    def __init__(self, *_args, **_kwargs):
        pass


def use_cpu():
    """Send what Megatron-Core asks of a GPU to the CPU."""
    import megatron.core.tensor_parallel.random as random

    class Tracker:
        def fork(self, *_args, **_kwargs):
            return contextlib.nullcontext()

        def is_initialized(self):
            return True

    tracker = Tracker()
    torch.cuda.current_device = lambda: torch.device("cpu")
    for module in ("megatron.core.tensor_parallel", "megatron.core.tensor_parallel.random",
                   "megatron.core.tensor_parallel.layers", "megatron.core.transformer.dot_product_attention"):
        owner = __import__(module, fromlist=["x"])
        if hasattr(owner, "get_cuda_rng_tracker"):
            owner.get_cuda_rng_tracker = lambda *_args, **_kwargs: tracker
    random._CUDA_RNG_STATE_TRACKER = tracker
    random._CUDA_RNG_STATE_TRACKER_INITIALIZED = True
    import megatron.core.transformer.moe.moe_utils as moe_utils
    import megatron.core.transformer.multi_latent_attention as latent
    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None  # without TransformerEngine the plain product is used
    if not isinstance(latent.TELinear, type):
        latent.TELinear = Nothing
    if not torch.cuda.is_available():
        torch.cuda.Stream = Nothing
        torch.cuda.synchronize = torch.cuda.empty_cache = lambda *_args, **_kwargs: None
    torch.Tensor.cuda = lambda self, *_args, **_kwargs: self


def start(rank, world, port, layout):
    """Join the gloo group of one rank and split it as the layout says."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    from megatron.core import parallel_state
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=layout["tp"], pipeline_model_parallel_size=layout["pp"],
        virtual_pipeline_model_parallel_size=layout["vpp"] if layout["vpp"] > 1 else None,
        expert_model_parallel_size=layout["ep"], expert_tensor_parallel_size=layout["etp"])
    return parallel_state


def make_config(hf, layout, extra=None):
    """The TransformerConfig of a Hugging Face configuration."""
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
    common = dict(
        num_layers=hf["num_hidden_layers"], hidden_size=hf["hidden_size"], num_attention_heads=hf["num_attention_heads"],
        ffn_hidden_size=hf["intermediate_size"], layernorm_epsilon=hf["rms_norm_eps"],
        tensor_model_parallel_size=layout["tp"], pipeline_model_parallel_size=layout["pp"],
        virtual_pipeline_model_parallel_size=layout["vpp"] if layout["vpp"] > 1 else None,
        expert_model_parallel_size=layout["ep"], expert_tensor_parallel_size=layout["etp"],
        pipeline_dtype=torch.float32, normalization="RMSNorm", gated_linear_unit=True, add_bias_linear=False,
        activation_func=torch.nn.functional.silu, hidden_dropout=0.0, attention_dropout=0.0,
        use_cpu_initialization=True, bias_activation_fusion=False, bias_dropout_fusion=False,
        masked_softmax_fusion=False, persist_layer_norm=False, apply_rope_fusion=False,
        gradient_accumulation_fusion=False)
    kind = hf["model_type"]
    if kind in ("qwen3", "qwen3_moe"):
        common["qk_layernorm"] = True
    if kind == "qwen2":
        common["add_qkv_bias"] = True
    if kind == "qwen3_moe":
        common.update(
            num_moe_experts=hf["num_experts"], moe_router_topk=hf["num_experts_per_tok"],
            moe_ffn_hidden_size=hf["moe_intermediate_size"], moe_router_load_balancing_type="none",
            moe_router_score_function="softmax", moe_router_pre_softmax=False, moe_token_dispatcher_type="allgather")
    if kind == "deepseek_v3":
        n = hf["num_hidden_layers"]
        common.update(
            multi_latent_attention=True, qk_layernorm=True, q_lora_rank=hf["q_lora_rank"],
            kv_lora_rank=hf["kv_lora_rank"], qk_head_dim=hf["qk_nope_head_dim"],
            qk_pos_emb_head_dim=hf["qk_rope_head_dim"], v_head_dim=hf["v_head_dim"], rope_type="rope",
            rotary_base=hf["rope_theta"], num_moe_experts=hf["n_routed_experts"],
            moe_layer_freq=[0 if i < hf["first_k_dense_replace"] else 1 for i in range(n)],
            moe_ffn_hidden_size=hf["moe_intermediate_size"], moe_router_topk=hf["num_experts_per_tok"],
            moe_shared_expert_intermediate_size=hf["moe_intermediate_size"] * hf["n_shared_experts"],
            moe_router_load_balancing_type="none", moe_router_score_function="sigmoid",
            moe_router_enable_expert_bias=True, moe_router_bias_update_rate=0.001, moe_router_dtype="fp32",
            moe_router_topk_scaling_factor=hf["routed_scaling_factor"], moe_token_dispatcher_type="allgather",
            mtp_num_layers=hf["num_nextn_predict_layers"])
    else:
        common.update(num_query_groups=hf["num_key_value_heads"],
                      kv_channels=hf.get("head_dim") or hf["hidden_size"] // hf["num_attention_heads"])
    common.update(extra or {})
    return (MLATransformerConfig if kind == "deepseek_v3" else TransformerConfig)(**common)


def padded_vocab(hf, layout, multiple):
    whole = multiple * layout["tp"]
    return (hf["vocab_size"] + whole - 1) // whole * whole


class PlainAttention(torch.nn.Module):
    """Attention with value heads of their own width, which Megatron-Core's own CPU attention has not. No weights."""

    def __init__(self, config, k_channels=None, softmax_scale=None, **_kwargs):
        super().__init__()
        self.scale = softmax_scale or (k_channels or config.kv_channels) ** -0.5

    def forward(self, query, key, value, attention_mask, **_kwargs):
        n, batch = query.shape[:2]
        q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        scores = (q @ k.transpose(-1, -2)) * self.scale
        scores = scores.masked_fill(torch.triu(torch.ones(n, n, dtype=torch.bool), 1), float("-inf"))
        out = scores.softmax(-1) @ v
        return out.permute(2, 0, 1, 3).reshape(n, batch, -1)


def plain_attention(spec):
    """The same layers with PlainAttention in them."""
    for layer in getattr(spec, "layer_specs", None) or [spec]:
        layer.submodules.self_attention.submodules.core_attention = PlainAttention
    return spec


def build(hf, layout, parallel_state, vocab_multiple=8, extra=None):
    """The chunks of this rank (one, or vpp of them)."""
    from megatron.core.models.gpt import gpt_layer_specs as specs
    from megatron.core.models.gpt.gpt_model import GPTModel
    config = make_config(hf, layout, extra)
    chunks = []
    for stage in range(layout["vpp"]):
        vp_stage = stage if layout["vpp"] > 1 else None
        layers = specs.get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization="RMSNorm",
                                                  vp_stage=vp_stage) \
            if config.num_moe_experts else specs.get_gpt_layer_local_spec(
                qk_layernorm=config.qk_layernorm, normalization="RMSNorm")
        if config.multi_latent_attention:
            plain_attention(layers)
        mtp = None
        if getattr(config, "mtp_num_layers", None):
            like = plain_attention(specs.get_gpt_decoder_layer_specs(
                config, use_transformer_engine=False, normalization="RMSNorm")[-1])
            mtp = specs.get_gpt_mtp_block_spec(config, like, use_transformer_engine=False, vp_stage=vp_stage)
        chunks.append(GPTModel(
            config, layers, vocab_size=padded_vocab(hf, layout, vocab_multiple), max_sequence_length=64,
            pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=vp_stage),
            post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=vp_stage),
            share_embeddings_and_output_weights=hf["tie_word_embeddings"], position_embedding_type="rope",
            rotary_base=hf["rope_theta"], mtp_block_spec=mtp, vp_stage=vp_stage))
    return chunks


def hf_config(hf):
    import transformers
    return transformers.AutoConfig.for_model(**hf)


def named_weights(chunks):
    """{name: tensor} as a rank's folder holds it: model{c}. and the names of state_dict."""
    out = {}
    for c, chunk in enumerate(chunks):
        for name, value in chunk.state_dict().items():
            if isinstance(value, torch.Tensor) and "_extra_state" not in name:
                out[f"model{c}.{name}"] = value.detach().contiguous().clone()
    return out


def folder_number(parallel_state, layout):
    """rank-N: tensor parallel fastest, then data (and context) parallel, then pipeline."""
    d = parallel_state.get_data_parallel_rank(with_context_parallel=True)
    p = parallel_state.get_pipeline_model_parallel_rank()
    return parallel_state.get_tensor_model_parallel_rank() + layout["tp"] * (d + layout["dp"] * p)
