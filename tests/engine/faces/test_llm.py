"""`LLM` in front of a real core: batches, conversations, Ctrl-C, and a core that is killed."""

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine import (
    LLM,
    AsyncEngineArgs,
    BeamSearchParams,
    EngineDeadError,
    LoRARequest,
    PoolingParams,
    PromptTooLongError,
    RequestOutputKind,
    SamplingParams,
    ValidationError,
)
from tests.engine.helpers.lora.adapters import build_adapter, merged_model
from tests.engine.helpers.lora.adapters import greedy as after_greedily
from tests.helpers.tiny_model import (
    build_oracle_model,
    build_tiny_model,
    oracle_answer,
    oracle_word,
)

FIRST = 41  # the last token of a prompt, which says what a greedy answer is


def greedy(max_tokens: int, **options: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_oracle_model(tmp_path_factory.mktemp("oracle"), vocab=2000, max_positions=2048)


@pytest.fixture(scope="module")
def owned(folder: Path) -> Iterator[LLM]:
    with LLM(model=str(folder), num_gpu_blocks_override=300, threads=1) as llm:
        yield llm


@pytest.fixture
def llm(owned: LLM) -> Iterator[LLM]:
    """The module's engine; after each test nothing may be left in it or in its core."""
    yield owned
    assert owned.llm_engine.get_num_unfinished_requests() == 0
    metrics = owned.get_metrics()
    assert (metrics["num_running"], metrics["num_waiting"]) == (0, 0)
    assert metrics["num_blocks_free"] == metrics["num_blocks_total"]


def test_answers_have_the_order_of_their_prompts(llm: LLM) -> None:
    lengths = [60, 3, 30, 1, 45]  # so that they end in another order
    outputs = llm.generate([[FIRST + n] for n in range(5)], [greedy(each) for each in lengths])
    expected = [oracle_answer(FIRST + n, length) for n, length in enumerate(lengths)]
    assert [output.outputs[0].text for output in outputs] == expected
    assert [output.prompt_token_ids for output in outputs] == [[FIRST + n] for n in range(5)]
    assert all(output.finished for output in outputs)
    assert [int(output.request_id) for output in outputs] == [
        int(outputs[0].request_id) + n for n in range(5)
    ]


@pytest.mark.parametrize(
    "prompt",
    [
        oracle_word(FIRST),
        [FIRST],
        {"prompt": oracle_word(FIRST)},
        {"prompt_token_ids": [FIRST]},
        [oracle_word(FIRST)],
        [[FIRST]],
        [{"prompt_token_ids": [FIRST]}],
    ],
)
def test_one_prompt_may_have_any_form(prompt: Any, llm: LLM) -> None:
    (output,) = llm.generate(prompt, greedy(3))
    assert output.outputs[0].text == oracle_answer(FIRST, 3)


def test_a_short_queue_refuses_no_prompt_of_a_batch(folder: Path) -> None:
    with LLM(model=str(folder), threads=1, max_num_seqs=2, max_num_queued_reqs=2) as llm:
        prompts = [[FIRST + n] for n in range(8)]
        outputs = llm.generate(prompts, greedy(2))
        searches = llm.beam_search(prompts, BeamSearchParams(3, 2))
    expected = [oracle_answer(FIRST + n, 2) for n in range(8)]
    assert [output.outputs[0].text for output in outputs] == expected
    whole = [oracle_answer(FIRST + n - 1, 3) for n in range(8)]
    assert [search.sequences[0].text for search in searches] == whole


def test_no_prompts_have_no_answers(llm: LLM) -> None:
    assert llm.generate([]) == []


def test_an_output_is_whole_however_the_parameters_want_it(llm: LLM) -> None:
    params = greedy(9, output_kind=RequestOutputKind.DELTA, n=1)
    (output,) = llm.generate([FIRST], params)
    assert output.outputs[0].text == oracle_answer(FIRST, 9)
    assert params.output_kind is RequestOutputKind.DELTA


def test_several_answers_to_a_prompt_are_in_one_output(llm: LLM) -> None:
    (output,) = llm.generate([FIRST], SamplingParams(n=3, max_tokens=4, seed=1))
    assert sorted(answer.index for answer in output.outputs) == [0, 1, 2]
    assert all(len(answer.token_ids) == 4 for answer in output.outputs)


@pytest.mark.parametrize("limit", [None, 1, 2])
def test_a_beam_search_gives_whole_sequences_to_each_prompt(limit: int | None, llm: LLM) -> None:
    prompts = [[7, FIRST], [FIRST + 3]]
    outputs = llm.beam_search(prompts, BeamSearchParams(2, 4), concurrency_limit=limit)
    for prompt, output in zip(prompts, outputs, strict=True):
        best, second = output.sequences
        last = prompt[-1]
        assert best.tokens == [*prompt, last + 1, last + 2, last + 3, last + 4]
        assert best.text == llm.get_tokenizer().decode(best.tokens)
        assert (len(best.logprobs), best.finish_reason, output.error) == (4, "length", None)
        assert second.tokens != best.tokens and second.cum_logprob < best.cum_logprob


def test_without_parameters_those_of_the_default_count(llm: LLM) -> None:
    assert llm.get_default_sampling_params() == SamplingParams()
    (output,) = llm.generate([FIRST])
    assert len(output.outputs[0].token_ids) == SamplingParams().max_tokens


def test_a_conversation_is_rendered_by_the_template(llm: LLM) -> None:
    conversations = [[{"role": "user", "content": oracle_word(FIRST + n)}] for n in range(2)]
    (one,) = llm.chat(conversations[0], greedy(3))
    assert one.outputs[0].text == oracle_answer(FIRST, 3)
    many = llm.chat(conversations, greedy(4), use_tqdm=False)
    assert [o.outputs[0].text for o in many] == [oracle_answer(FIRST + n, 4) for n in range(2)]


def test_the_last_message_may_be_the_beginning_of_the_answer(llm: LLM) -> None:
    begun = [
        {"role": "user", "content": oracle_word(FIRST)},
        {"role": "assistant", "content": oracle_word(700)},
    ]
    (output,) = llm.chat(begun, greedy(3), add_generation_prompt=False, continue_final_message=True)
    assert output.prompt_token_ids == [FIRST, 700]
    assert output.outputs[0].text == oracle_answer(700, 3)
    assert len(begun) == 2


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"continue_final_message": True}, ValidationError),
        ({"continue_final_message": True, "add_generation_prompt": False}, ValidationError),
        ({"chat_template": "{{ messages }}"}, NotImplementedError),
        ({"chat_template_content_format": "openai"}, NotImplementedError),
    ],
)
def test_a_chat_refuses_what_it_cannot_do(
    options: dict[str, Any], error: type[Exception], llm: LLM
) -> None:
    with pytest.raises(error, match=next(iter(options))):
        llm.chat([{"role": "user", "content": "t00041 "}], greedy(1), **options)


def test_embeddings_are_those_of_the_engine(llm: LLM) -> None:
    first, second = llm.embed([[7, FIRST], [7]])
    assert len(first.outputs.embedding) == len(second.outputs.embedding) == 256
    assert first.outputs.embedding != second.outputs.embedding
    (again,) = llm.encode([7, FIRST], PoolingParams())
    assert again.outputs.data == first.outputs.embedding


def test_a_generating_model_scores_by_its_embeddings(llm: LLM) -> None:
    words = [oracle_word(number) for number in (FIRST, 7, FIRST)]
    same, other, again = llm.score(words[0], words[:1] + words[1:])
    assert same.outputs.score == pytest.approx(1) == again.outputs.score
    vectors = [output.outputs.embedding for output in llm.embed(words[:2])]
    product = sum(a * b for a, b in zip(*vectors, strict=True))
    assert other.outputs.score == pytest.approx(product, abs=1e-6)
    assert other.prompt_token_ids == [FIRST, 7]
    assert [each.outputs.score for each in llm.score(words, words)] == pytest.approx([1, 1, 1])


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda llm: llm.classify([1]), "no task 'classify': it has generate, embed"),
        (lambda llm: llm.score(["a", "b"], ["a", "b", "c"]), "there must be one text, or as many"),
        (lambda llm: llm.score([], "a"), "there must be one text"),
        (lambda llm: llm.score("a", [[1]]), "texts are compared"),
        (lambda llm: llm.generate([[1], [2]], [greedy(1)]), "sampling_params must be one, or as"),
        (lambda llm: llm.generate([[1], [2]], greedy(1), priority=[1]), "priority must be one, or"),
        (lambda llm: llm.generate([[1], [5000]], greedy(1900)), "of the model's vocabulary"),
        (lambda llm: llm.beam_search([[1]], BeamSearchParams(11, 2)), "beam_width must be at most"),
        (
            lambda llm: llm.beam_search([[1]], BeamSearchParams(1, 2), concurrency_limit=0),
            "concurrency_limit must be at least 1",
        ),
        (
            lambda llm: llm.beam_search([[1], [5000]], BeamSearchParams(1, 1000)),
            "of the model's vocabulary",
        ),
        (lambda llm: llm.encode([1], PoolingParams(task="embed"), pooling_task="x"), "task must"),
    ],
)
def test_a_wrong_value_is_refused_and_no_other_prompt_runs_on(
    call: Any, problem: str, llm: LLM
) -> None:
    with pytest.raises(ValidationError, match=problem):
        call(llm)


def test_a_prompt_that_is_too_long_ends_the_whole_call(llm: LLM) -> None:
    with pytest.raises(PromptTooLongError):
        llm.generate([oracle_word(FIRST), oracle_word(FIRST) * 3000], greedy(1900))


class InterruptingBar:
    """In the place of tqdm's: presses Ctrl-C when the first prompt is done."""

    format_dict = {"elapsed": 0.0}  # noqa: RUF012  (tqdm's name, which nobody changes)

    def __init__(self, **options: Any) -> None:
        assert (options["total"], options["desc"]) == (8, "Processed prompts")

    def update(self, number: int) -> None:
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGINT)

    def close(self) -> None:
        pass


def test_ctrl_c_aborts_what_runs(llm: LLM) -> None:
    """What is left in the core, the fixture looks at."""
    params = [greedy(1900 if n else 1, ignore_eos=True) for n in range(8)]
    with pytest.raises(KeyboardInterrupt):
        llm.generate([[FIRST]] * 8, params, use_tqdm=InterruptingBar)
    (output,) = llm.generate([FIRST], greedy(3))
    assert output.outputs[0].text == oracle_answer(FIRST, 3)


def test_what_is_no_request_is_called_without_an_event_loop(llm: LLM) -> None:
    assert llm.get_tokenizer().encode(oracle_word(FIRST)) == [FIRST]
    assert llm.reset_prefix_cache() is True
    assert llm.collective_rpc("check_health") == [None]
    assert llm.get_supported_tasks() == ("generate", "embed")
    assert llm.model_config.get_vocab_size() == 2000


def test_a_killed_core_raises_and_so_does_every_later_call(folder: Path) -> None:
    llm = LLM.from_engine_args(AsyncEngineArgs(str(folder), num_gpu_blocks_override=300, threads=1))
    assert llm._engine._parts.core is not None
    doomed = llm._engine._parts.core.process

    class KillingBar(InterruptingBar):
        def update(self, number: int) -> None:
            doomed.kill()

    params = [greedy(1900 if n else 1, ignore_eos=True) for n in range(8)]
    with pytest.raises(EngineDeadError):
        llm.generate([[FIRST]] * 8, params, use_tqdm=KillingBar)
    with pytest.raises(EngineDeadError):
        llm.generate([FIRST])
    llm.shutdown()
    llm.shutdown()
    with pytest.raises(EngineDeadError):
        llm.check_health()


def test_misspelt_arguments_are_no_engine() -> None:
    with pytest.raises(TypeError, match="max_num_seqz"):
        LLM("somewhere", max_num_seqz=3)


def test_parameters_are_copied(llm: LLM) -> None:
    params = greedy(2)
    before = msgspec.structs.asdict(params)
    llm.generate([[FIRST], [FIRST]], params)
    assert msgspec.structs.asdict(params) == before


@pytest.mark.slow
def test_each_prompt_may_have_an_adapter_of_its_own(tmp_path: Path) -> None:
    model = build_tiny_model(tmp_path / "model")
    adapter = build_adapter(tmp_path / "adapter", model)
    lora, prompt = LoRARequest("a", 1, str(adapter)), [5, 9, 33]
    with LLM(model=str(model), threads=1, enable_lora=True) as llm:
        with_it, without = llm.generate(
            [prompt, prompt], greedy(8, ignore_eos=True), lora_request=[lora, None]
        )
        assert llm.llm_engine.list_loras() == {1}
        searched, plain = llm.beam_search(
            [prompt, prompt], BeamSearchParams(1, 8, ignore_eos=True), [lora, None]
        )
    expected = after_greedily(merged_model(model, adapter), prompt, 8)
    assert list(with_it.outputs[0].token_ids) == expected
    assert list(without.outputs[0].token_ids) != expected
    assert searched.sequences[0].tokens == [*prompt, *expected]
    assert searched.sequences[0].lora_request == with_it.lora_request
    assert plain.sequences[0].tokens == [*prompt, *without.outputs[0].token_ids]
    assert with_it.lora_request.content_hash and without.lora_request is None
