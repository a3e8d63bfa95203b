"""Forms of answers through `LLM`, with a core of its own: with all that goes along with them."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine import LLM, RequestOutput, SamplingParams, StructuredOutputsParams
from engine.lora import LoRARequest
from tests.engine.helpers.lora.adapters import build_adapter
from tests.helpers.patience import PATIENCE
from tests.helpers.tiny_model import build_tiny_model

LETTERS = StructuredOutputsParams(regex="[a-d]{12}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("forms"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    llm = LLM(str(folder), num_gpu_blocks_override=200, max_num_seqs=8, enable_lora=True)
    yield llm
    llm.shutdown()


def ask(llm: LLM, form: StructuredOutputsParams, **params: Any) -> RequestOutput:
    lora = params.pop("lora_request", None)
    asked = SamplingParams(structured_outputs=form, **({"max_tokens": 80, "seed": 3} | params))
    (output,) = llm.generate("Once upon", asked, lora_request=lora, use_tqdm=False)
    return output


def test_each_of_several_answers_has_the_form(llm: LLM) -> None:
    output = ask(llm, LETTERS, n=4)
    texts = [answer.text for answer in output.outputs]
    assert all(re.fullmatch("[a-d]{12}", text) for text in texts)
    assert len(set(texts)) > 1
    assert {answer.finish_reason for answer in output.outputs} == {"stop"}


def test_a_schema_may_be_a_dict_with_numbers_that_no_message_holds(llm: LLM) -> None:
    number = {"type": "integer", "minimum": 5, "maximum": 1 << 70}
    schema: dict[str, Any] = {"type": "object", "properties": {"n": number}, "required": ["n"]}
    schema["additionalProperties"] = False
    form = StructuredOutputsParams(json=schema, disable_any_whitespace=True)
    (answer,) = ask(llm, form).outputs
    assert 5 <= json.loads(answer.text)["n"] <= 1 << 70


def test_a_stop_string_ends_it_before_its_form_does(llm: LLM) -> None:
    whole = ask(llm, LETTERS).outputs[0].text
    (answer,) = ask(llm, LETTERS, stop=[whole[4:6]]).outputs
    assert answer.finish_reason == "stop" and answer.stop_reason == whole[4:6]
    assert answer.text == whole[: whole.index(whole[4:6])]


def test_an_adapter_speaks_in_the_same_form(llm: LLM, folder: Path, tmp_path: Path) -> None:
    adapter = LoRARequest("a", 1, str(build_adapter(tmp_path / "a", folder, seed=1)))
    (answer,) = ask(llm, LETTERS, lora_request=adapter).outputs
    assert re.fullmatch("[a-d]{12}", answer.text)
    assert answer.text != ask(llm, LETTERS).outputs[0].text


def test_logprobs_and_penalties_go_along(llm: LLM) -> None:
    (answer,) = ask(llm, LETTERS, logprobs=2, frequency_penalty=1.5, temperature=0.0).outputs
    assert answer.logprobs is not None and len(answer.logprobs) == len(answer.token_ids)
    assert re.fullmatch("[a-d]{12}", answer.text)


def test_a_form_that_cannot_be_had_ends_with_an_error_and_a_lenient_one_with_warnings(
    llm: LLM,
) -> None:
    schema: dict[str, Any] = {"type": "boolean", "uniqueItems": True}
    output = ask(llm, StructuredOutputsParams(json=schema))
    assert output.error is not None and output.error.code == "grammar_refused"
    assert "uniqueItems" in output.error.message
    lenient = schema | {"x-guidance": {"lenient": True}}
    output = ask(llm, StructuredOutputsParams(json=lenient))
    assert output.outputs[0].text in ("true", "false")
    assert len(output.warnings) == 1 and "uniqueItems" in output.warnings[0]


def test_no_process_is_left_when_the_core_is_killed(folder: Path) -> None:
    before = psutil.Process().children()
    llm = LLM(str(folder), num_gpu_blocks_override=64)
    try:
        ask(llm, LETTERS)
        started = [it for it in psutil.Process().children() if it not in before]
        (core,) = [it for it in started if it.cmdline()[-1] == "engine.core"]
        of_core = core.children(recursive=True)
        assert len(of_core) == 2
        core.kill()
        assert psutil.wait_procs(of_core, PATIENCE)[1] == []
    finally:
        llm.shutdown()
