"""Write a Llama-architecture GGUF file as a Hugging Face checkpoint (bf16 safetensors and config.json).

GGUF keeps query and key rows in the order of interleaved rotary pairs; Hugging Face keeps the two halves apart, so the
rows are put back. Everything else is a rename and a dequantisation.
"""

import json
import pathlib
import sys

import gguf
import numpy as np
import safetensors

LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def to_bf16(array):
    """float32 to bfloat16 bits, to nearest, ties to even."""
    bits = np.ascontiguousarray(array, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def unpermute(weight, heads):
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def hf_name(name):
    stem = name.removesuffix(".weight")
    if stem.startswith("blk."):
        _, layer, kind = stem.split(".")
        return f"model.layers.{layer}.{LAYER[kind]}.weight"
    return f"{TOP[stem]}.weight"


def main(source, out):
    reader = gguf.GGUFReader(source)
    field = lambda key: reader.fields[f"llama.{key}"].contents()  # noqa: E731
    heads, kv_heads = field("attention.head_count"), field("attention.head_count_kv")
    tensors = {}
    for tensor in reader.tensors:
        if tensor.name.startswith("rope_freqs"):
            continue
        weight = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if ".attn_q." in tensor.name:
            weight = unpermute(weight, heads)
        elif ".attn_k." in tensor.name:
            weight = unpermute(weight, kv_heads)
        bits = np.ascontiguousarray(to_bf16(weight))
        tensors[hf_name(tensor.name)] = bits
    hidden = field("embedding_length")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": field("feed_forward_length"),
        "num_hidden_layers": field("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": hidden // heads,
        "vocab_size": tensors["model.embed_tokens.weight"].shape[0],
        "max_position_embeddings": field("context_length"),
        "rms_norm_eps": field("attention.layer_norm_rms_epsilon"),
        "rope_theta": field("rope.freq_base"),
        "hidden_act": "silu",
        "tie_word_embeddings": "lm_head.weight" not in tensors,
        "torch_dtype": "bfloat16",
    }
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(config, indent=2, default=float) + "\n")
    temporary = out / ".model.safetensors.part"
    specs = {
        name: safetensors.TensorSpec(
            dtype="bfloat16", shape=list(bits.shape), data_ptr=bits.ctypes.data, data_len=bits.nbytes
        )
        for name, bits in tensors.items()
    }
    safetensors.serialize_file(specs, temporary, {"format": "pt"})
    temporary.rename(out / "model.safetensors")
    elements = sum(bits.size for bits in tensors.values())
    print(f"== demo: {len(tensors)} tensors, {elements} elements in {out}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
