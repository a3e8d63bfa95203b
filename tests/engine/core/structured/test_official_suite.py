"""The official test suite of JSON Schema: what is taken is held, document by document."""

import json
import re
from collections import Counter

import llguidance
import pytest

from engine import demo_model
from engine.core.structured.compiling import compile_source
from engine.core.structured.frames import Source
from tests.engine.core.structured.test_keywords import REFUSED, TAKEN
from tests.engine.helpers.forms.documents import accepts, takes
from tests.engine.helpers.forms.published import Case, Unavailable, suite

pytestmark = pytest.mark.slow

DRAFTS = ("draft4", "draft6", "draft7", "draft2019-09", "draft2020-12")
# Documents that a schema allows and no answer is, by the file and what the suite says of them.
NOT_WRITTEN = {
    ("const", "float is valid"),  # 9007199254740992.0
    ("optional/float-overflow", "valid if optional overflow handling is implemented"),  # 1e308
    ("optional/ecmascript-regex", "zero-width whitespace matches"),
    ("optional/ecmascript-regex", "Line tabulation matches"),
    ("optional/ecmascript-regex", "Non-whitespace control matches"),
    ("optional/format/date-time", "a valid date-time with a leap second, UTC"),
    ("optional/format/date-time", "a valid date-time with a leap second, with minus offset"),
    ("optional/format/time", "a valid time string with leap second, Zulu"),
    *(
        ("optional/format/time", f"valid leap second, {each} time-offset")
        for each in ("zero", "positive", "large positive", "negative", "large negative")
    ),
    *(
        ("optional/format/email", f"{each} is valid")
        for each in (
            "a quoted string with a space in the local part",
            "a quoted string with a double dot in the local part",
            "a quoted string with a @ in the local part",
            "an IPv6-address-literal after the @",
        )
    ),
    ("optional/format/ipv6", "a long valid ipv6"),
    *(
        ("optional/format/ipv6", f"mixed format with {each}")
        for each in (
            "the ipv4 section as decimal octets",
            "double colons between the sections",
            "leading double colons (ipv4-mapped ipv6 address)",
        )
    ),
    ("ref", "ref valid, maxItems ignored"),  # what stands beside a $ref counts
    ("ref", "$ref resolves to /definitions/base_foo, data validates"),
}
# Documents that a schema forbids and an answer may be.
LET_THROUGH = {
    ("optional/ecmascript-regex", "zero-width whitespace does not match"),
    ("ref", "$ref resolves to /definitions/base_foo, data does not validate"),
    ("optional/content", "an invalid JSON document"),  # an annotation, later drafts say
    ("optional/content", "an invalid base64 string (% is not a valid character)"),
    ("optional/content", "a validly-encoded invalid JSON document"),
    ("optional/content", "an invalid base64 string that is valid JSON"),
}
# Why one is refused, beside a keyword of the table's right side.
REASONS = re.compile(
    "Unknown format|oneOf constraints are not supported|schema is false|is not present in a regist"
    "|Anchor '.*' does not exist|are not disjoint|minProperties: more than one beside"
    "|has too many digits|Failed to generate regex for float range|unrecognized escape sequence"
)


@pytest.fixture(scope="module")
def tokenizer() -> llguidance.LLTokenizer:
    return llguidance.LLTokenizer((demo_model() / "tokenizer.json").read_text())


def cases(draft: str) -> list[Case]:
    try:
        return suite(draft)
    except Unavailable as error:
        # Others publish the suite: without a network there is none.
        pytest.skip(str(error))


@pytest.mark.parametrize("draft", DRAFTS)
def test_each_schema_is_held_or_refused_by_name(
    tokenizer: llguidance.LLTokenizer, draft: str
) -> None:
    counts: Counter[str] = Counter()
    taken: Counter[str] = Counter()
    not_written, let_through = set(), set()
    for case in cases(draft):
        schema = case.schema if isinstance(case.schema, dict) else {"allOf": [case.schema]}
        try:
            matcher = compile_source(Source("json", json.dumps(schema)), tokenizer)
        except ValueError as error:
            named = set(re.findall('"([^"]+)"', str(error).partition("keys:")[2]))
            assert (named and named <= {*REFUSED}) or REASONS.search(str(error)), (case, error)
            counts["refused"] += 1
            continue
        counts["taken"] += 1
        taken[case.file] += 1
        assert matcher.get_grammar_warnings() == []
        for each in case.tests:
            about, document = (case.file, each["description"]), each["data"]
            if "only an annotation by default" in each["description"]:
                continue  # a format is held
            counts["documents"] += 1
            if not each["valid"] and accepts(tokenizer, matcher, json.dumps(document)):
                let_through.add(about)
            elif each["valid"] and not takes(tokenizer, matcher, document):
                not_written.add(about)
    print(f"{draft}: {dict(counts)}")
    assert let_through - LET_THROUGH == set()
    assert not_written - NOT_WRITTEN == set()
    keywords = {case.file for case in cases(draft)} & {*TAKEN} - {"definitions"}
    assert keywords <= {*taken}  # of each keyword of the left side some schema is taken
