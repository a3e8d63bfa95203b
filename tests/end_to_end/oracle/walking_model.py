"""A tiny checkpoint of random weights that walks wherever it may, and closes what it has opened.

Asked at a temperature for a document of a schema, it comes to an end, as `build_tiny_model`'s does
not: what closes a text, an object, a list and an answer is likelier than all else. For this one
number of the hidden state is the same at each place, which the output layer adds to some tokens.
"""

from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer

from tests.helpers.tiny_model import CHAT_TEMPLATE, build_tiny_model

CLOSING = ('"', "}", "]")
CONSTANT = 1.0  # about as large as the others
END_OF_TEXT, BY_CLOSING, BY_END = 0, 2.5, 5.0


def build_walking_model(folder: Path) -> Path:
    build_tiny_model(folder, chat_template=CHAT_TEMPLATE)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    model = transformers.LlamaForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 0] = CONSTANT
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight[0] = 0
            layer.mlp.down_proj.weight[0] = 0
        model.model.norm.weight[0] = 1
        model.lm_head.weight[:, 0] = 0
        for text in CLOSING:
            model.lm_head.weight[tokenizer.token_to_id(text), 0] = BY_CLOSING
        model.lm_head.weight[END_OF_TEXT, 0] = BY_END
    model.save_pretrained(folder)
    return folder
