"""How tests stream ids through a decoder, and what the stream must add up to."""

from itertools import pairwise

from engine.client.text.byte_decoder import ByteDecoder
from engine.client.text.detokenizer import IncrementalDecoder
from engine.client.text.tokenizer import Tokenizer
from tests.engine.helpers.small_tokenizers import DECODERS

FAMILIES = tuple(DECODERS)
WITH_BYTES = ("chatml", "mistral", "gemma")  # these can write every character


def full_decode(tokenizer: Tokenizer, prompt: list[int], ids: list[int], **options: bool) -> str:
    options = {"skip_special_tokens": True, **options}
    before = tokenizer.decode(prompt, **options)
    return tokenizer.decode(prompt + ids, **options)[len(before) :]


def pieces_of(ids: list[int], cuts: list[int]) -> list[list[int]]:
    places = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    return [ids[a:b] for a, b in pairwise(places)]


def deltas(decoder: IncrementalDecoder | ByteDecoder, pieces: list[list[int]]) -> list[str]:
    return [*map(decoder.feed, pieces), decoder.finish()]
