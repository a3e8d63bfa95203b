"""A template is code from a checkpoint's author: it renders, refuses, or is stopped."""

import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
from collections import UserDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.client.templates import chat_template as chat_template_module
from engine.client.templates.chat_template import FALLBACK_TEMPLATE, ChatTemplate
from engine.errors import ChatTemplateError, RetryableRequestError, ValidationError
from tests.engine.helpers.small_tokenizers import LLAVA
from tests.helpers.patience import PATIENCE
from tests.helpers.root import ROOT
from tests.helpers.tiny_model import CHAT_TEMPLATE

MESSAGES = [{"role": "user", "content": "Hello"}]
BOMB = [{"role": "user", "content": "bomb"}]
LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
GROWING = (
    "{% set ns = namespace(x='x' * 1000) %}"
    "{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x | length }}"
)
# An error that cannot be put into words: they would be too deep.
TOO_DEEP = (
    "{% set ns = namespace(x=[]) %}{% for i in range(5000) %}{% set ns.x = [ns.x] %}{% endfor %}"
    "{{ raise_exception(ns.x) }}"
)
HOSTILE = {
    "loop": LOOP,
    "memory": GROWING,
    "power": "{% set n = messages | length + 7 %}{{ n ** (10 ** 9) }}",
    "big": "{{ 'x' * 3000000000 }}",
    "wide": "{{ '%999999999d' % 5 }}",
    "long": "{% for a in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
}
LATE = "{% if messages[-1].content == 'bomb' %}" + LOOP + "{% endif %}{{ messages[-1].content }}"


@pytest.fixture
def late() -> Iterator[ChatTemplate]:
    """A template that only loops over one content."""
    template = ChatTemplate(LATE)
    yield template
    template.close()


@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_template_does_not_pass_the_trial(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_template_module, "COMPILE_SECONDS", 0.5)
    template = ChatTemplate(source)
    with pytest.raises(ChatTemplateError, match="has left its bounds: it"):
        template.try_out()
    template.close()


@pytest.mark.parametrize(
    "source",
    [CHAT_TEMPLATE, FALLBACK_TEMPLATE, LATE, "", "{{ raise_exception('only French') }}", TOO_DEEP],
    ids=["chatml", "fallback", "late", "empty", "refusing", "refusing-without-words"],
)
def test_an_ordinary_template_passes_the_trial(source: str) -> None:
    template = ChatTemplate(source)
    template.try_out()
    template.close()


def test_a_template_that_loops_over_one_content_ends_that_rendering_only(
    late: ChatTemplate,
) -> None:
    late.try_out()
    before = late.pid
    with pytest.raises(ChatTemplateError, match="it takes too long"):
        late.render(BOMB)
    assert late.pid != before
    assert late.render(MESSAGES) == "Hello"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (LLAVA, "SYSTEM USER: Hello ASSISTANT: Hi ASSISTANT:".replace("SYSTEM", "Be brief.")),
        ("{% for m in messages %}{{ m.content[0].text }};{% endfor %}", "Be brief.;Hello;Hi;"),
        ("{% for m in messages %}{{ m.content }};{% endfor %}", "Be brief.;Hello;Hi;"),
        (
            "{% for m in messages %}{% if m.content is string %}{{ m.content }}"
            "{% else %}{{ raise_exception('parts') }}{% endif %};{% endfor %}",
            "Be brief.;Hello;Hi;",
        ),
        ("{{ messages | length }}", "3"),
    ],
    ids=["llava", "parts", "text", "text before parts", "neither"],
)
def test_contents_are_given_as_the_template_reads_them(source: str, text: str) -> None:
    template = ChatTemplate(source)
    template.try_out()
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi"},
    ]
    assert template.render(messages, add_generation_prompt=True) == text
    template.close()


def test_parts_that_are_given_stay_what_they_are() -> None:
    template = ChatTemplate(LLAVA)
    parts = [{"type": "text", "text": text} for text in ("What is", "this?")]
    assert template.render([{"role": "user", "content": parts}]) == "USER: What is this? "
    template.close()


@pytest.mark.parametrize("kind", ["image", "image_url", "input_audio", "video"])
def test_pictures_and_sounds_are_refused(kind: str) -> None:
    template = ChatTemplate(LLAVA)
    parts = [{"type": "text", "text": "What is this?"}, {"type": kind, kind: "a.png"}]
    problem = rf"not implemented: messages\[0\]\.content has a part of the type '{kind}'"
    with pytest.raises(NotImplementedError, match=problem):
        template.render([{"role": "user", "content": parts}])


def test_a_refusal_without_words_is_a_refusal_and_its_process_goes_on() -> None:
    template = ChatTemplate("{% if messages[-1].content == 'bomb' %}" + TOO_DEEP + "{% endif %}so")
    assert template.render(MESSAGES) == "so"
    before = template.pid
    with pytest.raises(ValidationError, match="refuses these messages: TemplateError"):
        template.render(BOMB)
    assert template.pid == before
    template.close()


@pytest.mark.parametrize("content", ["memory", "long"])
def test_after_a_rendering_that_breaks_any_bound_the_next_one_works(content: str) -> None:
    source = "".join(
        "{% if messages[0].content == '" + name + "' %}" + HOSTILE[name] + "{% endif %}"
        for name in ("memory", "long")
    )
    template = ChatTemplate(source + "done")
    with pytest.raises(ChatTemplateError):
        template.render([{"role": "user", "content": content}])
    assert template.render(MESSAGES) == "done"
    template.close()


def test_the_time_of_a_rendering_is_that_of_its_process_not_the_clocks(
    late: ChatTemplate, monkeypatch: pytest.MonkeyPatch
) -> None:
    late.try_out()
    monkeypatch.setattr(chat_template_module, "RENDER_SECONDS", 0.2)
    assert late.pid is not None
    process = psutil.Process(late.pid)
    used: list[float] = []

    def watch() -> None:
        with pytest.raises(psutil.NoSuchProcess):
            while True:
                times = process.cpu_times()
                used.append(times.user + times.system)

    before = sum(process.cpu_times()[:2])
    watching = threading.Thread(target=watch)
    watching.start()
    with pytest.raises(ChatTemplateError):
        late.render(BOMB)
    watching.join()
    assert max(used) - before < 0.35  # the kernel counts in ticks of 10 ms


def test_a_rendering_that_the_machine_halts_ends_by_the_clock(
    late: ChatTemplate, monkeypatch: pytest.MonkeyPatch
) -> None:
    late.try_out()
    assert late.pid is not None
    os.kill(late.pid, signal.SIGSTOP)
    monkeypatch.setattr(chat_template_module, "RENDER_SECONDS", 0.02)
    with pytest.raises(ChatTemplateError, match="too long"):
        late.render(MESSAGES)
    monkeypatch.undo()
    assert late.render(MESSAGES) == "Hello"


def test_a_process_that_somebody_kills_is_replaced_unnoticed(late: ChatTemplate) -> None:
    assert late.render(MESSAGES) == "Hello"
    assert late.pid is not None
    os.kill(late.pid, signal.SIGKILL)
    assert late.render(MESSAGES) == "Hello"


def test_closing_ends_a_rendering_that_goes_on(late: ChatTemplate) -> None:
    late.try_out()
    raised: list[Exception] = []

    def render() -> None:
        try:
            late.render(BOMB)
        except Exception as error:
            raised.append(error)

    assert late.pid is not None
    process = psutil.Process(late.pid)
    before = sum(process.cpu_times()[:2])
    rendering = threading.Thread(target=render)
    rendering.start()
    while sum(process.cpu_times()[:2]) < before + 0.1:
        pass
    late.close()
    rendering.join()
    (error,) = raised
    assert isinstance(error, RetryableRequestError)
    assert late.pid is None
    assert late.render(MESSAGES) == "Hello"  # another process


def test_the_process_has_no_secrets_no_descriptors_and_no_files(
    late: ChatTemplate, monkeypatch: pytest.MonkeyPatch
) -> None:
    late.close()
    monkeypatch.setenv("PARLEY_TOKEN", "a-secret-of-the-operator")
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    assert late.render(MESSAGES) == "Hello"
    process = psutil.Process(late.pid)
    assert "PARLEY_TOKEN" not in process.environ()
    assert len(os.listdir(f"/proc/{late.pid}/fd")) == 3
    limits = Path(f"/proc/{late.pid}/limits").read_text()
    for name, value in (("Max open files", "3"), ("Max core file size", "0")):
        (line,) = [line for line in limits.splitlines() if line.startswith(name)]
        assert line.removeprefix(name).split()[:2] == [value, value]
    for descriptor in (reader, writer):
        os.close(descriptor)


def test_the_process_is_small_and_knows_nothing_of_ours(late: ChatTemplate) -> None:
    late.render(MESSAGES)
    mapped = Path(f"/proc/{late.pid}/maps").read_text()
    assert not any(name in mapped for name in ("torch", "tokenizers", "zmq", "_uvloop"))
    assert psutil.Process(late.pid).memory_info().rss < 48 * 2**20


@pytest.mark.parametrize("is_rendering", [False, True])
def test_no_process_outlives_who_started_it(is_rendering: bool) -> None:
    render = f"template.render({BOMB})" if is_rendering else "input()"
    parent = f"""
        from engine.client.templates.chat_template import ChatTemplate
        template = ChatTemplate({LATE!r})
        template.try_out()
        print(template.pid, flush=True)
        {render}
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(parent)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    with process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        child = psutil.Process(pid)
        if is_rendering:
            before = sum(child.cpu_times()[:2])
            while sum(child.cpu_times()[:2]) < before + 0.1:
                pass
        pidfd = os.pidfd_open(pid)
        process.kill()
    with os.fdopen(pidfd):
        assert select.select([pidfd], [], [], PATIENCE)[0], f"process {pid} still runs"


def test_a_lower_limit_of_memory_that_somebody_has_set_stays() -> None:
    """Only root could raise it again."""
    program = f"""
        import resource
        resource.setrlimit(resource.RLIMIT_AS, (2**33, 2**33))
        from engine.client.templates.chat_template import ChatTemplate
        template = ChatTemplate({FALLBACK_TEMPLATE!r})
        template.render({MESSAGES})
        print(resource.prlimit(template.pid, resource.RLIMIT_AS)[1])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, check=False
    )
    assert done.stdout.strip() == str(2**33).encode(), done.stderr


def test_a_forked_child_has_a_process_of_its_own(late: ChatTemplate) -> None:
    late.render(MESSAGES)
    program = f"""
        import os, sys
        from engine.client.templates.chat_template import ChatTemplate
        template = ChatTemplate({CHAT_TEMPLATE!r})
        messages = {MESSAGES}
        expected, pid = template.render(messages), template.pid
        if (child := os.fork()) == 0:
            sys.exit(template.render(messages) != expected or template.pid == pid)
        _, status = os.waitpid(child, 0)
        sys.exit(status or template.render(messages) != expected or template.pid != pid)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=False)
    assert done.returncode == 0


def test_plain_data_of_any_mapping_reaches_the_template() -> None:
    template = ChatTemplate("{{ tools[0].name }} {{ n }} {{ none_is_left_out is defined }}")
    messages = [UserDict(role="user", content="x")]
    text = template.render(messages, tools=[UserDict(name="find")], n=2**62)
    assert text == "find 4611686018427387904 False"
    template.close()


@pytest.mark.parametrize("value", [object(), len, 2**70, "\ud800"])
def test_what_is_no_plain_data_is_a_validation_error(late: ChatTemplate, value: Any) -> None:
    with pytest.raises(ValidationError, match="cannot be given this"):
        late.render(MESSAGES, value=value)


def test_a_reason_of_any_length_and_spelling_is_given_in_short(late: ChatTemplate) -> None:
    template = ChatTemplate(r"{{ raise_exception('a\ud800' * 1000) }}")
    with pytest.raises(ValidationError, match=r"refuses these messages: a\?a") as raised:
        template.render(MESSAGES)
    assert len(str(raised.value)) < 600
    template.close()


def test_template_has_the_names_that_transformers_gives_it() -> None:
    template = ChatTemplate(
        "{% generation %}{{ {'a': '<ó>'} | tojson }}{% endgeneration %}"
        "{{ strftime_now('%Y') | length }}"
        "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}.{% endfor %}"
    )
    messages = [{"role": "user", "content": text} for text in "xyz"]
    assert template.render(messages) == '{"a": "<ó>"}4.'


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no') }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages[7].content }}",
        "{{ none + 1 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ nothing.at.all }}",
    ],
)
def test_template_that_refuses_or_misbehaves_is_a_validation_error(source: str) -> None:
    with pytest.raises(ValidationError):
        ChatTemplate(source).render(MESSAGES)


def test_broken_template_is_a_validation_error() -> None:
    with pytest.raises(ValidationError, match="broken"):
        ChatTemplate("{% for %}").render(MESSAGES)
