"""What looks like a secret of a URL is masked, and all else is left."""

import pytest

from server.config.masking import MASK, masked


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://user:pass@host/v1", f"https://{MASK}@host/v1"),
        ("https://key@host", f"https://{MASK}@host"),
        ("https://host/v1?api_key=abc&size=2", f"https://host/v1?api_key={MASK}&size=2"),
        ("redis://h?a=1&password=x#f", f"redis://h?a=1&password={MASK}#f"),
        ("a, openai=https://u:p@h;key=file", f"a, openai=https://{MASK}@h;key={MASK}"),
        ("native=tcp://h:1;keys=folder", "native=tcp://h:1;keys=folder"),
        ("no url at all: a@b", "no url at all: a@b"),
        ("https://a:p@h, https://b:q@i", f"https://{MASK}@h, https://{MASK}@i"),
        ("redis://:p/w?#@h:1/0", f"redis://{MASK}@h:1/0"),
        ("redis://:p, w@h:1/0", f"redis://{MASK}@h:1/0"),
    ],
)
def test_passwords_in_urls_are_masked(text: str, expected: str) -> None:
    assert masked(text) == expected
