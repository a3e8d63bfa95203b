"""What a client must not send, row by row, and what it is answered: data for `test_bad_*.py`.

`python -m tests.end_to_end.oracle.bad_input` prints how many inputs each row has. `$session` in a
frame is replaced by a session of the sender, `$foreign` and `$theirs` by ids of another user.
"""

import base64
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.end_to_end.frames.raw import CLOSE, CONTINUATION, PING, PONG, TEXT, close_frame, frame
from tests.end_to_end.oracle import bad_requests

MAX_MESSAGE_BYTES = 512 * 1024
MAX_INPUT_BYTES = 128 * 1024


class BadFrame(NamedTuple):
    """A text frame that is answered with an error; the connection stays."""

    row: str
    text: str
    code: str
    param: str | None = None


class BadBytes(NamedTuple):
    """Bytes after a handshake that end the connection with a close frame of one of `codes`."""

    row: str
    name: str
    data: bytes
    codes: tuple[int, ...]


class BadHandshake(NamedTuple):
    """A request to the websocket's address that gets an HTTP answer of one of `statuses`."""

    row: str
    name: str
    changed: dict[str, str | list[str] | None]
    statuses: tuple[int, ...]
    method: str = "GET"


class ClosedHandshake(NamedTuple):
    """A handshake that succeeds, so that a browser can read the code that then closes it."""

    row: str
    name: str
    changed: dict[str, str | list[str] | None]
    code: int


def _frame(kind: str, **fields: Any) -> str:
    return json.dumps({"type": kind, **fields})


def _create(**fields: Any) -> str:
    create = {"session_id": "$session", "idempotency_key": "bad-input", "input": "hello"}
    return _frame("response.create", **create | fields)


def _invalid_json() -> Iterator[BadFrame]:
    numbers = (2**53 + 1, -(2**53) - 1, 2**64, 10**400)
    texts: dict[str, tuple[str, ...]] = {
        "B17": (
            *("", " ", "\t\r\n ", "{", "nul", "\ufeff{}", "{}{}", '{"type":"ping",}', "-", "01"),
            *("{'type':'ping'}", '{"t":NaN}', '{"t":Infinity}', '{"t":-Infinity}', '{"t":1e999}'),
            *("[]", '"x"', "42", "true", "null", '{"type":"ping"', '"', "{}\x00", "\x00"),
        ),
        "B18": (
            *("[" * 33, "[" * 1025, "[" * 100_000, '{"a":' * 50_000, "[" * 33 + "]" * 33),
            '{"t":' + "[" * 32 + "]" * 32 + "}",
        ),
        "B19": (
            *('{"type":"\\ud800"}', '{"type":"ping","x":"\\udc00\\ud800"}', '{"\\ud800":1}'),
            *(f'{{"type":"ping","t":{number}}}' for number in numbers),
            f'{{"type":"ping","unknown":[{{"deep":{2**64}}}]}}',
        ),
    }
    for row, bad in texts.items():
        yield from (BadFrame(row, text, "invalid_json") for text in bad)


def _unknown_types() -> Iterator[BadFrame]:
    strings = ("nonsense", "", "PING", "ping\0", "__class__", "x" * 60_000)
    others: tuple[Any, ...] = (7, None, True, [], {"a": 1})
    for value in (*strings, *others):
        yield BadFrame("B20", json.dumps({"type": value}), "unknown_type", "type")
    yield BadFrame("B20", "{}", "unknown_type", "type")
    yield BadFrame("B21", '{"type":"ping","type":"nonsense"}', "unknown_type", "type")
    needs_key = '{"type":"stop","type":"response.create","session_id":"$session"}'
    yield BadFrame("B21", needs_key, "idempotency_key_required", "idempotency_key")


def _unknown_settings() -> Iterator[BadFrame]:
    names = ["__proto__", "__class__", "__init__", "n", "logit_bias", "chat_template", "x" * 60_000]
    for name in names:
        row = "B28" if name in ("n", "logit_bias", "chat_template") else "B21"
        text = _create(settings={name: 1})
        yield BadFrame(row, text, "invalid_field", "settings")
    many = {f"k{number}": 1 for number in range(10_000)}
    yield BadFrame("B21", _create(settings=many), "invalid_field", "settings")
    yield BadFrame("B21", _frame("stop", session_id=1, idempotency_key="k"), "invalid_field")


def _bad_inputs() -> Iterator[BadFrame]:
    for value in ("", " ", "\n\t \u3000", [], [{"type": "input_text", "text": " "}]):
        yield BadFrame("B25", _create(input=value), "invalid_field", "input")
    for wrong in (7, {}, {"type": "input_text", "text": "hi"}, None, True):
        yield BadFrame("B25", _create(input=wrong), "invalid_field", "input")
    unknown: tuple[list[Any], ...] = ([{"type": "image", "text": "hi"}], [{"text": "hi"}], ["hi"])
    for parts in (*unknown, [{}], [None]):
        yield BadFrame("B25", _create(input=parts), "invalid_field")
    for other in ("regenerate_of", "continue_of"):
        text = _create(**{other: "msg_" + "A" * 22})
        yield BadFrame("B25", text, "invalid_field", other)
    missing = _frame("response.create", session_id="$session", idempotency_key="k")
    yield BadFrame("B25", missing, "invalid_field", "input")
    yield BadFrame("B26", _create(input="x" * (MAX_INPUT_BYTES + 1)), "message_too_large", "input")
    euros = "€" * (MAX_INPUT_BYTES // 3 + 1)
    text = json.dumps({**json.loads(_create()), "input": euros}, ensure_ascii=False)
    yield BadFrame("B26", text, "message_too_large", "input")
    parts = [{"type": "input_text", "text": "x" * (MAX_INPUT_BYTES // 2 + 1)}] * 2
    if len(_create(input=parts)) < MAX_MESSAGE_BYTES:
        yield BadFrame("B26", _create(input=parts), "message_too_large", "input")


def _bad_settings() -> Iterator[BadFrame]:
    rows: dict[str, dict[str, list[Any]]] = {
        "B27": {
            "max_output_tokens": [0, -1, 1.5, "5", True, 16_385, 10**9, [5]],
            "temperature": [-1, 2.1, 1e308, "hot", True, []],
            "top_p": [0, 1.1, -0.1, "1"],
            "top_k": [-2, 1001, 1.5],
            "min_p": [-0.1, 1.1],
            "seed": [1.5, -1, "1", True],
        },
        "B28": {
            "presence_penalty": [100, -100],
            "frequency_penalty": [100, -100],
            "repetition_penalty": [0, -1, 100],
        },
        "B29": {
            "stop": [["a"] * 5, ["x" * 65], [""], ["a"] * 20_000, [1], "abc", {"a": 1}],
            "system": ["x" * (32 * 1024 + 1), "€" * (32 * 1024 // 3 + 1), 5],
        },
    }
    for row, settings in rows.items():
        for name, values in settings.items():
            for value in values:
                text = _create(settings={name: value})
                yield BadFrame(row, text, "invalid_field", f"settings.{name}")
    yield BadFrame("B27", _create(settings=[]), "invalid_field", "settings")
    yield BadFrame("B27", _create(settings={"model": ""}), "invalid_field", "settings.model")
    yield BadFrame("B27", _create(settings={"model": "other"}), "model_not_found", "settings.model")
    new = {"idempotency_key": "bad-settings", "settings": {"top_p": 0}}
    yield BadFrame("B27", _frame("session.create", **new), "invalid_field", "settings.top_p")
    changed = {"session_id": "$session", "settings": {"seed": 1.5}}
    yield BadFrame("B27", _frame("session.update", **changed), "invalid_field", "settings.seed")


def malformed_ids(good: str) -> list[str]:
    """Values that are no id, among them what would hurt if it reached Redis or a file system."""
    return [
        *("", "../x", "*", "a:b", "{x}", "x\r\nFLUSHALL\r\n", "\0", good + "\0", good + "\n"),
        *(good.upper(), good[:-1], good + "A", "x" * 10_240, " " + good, good + "{}"),
        *("ses_" + "*" * 22, "msg_" + "?" * 22, "resp_" + "[a]" * 11, "ses_" + "é" * 22),
    ]


SESSION_FRAMES: dict[str, dict[str, Any]] = {
    "session.subscribe": {},
    "session.unsubscribe": {},
    "session.update": {"title": "mine now"},
    "session.delete": {},
    "response.create": {"idempotency_key": "bad-id", "input": "hello"},
    "response.cancel": {},
    "stop": {"idempotency_key": "bad-id"},
}
RESPONSE_FRAMES: dict[str, dict[str, Any]] = {
    "response.cancel": {},
    "stop": {"seen_sequence_number": 3},
    "response.resume": {"fence": 1, "after_sequence_number": 0},
}
MESSAGE_FRAMES = {"response.create": "parent_id", "session.update": "head"}


def bad_keys() -> Iterator[BadFrame]:
    """B33: an idempotency key that is missing or malformed."""
    frames = {
        "session.create": {},
        "response.create": {"session_id": "$session", "input": "hello"},
    }
    param = "idempotency_key"
    for kind, fields in frames.items():
        yield BadFrame("B33", _frame(kind, **fields), "idempotency_key_required", param)
        nothing = _frame(kind, **fields, idempotency_key=None)
        yield BadFrame("B33", nothing, "idempotency_key_required", param)
        for key in ("", "x" * 129, "a:b", "a\0b", "a b", "é", "a\n", "*", "{a}", 7, ["k"], True):
            yield BadFrame("B33", _frame(kind, **fields, idempotency_key=key), "invalid_field")


def _bad_positions() -> Iterator[BadFrame]:
    """B32: places in a log that no log has; what is beyond every integer is no JSON."""
    response, session = "resp_" + "A" * 33, "$session"
    good = {"response_id": response, "fence": 1, "after_sequence_number": 0}
    after = {"epoch": "e", "offset": 1}
    values: tuple[Any, ...] = (-1, "5", 1.0, None, True, 10**18)
    for bad in values:
        code = "invalid_json" if bad == 10**18 else "invalid_field"
        for field in ("fence", "after_sequence_number"):
            position = {**good, field: bad}
            yield BadFrame("B32", _frame("response.resume", **position), code)
            listed = _frame("session.subscribe", session_id=session, responses=[position])
            yield BadFrame("B32", listed, code)
        late = _frame("session.subscribe", session_id=session, after={**after, "offset": bad})
        yield BadFrame("B32", late, code)
        if bad is not None:  # as if it were not there
            seen = _frame("stop", response_id=response, seen_sequence_number=bad)
            yield BadFrame("B32", seen, code)
    for limit in (0, -1, 201, "5"):
        text = _frame("session.subscribe", session_id=session, limit=limit)
        yield BadFrame("B32", text, "invalid_field", "limit")


def _rights() -> Iterator[BadFrame]:
    """B34: what needs a role that the sender has not."""
    observed = _frame("session.subscribe", session_id="$session", observe=True)
    yield BadFrame("B34", observed, "forbidden", "observe")
    for priority in (1, -1):
        yield BadFrame("B34", _create(priority=priority), "forbidden", "priority")


def _bad_titles() -> Iterator[BadFrame]:
    for title in ("x" * 201, "x" * 200_000, 7, ["x"]):
        update = _frame("session.update", session_id="$session", title=title)
        yield BadFrame("B38", update, "invalid_field", "title")
        create = _frame("session.create", idempotency_key="bad-title", title=title)
        yield BadFrame("B38", create, "invalid_field", "title")


FRAMES = (
    *_invalid_json(),
    *_unknown_types(),
    *_unknown_settings(),
    *_bad_inputs(),
    *_bad_settings(),
    *bad_keys(),
    *_bad_positions(),
    *_rights(),
    *_bad_titles(),
)

BINARY_FRAMES = (b'{"type":"ping","t":1}', b"\x00\xff garbage", b"")  # B10

HELLO = frame(TEXT, b'{"type":"ping"}')

BYTES = (
    BadBytes("B8", "unmasked", frame(TEXT, b"{}", masked=False), (1002,)),
    *(
        BadBytes("B8", f"rsv {bits:03b}", frame(TEXT, b"{}", rsv=bits), (1002,))
        for bits in (1, 2, 4)
    ),
    *(
        BadBytes("B8", f"opcode {opcode:X}", frame(opcode, b"{}"), (1002,))
        for opcode in (3, 4, 5, 6, 7, 0xB, 0xC, 0xD, 0xE, 0xF)
    ),
    *(
        BadBytes("B8", f"control {op:X} of 126", frame(op, b"x" * 126), (1002,))
        for op in (8, 9, 10)
    ),
    *(
        BadBytes("B8", f"control {op:X} in parts", frame(op, fin=False), (1002,))
        for op in (8, 9, 10)
    ),
    BadBytes("B8", "continuation of nothing", frame(CONTINUATION, b"{}"), (1002,)),
    BadBytes("B8", "text in a message", frame(TEXT, b"{", fin=False) + HELLO, (1002,)),
    BadBytes("B8", "pipelined HTTP", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", (1002,)),
    *(
        BadBytes("B9", f"text {bad.hex()}", frame(TEXT, b'"' + bad + b'"'), (1007,))
        for bad in (b"\xff\xfe", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82")
    ),
    BadBytes(
        "B9",
        "code point cut for ever",
        frame(TEXT, b"\xe2\x82", fin=False) + frame(CONTINUATION),
        (1007,),
    ),
    BadBytes("B9", "bad text, then close", frame(TEXT, b"\xff") + close_frame(1000), (1000, 1007)),
    *(
        BadBytes("B9", f"close {code}", close_frame(code), (1002, 1007))
        for code in (1005, 1006, 1015, 999, 5000, 0, 1004, 65535)
    ),
    BadBytes("B9", "close of one byte", frame(CLOSE, b"\x03"), (1002, 1007)),
    BadBytes("B9", "close with bad UTF-8", close_frame(1000, b"\xff\xfe"), (1002, 1007)),
    BadBytes("B11", "one byte too many", frame(TEXT, b" " * (MAX_MESSAGE_BYTES + 1)), (1009,)),
    BadBytes("B11", "16 MiB", frame(TEXT, b" " * 2**24), (1009,)),
    BadBytes("B11", "2^63-1 announced", frame(TEXT, announced=2**63 - 1), (1009,)),
    BadBytes(
        "B11",
        "too large in parts",
        frame(TEXT, b" " * 400_000, fin=False) + frame(CONTINUATION, b" " * 200_000),
        (1009,),
    ),
    BadBytes(
        "B12",
        "empty fragments",
        frame(TEXT, fin=False) + frame(CONTINUATION, fin=False) * 1_000_000,
        (4429,),
    ),
    BadBytes(
        "B12",
        "fragments of a byte",
        frame(TEXT, b" ", fin=False) + frame(CONTINUATION, b" ", fin=False) * 250_000,
        (4429,),
    ),
    BadBytes("B13", "deflate bomb", frame(TEXT, b"\xec\xc1\x01" + bytes(40_000), rsv=4), (1002,)),
    BadBytes("B14", "pings", frame(PING, b"x" * 125) * 10_000, (4429,)),
    BadBytes("B14", "pongs", frame(PONG, b"x" * 125) * 10_000, (4429,)),
    BadBytes(
        "B15", "close in a message", frame(TEXT, b"{", fin=False) + close_frame(1000), (1000,)
    ),
    BadBytes("B15", "data after close", close_frame(1000) + HELLO * 50, (1000,)),
    BadBytes("B15", "garbage after close", close_frame(1000) + b"\xff" * 100_000, (1000,)),
)

# After these the same connection goes on.
HARMLESS_BYTES = (
    ("B11", frame(TEXT, b'{"type":"ping","t":5}'.ljust(MAX_MESSAGE_BYTES))),
    ("B12", frame(TEXT, b'{"type":"ping","t":5}'.ljust(1024), fin=False)
        + frame(CONTINUATION, b" " * 1024, fin=False) * 300 + frame(CONTINUATION)),
    ("B12", b"".join(
        frame(CONTINUATION if place else TEXT, bytes([byte]), fin=False)
        for place, byte in enumerate(b'{"type":"ping","t":5}')) + frame(CONTINUATION)),
    ("B9", frame(TEXT, '{"type":"ping","t":5,"x":"€'.encode()[:-1], fin=False)
        + frame(CONTINUATION, "€".encode()[-1:] + b'"}')),
    ("B8", frame(TEXT, b'{"type":"pi', fin=False) + frame(PING, b"x" * 125)
        + frame(CONTINUATION, b'ng","t":5}')),
    ("B8", frame(PONG, b"unasked") + frame(TEXT, b'{"type":"ping","t":5}')),
)  # fmt: skip

FORGED = "forged-token-forged-token-forged"


def _bearer(token: str) -> str:
    return "bearer." + base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")


HANDSHAKES = (
    BadHandshake("B3", "only a bearer", {"Sec-WebSocket-Protocol": _bearer(FORGED)}, (400,)),
    BadHandshake("B4", "version 8", {"Sec-WebSocket-Version": "8"}, (400, 426)),
    BadHandshake("B4", "no version", {"Sec-WebSocket-Version": None}, (400, 426)),
    BadHandshake("B4", "no key", {"Sec-WebSocket-Key": None}, (400,)),
    BadHandshake("B4", "short key", {"Sec-WebSocket-Key": "c2hvcnQ="}, (400,)),
    BadHandshake("B4", "key not base64", {"Sec-WebSocket-Key": "é" * 24}, (400,)),
    BadHandshake("B4", "two keys", {"Sec-WebSocket-Key": ["AA==", "AA=="]}, (400,)),
    BadHandshake("B4", "h2c", {"Upgrade": "h2c"}, (400, 426)),
    BadHandshake("B4", "no upgrade", {"Upgrade": None}, (400, 426)),
    BadHandshake("B4", "POST", {}, (400, 405), "POST"),
    BadHandshake("B4", "HEAD", {}, (400, 405), "HEAD"),
    BadHandshake("B4", "plain POST", {"Upgrade": None, "Connection": None}, (405,), "POST"),
    BadHandshake("B4", "plain HEAD", {"Upgrade": None, "Connection": None}, (426,), "HEAD"),
    BadHandshake("B4", "body announced", {"Content-Length": "5"}, (400,)),
    BadHandshake("B4", "chunked body", {"Transfer-Encoding": "chunked"}, (400,)),
    BadHandshake("B5", "12 KB header", {"X-Long": "x" * 12_000}, (400, 431)),
    BadHandshake("B5", "20 KB header", {"X-Long": "x" * 20_000}, (431,)),
    BadHandshake("B5", "120 headers", {"X-Many": ["x"] * 120}, (431,)),
    BadHandshake("B5", "1,000 headers", {"X-Many": ["x"] * 1000}, (431,)),
    BadHandshake("B5", "64 KB header", {"X-Long": "x" * 64_000}, (431,)),
    BadHandshake("B5", "10 MB header", {"X-Long": "x" * 10_000_000}, (431,)),
    BadHandshake("B5", "20,000 headers", {"X-Many": ["x"] * 20_000}, (431,)),
    BadHandshake("B5", "1,000 cookies", {"Cookie": ["a=b"] * 1000}, (431,)),
    BadHandshake("B5", "1 MB token", {"Authorization": "Bearer " + "x" * 2**20}, (431,)),
    BadHandshake("B5", "NUL", {"X-Bad": "a\0b"}, (400,)),
    BadHandshake("B5", "lone CR", {"X-Bad": "a\rb"}, (400,)),
    BadHandshake("B5", "lone LF", {"X-Bad": "a\nb"}, (400,)),
    BadHandshake("B5", "folded header", {"X-Bad": "a\r\n b"}, (400,)),
    BadHandshake("B5", "two lengths", {"Content-Length": ["0", "5"]}, (400,)),
    BadHandshake("B5", "two ends", {"Content-Length": "0", "Transfer-Encoding": "chunked"}, (400,)),
    BadHandshake("B7", "foreign host", {"Host": "evil.example"}, (421,)),
    BadHandshake("B7", "our name inside", {"Host": "localhost.evil.example"}, (421,)),
    BadHandshake("B7", "no host", {"Host": None}, (400, 421)),
    BadHandshake("B7", "two hosts", {"Host": ["localhost", "evil.example"]}, (400, 421)),
    BadHandshake("B7", "empty host", {"Host": ""}, (400, 421)),
)

CLOSED_HANDSHAKES = (
    ClosedHandshake("B2", "no token", {"Authorization": None}, 4401),
    ClosedHandshake("B2", "forged token", {"Authorization": f"Bearer {FORGED}"}, 4401),
    ClosedHandshake("B2", "empty token", {"Authorization": "Bearer "}, 4401),
    ClosedHandshake("B2", "other scheme", {"Authorization": "Basic bG9jYWw6"}, 4401),
    ClosedHandshake("B2", "two tokens", {"Authorization": ["Bearer a", "Bearer b"]}, 4401),
    ClosedHandshake("B2", "not ASCII", {"Authorization": "Bearer ÿé"}, 4401),
    ClosedHandshake("B2", "8,000 characters", {"Authorization": "Bearer " + "x" * 8000}, 4401),
    ClosedHandshake(
        "B2",
        "forged subprotocol",
        {"Authorization": None, "Sec-WebSocket-Protocol": f"chat.v1, {_bearer(FORGED)}"},
        4401,
    ),
    ClosedHandshake(
        "B3",
        "padded base64",
        {"Authorization": None, "Sec-WebSocket-Protocol": "chat.v1, bearer.YQ=="},
        4401,
    ),
    ClosedHandshake(
        "B3",
        "not base64",
        {"Authorization": None, "Sec-WebSocket-Protocol": "chat.v1, bearer.!!!"},
        4401,
    ),
    ClosedHandshake("B3", "other protocol", {"Sec-WebSocket-Protocol": "chat.v2, mqtt"}, 4406),
    ClosedHandshake("B3", "no protocol", {"Sec-WebSocket-Protocol": None}, 4406),
    ClosedHandshake("B3", "other case", {"Sec-WebSocket-Protocol": "CHAT.V1"}, 4406),
)

# B1: with a valid cookie; `$port` is ours. None passes.
BAD_ORIGINS: tuple[str | list[str] | None, ...] = (
    *(None, "null", "", "https://evil.example", "http://127.0.0.1.evil.example:$port"),
    *("http://evil.127.0.0.1:$port", "http://127.0.0.1:1", "http://127.0.0.1", "127.0.0.1:$port"),
    *("http://127.0.0.1:$port/", "https://127.0.0.1:$port", "http://localhost:$port"),
    *("http://127.0.0.1:$port#", "http://127.0.0.1:$port@evil.example", "*"),
    ["http://127.0.0.1:$port", "https://evil.example"],
    ["https://evil.example", "http://127.0.0.1:$port"],
)


def counts() -> Counter[str]:
    """How many inputs each row has."""
    inputs: Counter[str] = Counter()
    tables: tuple[tuple[Any, ...], ...] = (FRAMES, BYTES, HANDSHAKES, CLOSED_HANDSHAKES)
    inputs.update(item.row for table in tables for item in table)
    inputs.update(row for row, _ in HARMLESS_BYTES)
    inputs["B1"] += len(BAD_ORIGINS)
    inputs["B10"] += len(BINARY_FRAMES)
    num_frames = len(SESSION_FRAMES) + len(RESPONSE_FRAMES) + len(MESSAGE_FRAMES)
    inputs["B31"] += num_frames * len(malformed_ids("ses_" + "A" * 22))
    inputs.update(row for row, count in bad_requests.counts().items() for _ in range(count))
    return inputs


def main() -> None:
    found = counts()
    for row in sorted(found, key=lambda name: int(name[1:])):
        print(f"{row:4} {found[row]:5}")
    print(f"{len(found)} rows, {sum(found.values())} inputs")


if __name__ == "__main__":
    main()
