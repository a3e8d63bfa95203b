"""`Place`: where a tensor of a GGUF file goes in a model, and in which form."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

EMBEDDINGS, OUTPUT, OUTPUT_NORM = "token_embd.weight", "output.weight", "output_norm.weight"
ROPE_FACTORS = "rope_freqs.weight"
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
# What config.json says in numbers, and no model has as a weight.
NO_WEIGHTS = frozenset((ROPE_FACTORS, LONG_FACTORS, SHORT_FACTORS))

Shape = tuple[int, ...]
Config = Mapping[str, Any]  # config.json


class Form(Enum):
    """What a parameter of a model, or a part of it, is made of the tensor that a file has."""

    WHOLE = "the same numbers"
    LESS_ONE = "the numbers less one: a norm whose weight transformers adds one to"
    TURNED = "each matrix with its rows as columns"
    FIRST = "the first half of each matrix's rows"
    SECOND = "the second half of each matrix's rows"
    EVEN = "the columns 0, 2, 4 and so on of each matrix, which are rows of the file"
    ODD = "the columns between those"
    ONE_ROW = "a matrix of one row, which is a vector in the file"
    EACH_ROW = "a parameter for each row, whose name has the row's number"


@dataclass(frozen=True, slots=True)
class Place:
    """`name` is that of the parameter, of a layer without what all layers' names begin with."""

    name: str
    shape: Shape  # in the file
    form: Form = Form.WHOLE

    @property
    def parameter_shape(self) -> Shape:
        """Of the whole parameter, of which this may be a half."""
        if self.form in (Form.FIRST, Form.SECOND):
            return (self.shape[0], 2 * self.shape[1], *self.shape[2:])
        if self.form in (Form.EVEN, Form.ODD):
            return (self.shape[0], *self.shape[2:], 2 * self.shape[1])
        if self.form is Form.TURNED:
            return (*self.shape[:-2], self.shape[-1], self.shape[-2])
        if self.form is Form.ONE_ROW:
            return (1, *self.shape)
        return self.shape[1:] if self.form is Form.EACH_ROW else self.shape


Places = dict[str, Place]  # by the name in the file, of a layer without `blk.N.`
Layer = Callable[["Sizes"], Places]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a layer's weights."""

    config: Config

    @property
    def hidden(self) -> int:
        return int(self.config["hidden_size"])

    @property
    def width(self) -> int:
        return int(self.config["intermediate_size"])

    @property
    def head(self) -> int:
        return int(self.config["head_dim"])

    @property
    def heads(self) -> int:
        return int(self.config["num_attention_heads"])

    @property
    def groups(self) -> int:
        return int(self.config["num_key_value_heads"])

    @property
    def queries(self) -> int:
        return self.heads * self.head

    @property
    def keys(self) -> int:
        return self.groups * self.head


def norm(name: str, width: int, form: Form = Form.WHOLE, *, has_bias: bool = False) -> Places:
    """`name` is `attn_norm=input_layernorm`, as in the next."""
    own, _, other = name.partition("=")
    places = {f"{own}.weight": Place(f"{other}.weight", (width,), form)}
    if has_bias:
        places[f"{own}.bias"] = Place(f"{other}.bias", (width,))
    return places


def linear(name: str, outputs: int, inputs: int, *, has_bias: bool = False) -> Places:
    """A linear layer, `attn_q=self_attn.q_proj`: its name in the file, and in the model."""
    own, _, other = name.partition("=")
    places = {f"{own}.weight": Place(f"{other}.weight", (outputs, inputs))}
    if has_bias:
        places[f"{own}.bias"] = Place(f"{other}.bias", (outputs,))
    return places


def attention(of: Sizes, *, has_bias: bool = False, has_out_bias: bool = False) -> Places:
    """Queries, keys, values and what becomes of them, each by itself."""
    return {
        **linear("attn_q=self_attn.q_proj", of.queries, of.hidden, has_bias=has_bias),
        **linear("attn_k=self_attn.k_proj", of.keys, of.hidden, has_bias=has_bias),
        **linear("attn_v=self_attn.v_proj", of.keys, of.hidden, has_bias=has_bias),
        **linear("attn_output=self_attn.o_proj", of.hidden, of.queries, has_bias=has_out_bias),
    }


def two_norms(of: Sizes, form: Form = Form.WHOLE, *, has_bias: bool = False) -> Places:
    """Before attention, and before what follows it."""
    return {
        **norm("attn_norm=input_layernorm", of.hidden, form, has_bias=has_bias),
        **norm("ffn_norm=post_attention_layernorm", of.hidden, form, has_bias=has_bias),
    }


def gated(of: Sizes) -> Places:
    """Gate, up and down."""
    return {
        **linear("ffn_gate=mlp.gate_proj", of.width, of.hidden),
        **linear("ffn_up=mlp.up_proj", of.width, of.hidden),
        **linear("ffn_down=mlp.down_proj", of.hidden, of.width),
    }


def up_and_down(of: Sizes) -> Places:
    """Without a gate."""
    return {
        **linear("ffn_up=mlp.up_proj", of.width, of.hidden),
        **linear("ffn_down=mlp.down_proj", of.hidden, of.width),
    }


def gate_within_up(of: Sizes) -> Places:
    """Gate and up in one."""
    return {
        **linear("ffn_up=mlp.gate_up_proj", 2 * of.width, of.hidden),
        **linear("ffn_down=mlp.down_proj", of.hidden, of.width),
    }


def experts(of: Sizes, count: int, width: int, router: str, name: str = "mlp.experts") -> Places:
    """Those of a layer in one tensor each; transformers has gates and ups in one."""
    wide, narrow = (count, width, of.hidden), (count, of.hidden, width)
    return {
        **linear(f"ffn_gate_inp={router}", count, of.hidden),
        "ffn_gate_exps.weight": Place(f"{name}.gate_up_proj", wide, Form.FIRST),
        "ffn_up_exps.weight": Place(f"{name}.gate_up_proj", wide, Form.SECOND),
        "ffn_down_exps.weight": Place(f"{name}.down_proj", narrow),
    }
