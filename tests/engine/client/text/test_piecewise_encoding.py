from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from engine.client.text.piecewise_encoding import ENTRY_BYTES, MAX_BYTES, PiecewiseEncoder
from tests.engine.helpers.small_tokenizers import BUILDERS, build_chatml, build_gemma

FAMILIES = sorted(BUILDERS)
MARKERS = [
    *("<|im_start|>", "<|im_end|>", "<think>", "<|eot_id|>", "<|start_header_id|>"),
    *("<s>", "</s>", "[INST]", "[/INST]", "<|im_", "[INST", " ", "\n", "user", "▁"),
]


@pytest.fixture(scope="module")
def backends(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Backend]:
    root = tmp_path_factory.mktemp("tokenizers")
    builders = {**BUILDERS, "gemma": build_gemma}
    return {
        name: Backend.from_file(str(build(root / name) / "tokenizer.json"))
        for name, build in builders.items()
    }


def make_encoder(
    backend: Backend, max_bytes: int = MAX_BYTES
) -> tuple[list[str], PiecewiseEncoder]:
    """Beside it the pieces that it has encoded."""
    encoded: list[str] = []

    def encode(piece: str) -> list[int]:
        encoded.append(piece)
        return whole(backend, piece)

    added = backend.get_added_tokens_decoder().values()
    return encoded, PiecewiseEncoder(encode, added, max_bytes)


def whole(backend: Backend, text: str) -> list[int]:
    ids: list[int] = backend.encode(text, add_special_tokens=False).ids
    return ids


@given(
    family=st.sampled_from([*FAMILIES, "gemma"]),
    parts=st.lists(st.one_of(st.sampled_from(MARKERS), st.text(max_size=12)), max_size=12),
)
@settings(max_examples=400, deadline=None)
def test_any_text_has_the_ids_of_the_whole_also_from_memory(
    backends: dict[str, Backend], family: str, parts: list[str]
) -> None:
    backend, text = backends[family], "".join(parts)
    _, encoder = make_encoder(backend)
    for _ in range(2):
        assert encoder.encode(text, "ana") == whole(backend, text)


@pytest.mark.parametrize(
    "odd",
    [
        AddedToken("<|im_end|>x", normalized=False),  # begins like another one
        AddedToken("<|l|>", lstrip=True, normalized=False),
        AddedToken("<|r|>", rstrip=True, normalized=False),
        AddedToken("word", single_word=True, normalized=False),
        AddedToken("Normal", normalized=True),
    ],
    ids=lambda token: token.content,
)
@given(
    parts=st.lists(st.sampled_from([*MARKERS[:2], "x", "<|l|>", "<|r|>", "word", "Normal", " "]))
)
@settings(max_examples=100, deadline=None)
def test_unusual_added_tokens_change_nothing(
    backends: dict[str, Backend], odd: AddedToken, parts: list[str]
) -> None:
    backend = Backend.from_str(backends["chatml"].to_str())
    backend.add_tokens([odd])
    text = "".join(parts)
    _, encoder = make_encoder(backend)
    assert encoder.encode(text, "ana") == whole(backend, text)


def test_only_what_is_new_is_encoded(backends: dict[str, Backend]) -> None:
    encoded, encoder = make_encoder(backends["chatml"])
    chat = "<|im_start|>user\nHello<|im_end|>\n"
    encoder.encode(chat, "ana")
    assert encoded == ["<|im_start|>user\nHello", "<|im_end|>\n"]
    encoded.clear()
    longer = chat + "<|im_start|>assistant\nwell"
    assert encoder.encode(longer, "ana") == whole(backends["chatml"], longer)
    assert encoded == ["<|im_start|>assistant\nwell"]


def test_nobody_is_served_from_what_another_wrote(backends: dict[str, Backend]) -> None:
    encoded, encoder = make_encoder(backends["chatml"])
    encoder.encode("a secret", "ana")
    encoder.encode("a secret", "bob")
    assert encoded == ["a secret", "a secret"]


def test_what_was_not_used_for_longest_is_forgotten_first(backends: dict[str, Backend]) -> None:
    room_for_two = 2 * (ENTRY_BYTES + 4)
    encoded, encoder = make_encoder(backends["chatml"], max_bytes=room_for_two)
    for text in "abacab":
        assert encoder.encode(text, "ana") == whole(backends["chatml"], text)
    assert "".join(encoded) == "abcb"


def test_a_piece_that_is_too_long_to_remember_is_encoded_all_the_same(tmp_path: Path) -> None:
    backend = Backend.from_file(str(build_chatml(tmp_path / "model") / "tokenizer.json"))
    _, encoder = make_encoder(backend, max_bytes=10)
    for _ in range(2):
        assert encoder.encode("<|im_start|>user", "ana") == whole(backend, "<|im_start|>user")
