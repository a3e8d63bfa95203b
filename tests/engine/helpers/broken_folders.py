"""Ways to break a model's folder, each with words that its refusal must hold: file and field."""

import json
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONFIG, TOKENIZER = "config.json", "tokenizer.json"
TOKENIZER_CONFIG, SPECIAL = "tokenizer_config.json", "special_tokens_map.json"
GENERATION, TEMPLATE = "generation_config.json", "chat_template.jinja"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
SHARD = "model-00001-of-00001.safetensors"
LM_HEAD = "lm_head.weight"

Break = Callable[[Path], None]
Header = dict[str, Any]


@dataclass(frozen=True, slots=True)
class BrokenFolder:
    """`apply` breaks a copy of a good folder; each of `words` must be in the refusal."""

    name: str
    apply: Break
    words: tuple[str, ...]


def edit(file: str, **fields: Any) -> Break:
    """Set fields of a JSON file, which need not be there."""

    def apply(folder: Path) -> None:
        path = folder / file
        content = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(content | fields))

    return apply


def config(**fields: Any) -> Break:
    return edit(CONFIG, **fields)


def put(file: str, content: bytes | str) -> Break:
    """Write a file anew."""
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: _write(folder / file, data)


def prepend(file: str, data: bytes) -> Break:
    return lambda folder: _write(folder / file, data + (folder / file).read_bytes())


def append(file: str, data: bytes) -> Break:
    return lambda folder: _write(folder / file, (folder / file).read_bytes() + data)


def drop(file: str) -> Break:
    return lambda folder: (folder / file).unlink()


def both(first: Break, second: Break) -> Break:
    def apply(folder: Path) -> None:
        first(folder)
        second(folder)

    return apply


def to_folder(file: str) -> Break:
    return replaced(file, lambda path: path.mkdir())


def replaced(file: str, make: Callable[[Path], Any]) -> Break:
    """Something else in the place of a file."""

    def apply(folder: Path) -> None:
        (folder / file).unlink(missing_ok=True)
        make(folder / file)

    return apply


def grown(file: str, size: int) -> Break:
    """A file of this length, without its bytes on the disk."""
    return lambda folder: os.truncate(folder / file, size)


def backend(change: Callable[[Any], object]) -> Break:
    """Change the content of tokenizer.json."""

    def apply(folder: Path) -> None:
        content = json.loads((folder / TOKENIZER).read_text())
        change(content)
        (folder / TOKENIZER).write_text(json.dumps(content))

    return apply


def header(change: Callable[[Header], None]) -> Break:
    """Change the header of the weights."""

    def apply(folder: Path) -> None:
        head, data = read_weights(folder / WEIGHTS)
        change(head)
        write_weights(folder / WEIGHTS, head, data)

    return apply


def entry(name: str, **fields: Any) -> Break:
    """Change what the weights' header says of one tensor."""
    return header(lambda head: head[name].update(fields))


def sharded(change: Callable[[Path, dict[str, Any]], None]) -> Break:
    """Make an index with one shard, then change the index (or more) in the folder."""

    def apply(folder: Path) -> None:
        head, _ = read_weights(folder / WEIGHTS)
        (folder / WEIGHTS).rename(folder / SHARD)
        index = {"metadata": {}, "weight_map": {n: SHARD for n in head if n != "__metadata__"}}
        change(folder, index)
        (folder / INDEX).write_text(json.dumps(index))

    return apply


def named(tensor: str, file: Any) -> Break:
    """An index that names this file for a tensor."""
    return sharded(lambda _, index: index["weight_map"].update({tensor: file}))


def numbers(name: str, value: float) -> Break:
    """Set all numbers of a float32 tensor."""

    def apply(folder: Path) -> None:
        head, data = read_weights(folder / WEIGHTS)
        start, end = head[name]["data_offsets"]
        filled = struct.pack("<f", value) * ((end - start) // 4)
        write_weights(folder / WEIGHTS, head, data[:start] + filled + data[end:])

    return apply


def read_weights(file: Path) -> tuple[Header, bytes]:
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def write_weights(file: Path, head: Header, data: bytes) -> None:
    text = json.dumps(head).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data)


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def _two_values(file: str, field: str) -> Break:
    def apply(folder: Path) -> None:
        text = (folder / file).read_text().rstrip().removesuffix("}")
        (folder / file).write_text(f'{text}, "{field}": 7}}')

    return apply


def _second_shard(folder: Path, index: dict[str, Any]) -> None:
    head, data = read_weights(folder / SHARD)
    start, end = head[LM_HEAD]["data_offsets"]
    alone = {LM_HEAD: head[LM_HEAD] | {"data_offsets": [0, end - start]}}
    write_weights(folder / "second.safetensors", alone, data[start:end])
    index["weight_map"]["model.norm.weight"] = SHARD
    index["weight_map"][LM_HEAD] = "second.safetensors"


def _missing_shard(folder: Path, index: dict[str, Any]) -> None:
    (folder / SHARD).unlink()


def _overlap(head: Header) -> None:
    first, second = [name for name in head if name != "__metadata__"][:2]
    head[second] = dict(head[first])


def _lost(head: Header) -> None:
    last = max((e["data_offsets"][1], n) for n, e in head.items() if n != "__metadata__")[1]
    del head[last]


def _renamed(head: Header) -> None:
    head["other.weight"] = head.pop("model.norm.weight")


_DEEP = 100_000
_HUGE = 10**12

# Those that were seen to end in a traceback, a riddle or no end.
SEEN = [
    BrokenFolder("tok_missing", drop(TOKENIZER), (TOKENIZER, "is missing")),
    BrokenFolder("tok_broken", put(TOKENIZER, "{"), (TOKENIZER,)),
    BrokenFolder("tmpl_syntax", put(TEMPLATE, "{% for %}"), (TEMPLATE, "chat_template", "broken")),
    BrokenFolder("cfg_neg", config(num_hidden_layers=-1), (CONFIG, "num_hidden_layers", "-1")),
    BrokenFolder(
        "cfg_nest",
        put(CONFIG, '{"model_type": "llama", "x": ' + "[" * _DEEP + "]" * _DEEP + "}"),
        (CONFIG, "nested too deep"),
    ),
    BrokenFolder("gen_bad", edit(GENERATION, eos_token_id=["x", 1]), (GENERATION, "eos_token_id")),
    BrokenFolder(
        "cfg_rope",
        config(rope_parameters={"rope_type": "evil", "rope_theta": 1e4}),
        (CONFIG, "rope_type", "evil"),
    ),
    BrokenFolder(
        "cfg_layers",
        config(num_hidden_layers=1_000_000_000),
        (CONFIG, "num_hidden_layers", "1000000000"),
    ),
    BrokenFolder("cfg_nan", config(rms_norm_eps=float("nan")), (CONFIG, "rms_norm_eps", "NaN")),
    BrokenFolder(
        "cfg_positions_0",
        config(max_position_embeddings=0),
        (CONFIG, "max_position_embeddings", "0"),
    ),
    BrokenFolder(
        "cfg_positions_huge",
        config(max_position_embeddings=_HUGE),
        (CONFIG, "max_position_embeddings", str(_HUGE)),
    ),
]

_CONFIGS: dict[str, tuple[dict[str, Any], str]] = {  # fields → the field that is named
    "more_layers_than_stored": ({"num_hidden_layers": 4}, "num_hidden_layers is 4"),
    "layers_as_text": ({"num_hidden_layers": "3"}, "num_hidden_layers"),
    "layers_true": ({"num_hidden_layers": True}, "num_hidden_layers"),
    "layers_half": ({"num_hidden_layers": 2.5}, "num_hidden_layers"),
    "vocabulary_larger": ({"vocab_size": 400}, "vocab_size is 400"),
    "vocabulary_huge": ({"vocab_size": 10**8}, "vocab_size is 100000000"),
    "vocabulary_endless": ({"vocab_size": 10**30}, "vocab_size"),
    "vocabulary_none": ({"vocab_size": 0}, "vocab_size"),
    "vocabulary_list": ({"vocab_size": {"a": 1}}, "vocab_size"),
    "width_huge": ({"hidden_size": 1 << 24}, "hidden_size is 16777216"),
    "width_other": ({"hidden_size": 128}, "hidden_size is 128"),
    "width_negative": ({"hidden_size": -64}, "hidden_size"),
    "mlp_other": ({"intermediate_size": 95}, "intermediate_size is 95"),
    "mlp_huge": ({"intermediate_size": 1 << 26}, "intermediate_size is 67108864"),
    "heads_none": ({"num_attention_heads": 0}, "num_attention_heads"),
    "heads_other": ({"num_attention_heads": 2, "head_dim": 16}, "num_attention_heads"),
    "groups_odd": ({"num_key_value_heads": 3}, "num_key_value_heads"),
    "groups_other": ({"num_key_value_heads": 1}, "num_key_value_heads"),
    "head_odd": ({"head_dim": "wide"}, "head_dim"),
    "epsilon_text": ({"rms_norm_eps": "small"}, "rms_norm_eps"),
    "epsilon_negative": ({"rms_norm_eps": -1e-6}, "rms_norm_eps"),
    "epsilon_infinite": ({"rms_norm_eps": float("inf")}, "rms_norm_eps"),
    "theta_zero": ({"rope_parameters": {"rope_type": "default", "rope_theta": 0}}, "rope_theta"),
    "rope_text": ({"rope_parameters": "linear"}, "rope_parameters"),
    "rope_factor": (
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": "two"}},
        "factor",
    ),
    "rope_factor_tiny": (
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 1e-300}},
        "rope_parameters",
    ),
    "rope_number": ({"rope_scaling": {"type": 5, "factor": 2.0}}, "rope_scaling.type"),
    "activation": ({"hidden_act": "evil"}, "evil"),
    "activation_number": ({"hidden_act": 5}, "hidden_act"),
    "layer_types_text": ({"layer_types": "full_attention"}, "layer_types"),
    "layer_types_numbers": ({"layer_types": [1, 2, 3]}, "layer_types"),
    "layer_types_short": ({"layer_types": ["full_attention"]}, "layer_types"),
    "window_text": ({"sliding_window": "wide"}, "sliding_window"),
    "eos_text": ({"eos_token_id": "</s>"}, "eos_token_id"),
    "eos_beyond": ({"eos_token_id": 384}, "eos_token_id"),
    "eos_negative": ({"eos_token_id": [-1]}, "eos_token_id"),
    "eos_nested": ({"eos_token_id": [[0]]}, "eos_token_id"),
    "eos_fraction": ({"eos_token_id": 0.5}, "eos_token_id"),
    "padding_beyond": ({"pad_token_id": 10_000}, "adding_idx"),
    "model_type_unknown": ({"model_type": "evil"}, "evil"),
    "model_type_number": ({"model_type": 5}, "model_type"),
    "model_type_none": ({"model_type": None}, "model_type"),
    "own_code": ({"auto_map": {"AutoModel": "evil.py"}, "model_type": "evil"}, "auto_map"),
    "dtype_unknown": ({"dtype": "evil"}, "evil"),
    "dtype_whole": ({"dtype": "int8"}, "int8"),
    "dtype_number": ({"dtype": 32}, "32"),
    "quantization_text": ({"quantization_config": "int4"}, "quantization_config"),
    "text_config_list": ({"text_config": [1]}, "text_config"),
    "architectures_text": ({"architectures": "LlamaForCausalLM"}, "architectures"),
    "tied_text": ({"tie_word_embeddings": "perhaps"}, "tie_word_embeddings"),
    "nan_inside": ({"unknown": {"list": [1, float("nan")]}}, "unknown.list[1]"),
}

_FILES: list[tuple[str, Break, tuple[str, ...]]] = [
    ("config_missing", drop(CONFIG), ("config.json",)),
    ("config_empty", put(CONFIG, ""), (CONFIG, "empty")),
    ("config_list", put(CONFIG, "[]"), (CONFIG, "object")),
    ("config_cut", put(CONFIG, '{"model_type": "lla'), (CONFIG, "JSON")),
    ("config_folder", to_folder(CONFIG), (CONFIG, "is a folder")),
    ("config_pipe", replaced(CONFIG, os.mkfifo), (CONFIG, "pipe")),
    ("config_device", replaced(CONFIG, lambda f: f.symlink_to("/dev/zero")), (CONFIG, "device")),
    ("config_loop", replaced(CONFIG, lambda f: f.symlink_to(f.name)), (CONFIG, "links")),
    ("config_link", replaced(CONFIG, lambda f: f.symlink_to("gone")), (CONFIG, "link")),
    ("config_latin", put(CONFIG, b'{"name": "\xe9"}'), (CONFIG, "UTF-8")),
    ("config_bom", prepend(CONFIG, b"\xef\xbb\xbf"), (CONFIG, "byte order mark")),
    ("config_endless", grown(CONFIG, 1 << 40), (CONFIG, "bytes")),
    ("config_twice", _two_values(CONFIG, "vocab_size"), (CONFIG, "vocab_size")),
    ("config_digits", put(CONFIG, '{"x": ' + "9" * 10_000 + "}"), (CONFIG, "JSON")),
    ("config_nul", prepend(CONFIG, b"\0"), (CONFIG, "JSON")),
    ("tokenizer_empty", put(TOKENIZER, ""), (TOKENIZER, "empty")),
    ("tokenizer_folder", to_folder(TOKENIZER), (TOKENIZER, "is a folder")),
    ("tokenizer_pipe", replaced(TOKENIZER, os.mkfifo), (TOKENIZER, "pipe")),
    ("tokenizer_latin", put(TOKENIZER, b'{"version": "\xe9"}'), (TOKENIZER, "UTF-8")),
    ("tokenizer_bom", prepend(TOKENIZER, b"\xef\xbb\xbf"), (TOKENIZER, "byte order mark")),
    ("tokenizer_nested", put(TOKENIZER, "[" * _DEEP), (TOKENIZER,)),
    ("tokenizer_endless", grown(TOKENIZER, 1 << 40), (TOKENIZER, "bytes")),
    ("tokenizer_cut", lambda f: os.truncate(f / TOKENIZER, 2000), (TOKENIZER,)),
    ("tokenizer_no_model", backend(lambda b: b.pop("model")), (TOKENIZER,)),
    ("tokenizer_model", backend(lambda b: b["model"].update(type="Evil")), (TOKENIZER,)),
    ("tokenizer_ids", backend(lambda b: b["model"].update(vocab={"a": -1})), (TOKENIZER,)),
    ("tokenizer_merges", backend(lambda b: b["model"].update(merges=[["q!", "x!"]])), (TOKENIZER,)),
    (
        "tokenizer_no_words",
        backend(lambda b: (b.update(added_tokens=[]), b["model"].update(vocab={}, merges=[]))),
        (TOKENIZER, "vocab"),
    ),
    (
        "tokenizer_pattern",
        backend(lambda b: b.update(pre_tokenizer={"type": "Split", "pattern": {"Regex": "("}})),
        (TOKENIZER,),
    ),
    (
        "tokenizer_unknown_words",
        backend(
            lambda b: b.update(model={"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "u"})
        ),
        (TOKENIZER,),
    ),
    ("tokenizer_larger", config(vocab_size=100), (TOKENIZER, "vocab_size", "100")),
    ("merges_missing", lambda f: os.rename(f / TOKENIZER, f / "vocab.json"), (TOKENIZER,)),
    ("options_cut", put(TOKENIZER_CONFIG, "{"), (TOKENIZER_CONFIG, "JSON")),
    ("options_list", put(TOKENIZER_CONFIG, "[]"), (TOKENIZER_CONFIG, "object")),
    ("options_nan", put(TOKENIZER_CONFIG, '{"x": NaN}'), (TOKENIZER_CONFIG, "x is NaN")),
    (
        "length_infinite",
        put(TOKENIZER_CONFIG, '{"model_max_length": 1e999}'),
        ("model_max_length",),
    ),
    ("eos_number", edit(TOKENIZER_CONFIG, eos_token=5), (TOKENIZER_CONFIG, "eos_token")),
    (
        "eos_object",
        edit(TOKENIZER_CONFIG, eos_token={"content": 5}),
        (TOKENIZER_CONFIG, "eos_token"),
    ),
    ("added_list", edit(TOKENIZER_CONFIG, added_tokens_decoder=[1]), ("added_tokens_decoder",)),
    (
        "added_id",
        edit(TOKENIZER_CONFIG, added_tokens_decoder={"one": {"content": "x"}}),
        (TOKENIZER_CONFIG, "added_tokens_decoder", "one"),
    ),
    (
        "added_text",
        edit(TOKENIZER_CONFIG, added_tokens_decoder={"5": "x"}),
        (TOKENIZER_CONFIG, "added_tokens_decoder.5"),
    ),
    ("special_cut", put(SPECIAL, "{"), (SPECIAL, "JSON")),
    ("special_number", edit(SPECIAL, bos_token=5), (SPECIAL, "bos_token")),
    ("special_folder", lambda f: (f / SPECIAL).mkdir(), (SPECIAL, "is a folder")),
    (
        "template_in_options",
        edit(TOKENIZER_CONFIG, chat_template="{{"),
        (TOKENIZER_CONFIG, "chat_t"),
    ),
    (
        "template_number",
        edit(TOKENIZER_CONFIG, chat_template=5),
        (TOKENIZER_CONFIG, "chat_template"),
    ),
    ("template_names", edit(TOKENIZER_CONFIG, chat_template=[{"name": 5}]), ("chat_template",)),
    (
        "template_surrogate",
        edit(TOKENIZER_CONFIG, chat_template="{{ '\ud800' }}"),
        (TOKENIZER_CONFIG, "chat_template"),
    ),
    ("template_empty", put(TEMPLATE, ""), (TEMPLATE, "empty")),
    ("template_latin", put(TEMPLATE, b"\xe9"), (TEMPLATE, "UTF-8")),
    ("template_filter", put(TEMPLATE, "{{ messages | evil }}"), (TEMPLATE, "evil")),
    ("template_deep", put(TEMPLATE, "{{" + "(" * 5000 + ")" * 5000 + "}}"), (TEMPLATE,)),
    (
        "template_blocks",
        put(TEMPLATE, "{% for a in b %}" * 30 + "{% endfor %}" * 30),
        (TEMPLATE, "chat_template"),
    ),
    ("template_folder", lambda f: (f / TEMPLATE).mkdir(), (TEMPLATE, "is a folder")),
    ("generation_cut", put(GENERATION, "{"), (GENERATION, "JSON")),
    ("generation_list", put(GENERATION, "[]"), (GENERATION, "object")),
    ("generation_eos", edit(GENERATION, eos_token_id=9999), (GENERATION, "eos_token_id")),
    ("generation_nan", put(GENERATION, '{"temperature": NaN}'), (GENERATION, "temperature")),
    ("generation_empty", put(GENERATION, ""), (GENERATION, "empty")),
    ("weights_missing", drop(WEIGHTS), (WEIGHTS, "missing")),
    ("weights_empty", put(WEIGHTS, b""), (WEIGHTS, "empty")),
    ("weights_folder", to_folder(WEIGHTS), (WEIGHTS, "is a folder")),
    ("weights_short", put(WEIGHTS, b"\1\0\0"), (WEIGHTS, "cut")),
    ("weights_cut", lambda f: os.truncate(f / WEIGHTS, 100_000), (WEIGHTS, "cut")),
    ("weights_header_cut", lambda f: os.truncate(f / WEIGHTS, 500), (WEIGHTS, "cut")),
    (
        "weights_longer",
        lambda f: _write(f / WEIGHTS, (f / WEIGHTS).read_bytes() + b"x"),
        (WEIGHTS,),
    ),
    ("header_huge", put(WEIGHTS, (2**62).to_bytes(8, "little") + b"{}"), (WEIGHTS, "header")),
    (
        "header_hundreds_of_megabytes",
        both(put(WEIGHTS, (2**28).to_bytes(8, "little")), grown(WEIGHTS, 2**29)),
        (WEIGHTS, "header"),
    ),
    ("header_text", put(WEIGHTS, b"\5\0\0\0\0\0\0\0hello"), (WEIGHTS, "JSON")),
    ("header_nested", put(WEIGHTS, (60_000).to_bytes(8, "little") + b"[" * 60_000), (WEIGHTS,)),
    ("header_metadata", header(lambda h: h.update(__metadata__=5)), (WEIGHTS, "__metadata__")),
    ("tensor_overlap", header(_overlap), (WEIGHTS, "overlaps")),
    ("tensor_gone", header(_lost), (WEIGHTS, "bytes of weights")),
    ("tensor_renamed", header(_renamed), ("model.norm.weight",)),
    ("tensor_dtype", entry(LM_HEAD, dtype="F31"), (WEIGHTS, LM_HEAD, "F31")),
    ("tensor_other_dtype", entry(LM_HEAD, dtype="F64"), (WEIGHTS, LM_HEAD, "F64")),
    ("tensor_shape", entry(LM_HEAD, shape=[384, 65]), (WEIGHTS, LM_HEAD, "65")),
    ("tensor_shape_huge", entry(LM_HEAD, shape=[2**40, 2**40]), (WEIGHTS, LM_HEAD)),
    ("tensor_shape_negative", entry(LM_HEAD, shape=[-384, -64]), (WEIGHTS, LM_HEAD, "-384")),
    ("tensor_shape_text", entry(LM_HEAD, shape="384x64"), (WEIGHTS, LM_HEAD)),
    ("tensor_turned", entry(LM_HEAD, shape=[64, 384]), (LM_HEAD, WEIGHTS)),
    ("tensor_offsets_negative", entry(LM_HEAD, data_offsets=[-8, 98296]), (WEIGHTS, LM_HEAD)),
    ("tensor_offsets_turned", entry(LM_HEAD, data_offsets=[98304, 0]), (WEIGHTS, LM_HEAD)),
    ("tensor_offsets_far", entry(LM_HEAD, data_offsets=[2**60, 2**60 + 98304]), (WEIGHTS, "cut")),
    ("tensor_no_object", header(lambda h: h.update({LM_HEAD: 5})), (WEIGHTS, LM_HEAD)),
    ("tensor_nan", numbers("model.norm.weight", float("nan")), (WEIGHTS, "model.norm.weight")),
    (
        "tensor_nan_beside_others",
        both(numbers(LM_HEAD, float("nan")), put("consolidated.safetensors", b"not read")),
        (WEIGHTS, LM_HEAD),
    ),
    ("tensor_infinite", numbers(LM_HEAD, float("inf")), (WEIGHTS, LM_HEAD)),
    ("index_outside", named(LM_HEAD, "../other/model.safetensors"), (INDEX, "outside")),
    ("index_absolute", named(LM_HEAD, "/etc/passwd.safetensors"), (INDEX, "outside")),
    ("index_pickle", named(LM_HEAD, "weights.bin"), (INDEX, "weights.bin")),
    ("index_number", named(LM_HEAD, 5), (INDEX, LM_HEAD)),
    ("index_more", named("extra.weight", SHARD), (SHARD, "extra.weight")),
    ("index_empty", sharded(lambda _, index: index.update(weight_map={})), (INDEX, "weight_map")),
    ("index_list", sharded(lambda _, index: index.update(weight_map=[1])), (INDEX, "weight_map")),
    ("index_metadata", sharded(lambda _, index: index.update(metadata=[])), (INDEX, "metadata")),
    ("shard_missing", sharded(_missing_shard), (SHARD, "is missing")),
    ("shard_twice", sharded(_second_shard), (LM_HEAD, "second.safetensors")),
    (
        "index_cut",
        both(drop(WEIGHTS), put(INDEX, "{")),
        (INDEX, "JSON"),
    ),
]

MORE = [
    *(
        BrokenFolder(f"config_{name}", config(**fields), (CONFIG, word))
        for name, (fields, word) in _CONFIGS.items()
    ),
    *(BrokenFolder(name, apply, words) for name, apply, words in _FILES),
]


def _without(*files: str) -> Break:
    def apply(folder: Path) -> None:
        for file in files:
            (folder / file).unlink(missing_ok=True)

    return apply


# What is in truth fine, and must start.
FINE: dict[str, Break] = {
    "as_saved": _without(),
    "no_options": _without(GENERATION, TOKENIZER_CONFIG, SPECIAL),
    "no_template": edit(TOKENIZER_CONFIG, chat_template=None),
    "template_without_a_word": edit(TOKENIZER_CONFIG, chat_template=""),
    "named_templates": edit(
        TOKENIZER_CONFIG, chat_template=[{"name": "default", "template": "{{ messages }}"}]
    ),
    "no_eos": config(eos_token_id=None),
    "one_eos_of_two": config(eos_token_id=[0, 999]),
    "padding_minus_one": config(pad_token_id=-1),
    "unknown_fields": config(comment={"a": [1, None]}, transformers_version="9.9"),
    "infinity_elsewhere": config(time_step_limit=[0.0, float("inf")]),
    "endless_context": edit(TOKENIZER_CONFIG, model_max_length=int(1e30)),
    "added_token_beyond_the_rows": edit(
        TOKENIZER_CONFIG, added_tokens_decoder={"384": {"content": "<image>", "special": True}}
    ),
    "said_twice_alike": lambda folder: _write(
        folder / CONFIG,
        (folder / CONFIG).read_bytes().rstrip().removesuffix(b"}") + b', "vocab_size": 384}',
    ),
    "one_shard": sharded(lambda folder, index: None),
    "links": lambda folder: _linked(folder),
    "other_weights_beside": put("consolidated.safetensors", b"not read"),
}


def _linked(folder: Path) -> None:
    """As the cache of a hub has it: each file is a link to another folder."""
    blobs = folder.parent / f"{folder.name}-blobs"
    blobs.mkdir()
    for number, file in enumerate(sorted(folder.iterdir())):
        file.rename(blobs / str(number))
        file.symlink_to(blobs / str(number))
