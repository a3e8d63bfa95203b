"""Which format a checkpoint's files speak of."""

import pytest

from engine.client.parsing.formats import FORMATS, choose_format, grammar_of
from engine.client.parsing.marks import AddedToken
from tests.engine.client.parsing.test_response_template import QWEN

# What each family's template writes of a call, as published.
TEMPLATES = {
    "hermes": r"""'<tool_call>\n{"name": "' }}{{ tool_call.name }}…'}\n</tool_call>'""",
    "qwen_xml": r"'\n<tool_call>\n<function=' + tool_call.name + '>\n' …'<parameter=' + args_name",
    "glm": "'\n<tool_call>' + tc.name<arg_key>{{ k }}</arg_key><arg_value>{{ v }}</arg_value>",
    "llama": """Respond in the format {"name": function name, "parameters": dictionary of …}.""",
    "mistral_list": """{{- "[TOOL_CALLS][" }}{{- tool_call.function|tojson }}""",
    "mistral": """"[TOOL_CALLS]" + tool['function']['name'] + "[ARGS]" + arguments }}""",
    "deepseek": "'<｜tool▁call▁begin｜>' + tool['function']['name'] + '<｜tool▁sep｜>' + arguments",
    "deepseek_fenced": "'<｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' … '```json'",
    "harmony": """{{- "<|start|>assistant<|channel|>final<|message|>" + message.content }}""",
    "think": "{%- set content = content.split('</think>')[-1] -%}",
    "plain": "{{ message.role }}: {{ message.content }}",
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_chat_template_names_its_format(name: str) -> None:
    assert choose_format(TEMPLATES[name]).name == name


def test_a_token_names_it_too() -> None:
    assert choose_format("", [AddedToken(1, "<|python_tag|>", False)]).name == "llama"


def test_the_checkpoints_own_template_counts_first() -> None:
    assert choose_format(TEMPLATES["glm"], (), QWEN).name == "response_template"


def test_one_that_is_unreadable_leaves_it_to_the_chat_template() -> None:
    assert choose_format(TEMPLATES["glm"], (), {"version": 9}).name == "glm"


def test_the_operator_has_the_last_word() -> None:
    assert choose_format(TEMPLATES["glm"], (), QWEN, "llama").name == "llama"
    with pytest.raises(KeyError):
        choose_format("", (), None, "yaml")


def test_a_grammar_knows_the_tokens_of_its_vocabulary() -> None:
    grammar = grammar_of(TEMPLATES["hermes"], [AddedToken(5, "<think>", True)])
    assert set(grammar.marks.characters) == {5}
    assert grammar_of(TEMPLATES["plain"]).is_plain
