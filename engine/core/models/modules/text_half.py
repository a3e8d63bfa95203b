"""Of a model that also takes pictures or sounds, the half that reads and writes text.

transformers' own class for the whole checkpoint is made, so that names of weights are those it
knows, and its `forward` is the one that answers text. But whatever is neither the decoder nor the
output layer is let go of while the model has no memory yet: towers and projectors are not read.
"""

from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_MULTIMODAL_LM_MAPPING

from engine.core.attention import paged as attention

LEFT_OUT = "parley_left_out"  # the attribute of a model that names what was let go of
SPEAKERS = ("talker", "token2wav", "code2wav")  # beside a thinker: they say what it has written


class PlainHalf(nn.Module):
    """Decoder and output layer of a half, named as in a model of text alone."""

    def __init__(self, half: Any) -> None:
        super().__init__()
        self.model = half.get_decoder()
        places = (name for name, module in half.named_modules() if module is self.model)
        self.layers_name = f"{next(places)}.layers"  # in the whole, which adapters are made for
        self.lm_head = half.get_output_embeddings()
        self.config = self.model.config
        self.dtype = half.dtype
        self.generation_config = half.generation_config

    def get_input_embeddings(self) -> nn.Module:
        """As transformers' models have it."""
        table: nn.Module = self.model.get_input_embeddings()
        return table

    def get_output_embeddings(self) -> nn.Module:
        """Likewise."""
        layer: nn.Module = self.lm_head
        return layer


class LeftOut(nn.Module):
    """In the place of a tower. There are models that ask one where it lies, and then not for more.

    Called, it raises NotImplementedError.
    """

    device = torch.device("cpu")


def model_class(config: Any) -> Any:
    """What makes a model of the whole config, by `from_config` and `from_pretrained`."""
    kind = MODEL_FOR_MULTIMODAL_LM_MAPPING.get(type(config), None)
    return AutoModelForCausalLM if kind is None else _half_of(kind)


def thinking_config(config: Any) -> Any:
    """Of a model that also speaks, the config of the one in it that thinks of what to say."""
    thinker = getattr(config, "thinker_config", None)
    return config if thinker is None else thinker


def attn_implementation(config: Any) -> Any:
    """Ours, for the text alone: there are towers that take no other than transformers' own."""
    parts = [name for name in config.sub_configs if getattr(config, name, None) is not None]
    if not parts:
        return attention.NAME
    text = config.get_text_config()
    others = {name: "eager" for name in parts if getattr(config, name) is not text}
    return {"": attention.NAME} | dict.fromkeys(parts, attention.NAME) | others


def left_out(model: nn.Module) -> tuple[str, ...]:
    """The modules, by their names, that are no part of the model's text."""
    names: tuple[str, ...] = getattr(model, LEFT_OUT, ())
    return (*names, *SPEAKERS) if names else ()


def describe(config: Any, names: Collection[str]) -> str:
    """A line for a person about a model of this whole config that has `left_out` these."""
    kinds = [kind for kind in ("vision", "audio") if getattr(config, f"{kind}_config", None)]
    if not kinds:
        own = sorted({name.rpartition(".")[2] for name in names} - {*SPEAKERS})
        return f"text only: not loaded are {', '.join(own)}"
    towers = "towers are" if len(kinds) > 1 else "tower is"
    return f"text only: the {' and '.join(kinds)} {towers} not loaded"


def skipped_layers(config: Any) -> list[int]:
    """The layers that only look at pictures, which a text goes past. `config` is the text's."""
    layers = getattr(config, "cross_attention_layers", None) or ()
    return [index for index in layers if index < config.num_hidden_layers]


def _half_of(kind: Any) -> Any:
    """A class like `kind`, whose models have let go of all but their text."""

    def initialize(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        kind.__init__(self, config, *args, **kwargs)
        names = tuple(_names_besides_text(self))
        for name in names:
            self.set_submodule(name, LeftOut())
        setattr(self, LEFT_OUT, names)

    members = {
        "__init__": initialize,
        "__module__": kind.__module__,
        "from_config": classmethod(lambda cls, *args, **kwargs: cls._from_config(*args, **kwargs)),
    }
    return type(kind.__name__, (kind,), members)  # by whose name transformers knows renamings


def _names_besides_text(model: Any) -> Iterator[str]:
    decoder = model.get_decoder()
    needed = {model.get_input_embeddings(), model.get_output_embeddings()}
    waiting: list[tuple[str, Any]] = [(name, child) for name, child in model.named_children()]
    if decoder is model:
        return
    while waiting:
        place, module = waiting.pop()
        if module is decoder:
            yield from (f"{place}.layers.{index}" for index in skipped_layers(module.config))
            yield from (f"{place}.{name}" for name in _towers_within(module, needed))
        elif needed.isdisjoint(module.modules()):
            yield place
        elif decoder in module.modules():
            waiting += ((f"{place}.{name}", child) for name, child in module.named_children())


def _towers_within(decoder: nn.Module, needed: set[nn.Module]) -> Iterator[str]:
    """Models of their own in it that have nothing to do with tokens, with what lies beside them."""
    waiting = list(decoder.named_children())
    while waiting:
        place, module = waiting.pop()
        around = (module, *module.children())
        is_tower = any(isinstance(each, PreTrainedModel) for each in around)
        if is_tower and needed.isdisjoint(module.modules()):
            yield place
        else:
            waiting += ((f"{place}.{name}", child) for name, child in module.named_children())
