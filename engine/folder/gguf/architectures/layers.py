"""The weights of a layer of each architecture, by the names that GGUF files have for them."""

from engine.folder.gguf.architectures.places import (
    Form,
    Place,
    Places,
    Sizes,
    attention,
    experts,
    gate_within_up,
    gated,
    linear,
    norm,
    two_norms,
    up_and_down,
)


def llama(of: Sizes) -> Places:
    return {**two_norms(of), **attention(of), **gated(of)}


def qwen2(of: Sizes) -> Places:
    return {**two_norms(of), **attention(of, has_bias=True), **gated(of)}


def qwen3(of: Sizes) -> Places:
    return {**llama(of), **_head_norms(of)}


def mixtral(of: Sizes) -> Places:
    count = of.config["num_local_experts"]
    mixture = experts(of, count, of.width, "mlp.gate")
    return {**two_norms(of), **attention(of), **mixture}


def qwen2_moe(of: Sizes) -> Places:
    count, width = of.config["num_experts"], of.config["moe_intermediate_size"]
    shared, name = of.config["shared_expert_intermediate_size"], "mlp.shared_expert"
    return {
        **two_norms(of),
        **attention(of, has_bias=True),
        **experts(of, count, width, "mlp.gate"),
        # A row of one layer's weight, as a vector.
        "ffn_gate_inp_shexp.weight": Place(f"{name}_gate.weight", (of.hidden,), Form.ONE_ROW),
        **linear(f"ffn_gate_shexp={name}.gate_proj", shared, of.hidden),
        **linear(f"ffn_up_shexp={name}.up_proj", shared, of.hidden),
        **linear(f"ffn_down_shexp={name}.down_proj", of.hidden, shared),
    }


def qwen3_moe(of: Sizes) -> Places:
    count, width = of.config["num_experts"], of.config["moe_intermediate_size"]
    mixture = experts(of, count, width, "mlp.gate")
    return {**two_norms(of), **attention(of), **_head_norms(of), **mixture}


def olmoe(of: Sizes) -> Places:
    count = of.config["num_experts"]
    mixture = experts(of, count, of.width, "mlp.gate")
    return {**two_norms(of), **attention(of), **_whole_norms(of), **mixture}


def granitemoe(of: Sizes) -> Places:
    count, block = of.config["num_local_experts"], "block_sparse_moe"
    mixture = experts(of, count, of.width, f"{block}.router", f"{block}.experts")
    return {**two_norms(of), **attention(of), **mixture}


def gpt_oss(of: Sizes) -> Places:
    count, name = of.config["num_local_experts"], "mlp.experts"
    wide, narrow = (count, of.width, of.hidden), (count, of.hidden, of.width)
    return {
        **norm("attn_norm=input_layernorm", of.hidden),
        **norm("post_attention_norm=post_attention_layernorm", of.hidden),
        **attention(of, has_bias=True, has_out_bias=True),
        "attn_sinks.weight": Place("self_attn.sinks", (of.heads,)),
        **linear("ffn_gate_inp=mlp.router", count, of.hidden, has_bias=True),
        "ffn_gate_exps.weight": Place(f"{name}.gate_up_proj", wide, Form.EVEN),
        "ffn_up_exps.weight": Place(f"{name}.gate_up_proj", wide, Form.ODD),
        "ffn_down_exps.weight": Place(f"{name}.down_proj", narrow, Form.TURNED),
        "ffn_gate_exps.bias": Place(f"{name}.gate_up_proj_bias", wide[:2], Form.EVEN),
        "ffn_up_exps.bias": Place(f"{name}.gate_up_proj_bias", wide[:2], Form.ODD),
        "ffn_down_exps.bias": Place(f"{name}.down_proj_bias", narrow[:2]),
    }


def gemma(of: Sizes) -> Places:
    return {**two_norms(of, Form.LESS_ONE), **attention(of), **gated(of)}


def gemma2(of: Sizes) -> Places:
    return {
        **norm("attn_norm=input_layernorm", of.hidden, Form.LESS_ONE),
        **norm("post_attention_norm=post_attention_layernorm", of.hidden, Form.LESS_ONE),
        **norm("ffn_norm=pre_feedforward_layernorm", of.hidden, Form.LESS_ONE),
        **norm("post_ffw_norm=post_feedforward_layernorm", of.hidden, Form.LESS_ONE),
        **attention(of),
        **gated(of),
    }


def gemma3(of: Sizes) -> Places:
    return {**gemma2(of), **_head_norms(of, Form.LESS_ONE)}


def phi3(of: Sizes) -> Places:
    return {
        **two_norms(of),
        **linear("attn_qkv=self_attn.qkv_proj", of.queries + 2 * of.keys, of.hidden),
        **linear("attn_output=self_attn.o_proj", of.hidden, of.queries),
        **gate_within_up(of),
    }


def glm4(of: Sizes) -> Places:
    return {
        **norm("attn_norm=input_layernorm", of.hidden),
        **norm("post_attention_norm=post_self_attn_layernorm", of.hidden),
        **norm("ffn_norm=post_attention_layernorm", of.hidden),
        **norm("post_ffw_norm=post_mlp_layernorm", of.hidden),
        **attention(of, has_bias=of.config["attention_bias"]),
        **gate_within_up(of),
    }


def olmo2(of: Sizes) -> Places:
    return {
        **norm("post_attention_norm=post_attention_layernorm", of.hidden),
        **norm("post_ffw_norm=post_feedforward_layernorm", of.hidden),
        **attention(of),
        **_whole_norms(of),
        **gated(of),
    }


def cohere(of: Sizes) -> Places:
    """Attention and the rest read the same norm."""
    places = {**norm("attn_norm=input_layernorm", of.hidden), **attention(of), **gated(of)}
    if of.config.get("use_qk_norm"):
        for name, count in (("q", of.heads), ("k", of.groups)):
            place = Place(f"self_attn.{name}_norm.weight", (count, of.head))
            places[f"attn_{name}_norm.weight"] = place
    return places


def starcoder2(of: Sizes) -> Places:
    return {
        **two_norms(of, has_bias=True),
        **attention(of, has_bias=True, has_out_bias=True),
        **linear("ffn_up=mlp.c_fc", of.width, of.hidden, has_bias=True),
        **linear("ffn_down=mlp.c_proj", of.hidden, of.width, has_bias=True),
    }


def stablelm(of: Sizes) -> Places:
    places = {
        **norm("attn_norm=input_layernorm", of.hidden, has_bias=True),
        **attention(of, has_bias=of.config["use_qkv_bias"]),
        **gated(of),
    }
    if not of.config["use_parallel_residual"]:
        places |= norm("ffn_norm=post_attention_layernorm", of.hidden, has_bias=True)
    if of.config["qk_layernorm"]:
        for name, count in (("q", of.heads), ("k", of.groups)):
            own = f"self_attn.{name}_layernorm.norms.{{}}.weight"
            shape = (count, of.head)
            places[f"attn_{name}_norm.weight"] = Place(own, shape, Form.EACH_ROW)
    return places


def nemotron(of: Sizes) -> Places:
    return {**two_norms(of, Form.LESS_ONE, has_bias=True), **attention(of), **up_and_down(of)}


def arcee(of: Sizes) -> Places:
    return {**two_norms(of), **attention(of), **up_and_down(of)}


def _head_norms(of: Sizes, form: Form = Form.WHOLE) -> Places:
    """Of each head's queries and keys."""
    return {
        **norm("attn_q_norm=self_attn.q_norm", of.head, form),
        **norm("attn_k_norm=self_attn.k_norm", of.head, form),
    }


def _whole_norms(of: Sizes) -> Places:
    """Of all heads' queries and keys at once."""
    return {
        **norm("attn_q_norm=self_attn.q_norm", of.queries),
        **norm("attn_k_norm=self_attn.k_norm", of.keys),
    }
