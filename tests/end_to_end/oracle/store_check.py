"""What a store shows by itself: whole logs with one end, true texts, no key that should go."""

import re
from collections.abc import Callable, Iterator

from tests.end_to_end.frames.client_model import UNKNOWN, matches, utf16_length, utf16_prefix
from tests.end_to_end.oracle.stored_state import Stored, StoredRun, StoredSession
from tests.helpers.tiny_model import oracle_answer

KEEP_MS = 600_000  # of a run's keys after its end
LATE_LEASE_MS = 2_000
MESSAGE_STATUS = {
    "completed": "completed",
    "cancelled": "interrupted",
    "incomplete": "interrupted",
    "failed": "failed",
}
ORACLE_TOKENS = 17_000
ADAPTED = "adapted-"  # models of these names say something else
_ORACLE_PROMPT = re.compile(r"t(\d{5})\s*\Z")


def check_store(stored: Stored, right: Callable[[str], str] = str) -> Iterator[str]:
    """I1 (stored text is the log's and the model's), I3, I7 and the indexes.

    `right` says what belongs where a text is, if an engine may have lied.
    """
    if stored.foreign_keys:
        yield f"I7 keys outside the prefix: {stored.foreign_keys[:5]}"
    for session_id, session in stored.sessions.items():
        if session.fields:
            for violation in _check_session(stored, session_id, session, right):
                yield f"{violation} (session {session_id})"
        elif rest := [s for s in session.suffixes if s != "x" and not s.startswith("i:")]:
            yield f"I7 of the deleted session {session_id} there is still {rest}"
    live = stored.live_runs()
    if missing := live.keys() - stored.live_index:
        yield f"I7 live runs outside the index: {missing}"
    if (extra := stored.live_index - live.keys()) and stored.is_served:
        yield f"I7 in the index of live runs and not live: {extra}"


def _check_session(
    stored: Stored, session_id: str, session: StoredSession, right: Callable[[str], str]
) -> Iterator[str]:
    fields = session.fields
    if session_id not in stored.all_sessions:
        yield "I7 not among all sessions"
    if session_id not in stored.sessions_of.get(fields["uid"], ()):
        yield "I7 not among its user's sessions"
    ids = [message_id for message_id, _ in session.tree]
    if sorted(ids) != sorted(session.messages):
        yield f"I4 the tree has {len(ids)} messages, stored are {len(session.messages)}"
    numbers = [number for number, _ in session.log]
    if numbers and numbers != list(range(numbers[0], int(fields["offset"]) + 1)):
        yield f"I2 session log {numbers[:3]}…{numbers[-3:]}, offset {fields['offset']}"
    live = {rid for rid, run in session.runs.items() if run.is_live}
    busy = {rid for rid in (fields["active_response_id"], *session.queue) if rid}
    if live != busy:
        yield f"I3 live runs {live}, active and queued {busy}"
    for response_id, run in session.runs.items():
        for violation in _check_run(stored, session, response_id, run, right):
            yield f"{violation} (response {response_id})"


def _check_run(
    stored: Stored,
    session: StoredSession,
    response_id: str,
    run: StoredRun,
    right: Callable[[str], str],
) -> Iterator[str]:
    if not run.fields:
        yield f"I7 only {sorted(run.expiries)} of a run"
        return
    numbers = [number for number, _ in run.events]
    if numbers != list(range(1, int(run.fields["sequence_number"]) + 1)):
        yield f"I2 log {numbers[:3]}…{numbers[-3:]}, number {run.fields['sequence_number']}"
    if int(run.fields.get("num_tokens", 0)) != run.num_token_ids:
        yield f"I2 {run.num_token_ids} token ids, counted {run.fields['num_tokens']}"
    dones = [n for n, event in run.events if _type(event) == "response.done"]
    length = run.text_start
    for number, event in run.events:
        if isinstance(event, list):
            if event[1] != length:
                yield f"I1 entry {number} at {event[1]}, after a text of {length}"
            length += utf16_length(event[2])
    message = session.messages.get(run.fields["message_id"], {})
    if _type(run.events[0][1]) != "response.created":
        yield "I2 the log does not begin with response.created"
    if run.is_live:
        if dones:
            yield f"I3 live, with response.done at {dones}"
        late = stored.now_ms - int(run.fields["lease_until"])
        if late > LATE_LEASE_MS and stored.is_served:
            yield f"I3 {run.status}, with a lease that ended {late} ms ago"
        return
    if dones != [numbers[-1]]:
        yield f"I3 {run.status}, with response.done at {dones} of {numbers[-1]}"
    for key, expiry in run.expiries.items():
        if not 0 < expiry <= KEEP_MS:
            yield f"I7 key {key} of an ended run expires in {expiry} ms"
    if message.get("response_id") == response_id:
        text = message["content"][0]["text"]
        yield from _check_text(session, run, text, message["status"], right)
    elif not message:
        yield "I4 no message"


def _check_text(
    session: StoredSession, run: StoredRun, text: str, status: str, right: Callable[[str], str]
) -> Iterator[str]:
    """I1, G5: message = log, cut at `text_length` = what the model must say."""
    length = int(run.fields["text_length"])
    if status != MESSAGE_STATUS[run.status]:
        yield f"I3 the run is {run.status}, its message {status}"
    if utf16_length(text) != length:
        yield f"I1 a text of {utf16_length(text)}, text_length {length}"
    whole = UNKNOWN * run.text_start + run.text_at(run.events[-1][0])
    if utf16_length(whole) < length:
        yield f"I1 the log spells {utf16_length(whole)}, text_length is {length}"
    elif not matches(utf16_prefix(whole, length), text) and utf16_length(whole) >= length:
        yield f"I1 the log spells {whole[:length][-60:]!r}, stored is {text[-60:]!r}"
    question = session.messages.get(run.fields.get("parent_id", ""), {})
    prompt = _ORACLE_PROMPT.search(question["content"][0]["text"]) if question else None
    counts = not run.fields.get("model", "").startswith(ADAPTED)
    if counts and prompt and (first := int(prompt[1])) < ORACLE_TOKENS:
        said = right(text)
        num_words = min(len(said) // 7 + 1, ORACLE_TOKENS - 1 - first)
        reference = oracle_answer(first, num_words)
        if not reference.startswith(said[: len(reference)]):
            yield f"I1 after {prompt[0]!r} the model counts, stored is {text[:80]!r}"


def _type(event: object) -> str:
    return str(event.get("type")) if isinstance(event, dict) else ""
