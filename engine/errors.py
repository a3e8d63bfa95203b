"""What can go wrong in the engine, as one small tree.

    ValueError
    └── ValidationError            a parameter is wrong: the caller's to fix
        ├── PromptTooLongError     a prompt that the model's context cannot hold
        └── ChatTemplateError      a chat template takes too much time or memory, or crashes
    RuntimeError
    └── EngineError
        ├── EngineStartError       the core did not come up; carries its last log lines
        │   └── UnsupportedModelError  the model cannot be served; a ValidationError, too
        ├── DownloadError          a hub id could not be turned into a local folder
        ├── EngineDeadError        the core is gone: nothing more comes for open requests
        ├── EngineGenerateError    one request failed, the engine lives
        ├── RetryableRequestError  refused for now (no core, paused): try again later      503
        ├── QueueOverflowError     too many requests are waiting                           503
        └── MaxQueuedTokensError   too many prompt tokens are waiting                      503

A request that was accepted never raises for a fault of its own: it ends with finish reason `error`
and `output.error`. Exceptions are for what was not accepted and for the death of the core.
"""

from typing import ClassVar

MAX_SHOWN = 200  # characters of a wrong value in a message
MAX_LINE = 400  # characters of a message that quotes what others wrote


class ValidationError(ValueError):
    """A parameter has a value that cannot be used. `parameter` and `value` say which and what."""

    def __init__(self, message: str, parameter: str | None = None, value: object = None) -> None:
        super().__init__(message)
        self.parameter = parameter
        self.value = value


class PromptTooLongError(ValidationError):
    """A prompt has more tokens than asked for; `num_tokens` of them at the least."""

    def __init__(self, num_tokens: int, max_length: int, *, is_exact: bool = False) -> None:
        number = f"{num_tokens}" if is_exact else f"at least {num_tokens}"
        problem = f"the prompt has {number} tokens, and the model's context {max_length}"
        super().__init__(problem, "prompt", num_tokens)
        self.num_tokens = num_tokens


class ChatTemplateError(ValidationError):
    """The checkpoint's chat template has left its bounds over these messages, and was stopped."""


class EngineError(RuntimeError):
    """Base of everything the engine raises that is not the caller's mistake."""

    http_status: ClassVar[int] = 500


class EngineStartError(EngineError):
    """The core ended or failed before it was ready; `log` holds the last lines it wrote."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(f"{message}\n{log}" if log else message)
        self.reason = message
        self.log = log


class UnsupportedModelError(EngineStartError, ValidationError):
    """The model cannot be served. The message is one line for a person, naming file and field.

    It is the same whether the caller's process found it (tokenizer, template) or the core.
    """

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))
        self.parameter = "model"
        self.value = None


class DownloadError(EngineError):
    """A model could not be fetched from the hub; the message is one line for a person."""


class EngineDeadError(EngineError):
    """The core is gone. Raised in every open stream, and by every later call."""

    http_status = 503

    def __init__(self, message: str = "the engine core is dead") -> None:
        super().__init__(message)


class EngineGenerateError(EngineError):
    """One request failed inside the engine; other requests do not notice."""


class RetryableRequestError(EngineError):
    """The engine cannot take a request right now; the same request may succeed later."""

    http_status = 503


class QueueOverflowError(EngineError):
    """As many requests are waiting as the engine may queue."""

    http_status = 503


class MaxQueuedTokensError(EngineError):
    """As many prompt tokens are waiting as the engine may queue."""

    http_status = 503


def one_line(text: str) -> str:
    """A text that others wrote as one printable line; a very long one loses its end."""
    line = " ".join(text.split())
    if len(line) > MAX_LINE:
        line = f"{line[:MAX_LINE]}…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def refuse(parameter: str, value: object, problem: str) -> ValidationError:
    """The error for a value, which is shown unless it is long."""
    shown = repr(value)
    if len(shown) > MAX_SHOWN:
        shown = f"{shown[:MAX_SHOWN]}…"
    return ValidationError(f"{parameter} {problem}, got {shown}", parameter, value)


def check_text(parameter: str, value: str) -> None:
    """Raise `ValidationError` for half of a surrogate pair, which no encoding can write."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        problem = f"{parameter} is no text: {error.reason} at {error.start}"
        raise ValidationError(problem, parameter, None) from None
