"""Small real tokenizers of the kinds that checkpoints come with, built in milliseconds."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

TRAINING_TEXT = [
    "The lighthouse keeper wrote a letter to the sea, and the sea wrote back in foam.",
    "Hello, how are you today? I am well, thank you; tell me a long story, please.",
    "user assistant system You are a helpful assistant. <div> [1] # Title",
    "Příliš žluťoučký kůň úpěl ďábelské ódy. 東京の朝は静かです。 สวัสดี 👩‍👩‍👧",
]

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THINKING = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.role == 'assistant' and '</think>' in message.content %}"
    "{{ message.content.split('</think>')[-1] | trim }}"
    "{% else %}{{ message.content | trim }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n\n</think>\n{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for message in messages %}"
    "<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
    "{{ message['content'] | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role == 'user' %}[INST] {{ message.content }} [/INST]"
    "{% elif message.role == 'assistant' %}{{ ' ' + message.content + eos_token }}"
    "{% else %}{{ raise_exception('only user and assistant') }}{% endif %}{% endfor %}"
)
ZEPHYR = (
    "{% for message in messages %}{{ '<|' + message.role + '|>\n' + message.content + eos_token }}"
    "{{ '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)

# Of a llava: written for its processor, it shows only the parts of a content.
LLAVA = (
    "{% for message in messages %}"
    "{% if message['role'] != 'system' %}{{ message['role'].upper() + ': '}}{% endif %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}"
    "{{ '<image>\n' }}{% endfor %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{% generation %}{{ content['text'] + ' '}}{% endgeneration %}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)


def build_chatml(folder: Path, template: str | None = CHATML) -> Path:
    """Like Qwen's: byte-level, ChatML markers special, `<think>` added but not special."""
    tokenizer = _byte_level(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.normalizer = normalizers.NFC()
    thinking = [AddedToken(t, special=False, normalized=False) for t in ("<think>", "</think>")]
    tokenizer.add_tokens(thinking)
    return _save(folder, tokenizer, template, eos_token="<|im_end|>")


def build_marked(folder: Path, marks: Sequence[str]) -> Path:
    """Byte-level, with these as tokens: `[…]` and `<|…|>` are special, as is usual."""
    tokenizer = _byte_level(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens(
        [
            AddedToken(each, special=each[0] == "[" or each[1] == "|", normalized=False)
            for each in marks
        ]
    )
    return _save(folder, tokenizer, CHATML, eos_token="<|im_end|>")


def build_llama3(folder: Path) -> Path:
    """Like Llama 3's: byte-level, a bos from the post-processor, many special tokens."""
    tokenizer = _byte_level(
        ["<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"]
        + [f"<|reserved_special_token_{n}|>" for n in range(20)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", 0)]
    )
    return _save(folder, tokenizer, LLAMA3, bos_token="<|begin_of_text|>", eos_token="<|eot_id|>")


def build_mistral(folder: Path) -> Path:
    """Like Mistral's: sentencepiece by normalizer, byte fallback, `[INST]` special."""
    tokenizer = _sentencepiece(["<unk>", "<s>", "</s>", "[INST]", "[/INST]"])
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    return _save(folder, tokenizer, MISTRAL, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def build_zephyr(folder: Path) -> Path:
    """Like Zephyr's: sentencepiece by pre-tokenizer, role markers plain text, `</s>` special."""
    tokenizer = _sentencepiece(["<unk>", "<s>", "</s>"])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return _save(folder, tokenizer, ZEPHYR, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def build_gemma(folder: Path) -> Path:
    """Like Gemma's: sentencepiece without a prefix space, byte fallback, nothing stripped."""
    tokenizer = _sentencepiece(["<unk>", "<s>", "</s>"])
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return _save(folder, tokenizer, None, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def build_unigram(folder: Path) -> Path:
    """Like T5's: a unigram model, and a decoder that turns `▁` back into spaces by itself."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200,
        special_tokens=["<pad>", "</s>", "<unk>"],
        unk_token="<unk>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(TRAINING_TEXT * 4, trainer)
    return _save(folder, tokenizer, None, eos_token="</s>", unk_token="<unk>")


def build_bert(folder: Path) -> Path:
    """Like BERT's: WordPiece, whose decoder puts the spaces and tidies punctuation."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=True)
    trainer = trainers.WordPieceTrainer(
        vocab_size=260, special_tokens=["[UNK]", "[CLS]", "[SEP]"], show_progress=False
    )
    tokenizer.train_from_iterator(TRAINING_TEXT * 4, trainer)
    return _save(folder, tokenizer, None, eos_token="[SEP]", unk_token="[UNK]")


def build_word_ends(folder: Path) -> Path:
    """Like the first GPT's: tokens tell where a word ends, so a space comes with the next word."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.BPEDecoder()
    trainer = trainers.BpeTrainer(
        vocab_size=260,
        special_tokens=["<unk>", "<eos>"],
        end_of_word_suffix="</w>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(TRAINING_TEXT * 4, trainer)
    return _save(folder, tokenizer, None, eos_token="<eos>", unk_token="<unk>")


BUILDERS = {  # for chats
    "chatml": build_chatml,
    "thinking": lambda folder: build_chatml(folder, THINKING),
    "llama3": build_llama3,
    "mistral": build_mistral,
    "zephyr": build_zephyr,
}
DECODERS = {  # one of each way to write text
    "chatml": build_chatml,
    "mistral": build_mistral,
    "gemma": build_gemma,
    "unigram": build_unigram,
    "bert": build_bert,
    "word_ends": build_word_ends,
}


def _byte_level(special_tokens: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=special_tokens,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TRAINING_TEXT * 4, trainer)
    return tokenizer


def _sentencepiece(special_tokens: list[str]) -> Tokenizer:
    """BPE over `▁` words whose unknown characters become byte tokens."""
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trainer = trainers.BpeTrainer(
        vocab_size=200, special_tokens=special_tokens, show_progress=False
    )
    trained.train_from_iterator(TRAINING_TEXT[:3] * 4, trainer)
    definition = json.loads(trained.to_str())
    vocabulary = definition["model"]["vocab"]
    for byte in range(256):
        vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    definition["model"] |= {"byte_fallback": True, "fuse_unk": True}
    definition["pre_tokenizer"] = None
    tokenizer = Tokenizer.from_str(json.dumps(definition))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    bos = special_tokens.index("<s>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", bos)]
    )
    return tokenizer


def _save(folder: Path, tokenizer: Tokenizer, template: str | None, **special: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **special,
    }
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
