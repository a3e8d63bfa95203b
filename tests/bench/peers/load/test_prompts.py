"""Prompts have exactly the length that was asked for, and no two begin alike."""

from pathlib import Path

import pytest

from bench.peers.load.prompts import Prompts


@pytest.mark.parametrize("num_tokens", [20, 128, 1024])
def test_both_forms_of_a_prompt_have_its_length(checkpoint_folder: Path, num_tokens: int) -> None:
    prompts = Prompts(checkpoint_folder, seed=0)
    prompt = prompts.draw(num_tokens)
    assert len(prompt.token_ids) == len(prompts.templated(prompt.message)) == num_tokens


def test_no_prompt_begins_like_another(checkpoint_folder: Path) -> None:
    prompts = Prompts(checkpoint_folder, seed=0)
    drawn = [prompts.draw(32) for _ in range(500)]
    assert len({tuple(prompt.token_ids[:2]) for prompt in drawn}) == 500
    assert len({tuple(prompt.message.split()[:2]) for prompt in drawn}) == 500


def test_the_same_seed_gives_the_same_prompts(checkpoint_folder: Path) -> None:
    first, second, other = (Prompts(checkpoint_folder, seed).draw(32) for seed in (1, 1, 2))
    assert first == second != other


def test_a_prompt_shorter_than_the_chat_template_is_refused(checkpoint_folder: Path) -> None:
    with pytest.raises(ValueError, match="the chat template alone has"):
        Prompts(checkpoint_folder, seed=0).draw(3)
