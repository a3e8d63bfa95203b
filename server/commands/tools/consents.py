"""A user's word on a call that waits for it: checked, stored, and sent to the owner of the answer.

What counts is what the store has: the first word, no matter whose, or the end of the time for it.
"""

import asyncio
import contextlib

from server.commands.services import Services
from server.live.response_log import calls_of
from server.protocol.calls import CallLedger
from server.protocol.client_frames import ConsentToCall
from server.protocol.errors import ApiError, invalid_field
from server.protocol.server_frames import ConsentAccepted
from sessions.model.errors import RunEnded, StoreUnavailable
from sessions.model.ids import check_response_id

# A viewer at the owner is shown that a call waits a moment before it is stored. A word counts after
# that alone: it is about these arguments, and what is not stored may be written again.
NUM_LOOKS = 50
LOOK_SECONDS = 0.02


async def consent_to_call(services: Services, uid: str, frame: ConsentToCall) -> ConsentAccepted:
    """Keep the word. The same one again is accepted again.

    Raises `ApiError` `call_not_found`, `consent_settled`, `invalid_field`, and the store's errors.
    """
    check_response_id(frame.response_id)
    store, response_id = services.store, frame.response_id
    record = await store.runs.get(uid, response_id)  # it exists, and is theirs
    ledger = await _ledger(services, response_id)
    for _ in range(NUM_LOOKS if record.is_live else 0):
        if frame.call_id in ledger.outputs:
            break
        await asyncio.sleep(LOOK_SECONDS)
        ledger = await _ledger(services, response_id)
    output = ledger.outputs.get(frame.call_id)
    if output is None and not any(call.call_id == frame.call_id for call in ledger.calls):
        raise ApiError("call_not_found", "the response has no such call", param="call_id")
    if output is None or "consent" not in output.item:
        said, _ = await store.runs.said_of_call(response_id, frame.call_id, "")
        if said != frame.decision:
            raise _settled()
        return _accepted(frame)
    tool = None
    if frame.decision == "allow_session":
        if output.item["consent"] != "once":
            raise invalid_field("decision", "each call of this tool is asked for")
        tool = output.item["name"]
    try:
        kept = await store.runs.decide_call(
            uid, response_id, frame.call_id, frame.decision, granted_tool=tool
        )
    except RunEnded:
        raise _settled() from None
    if kept.decision != frame.decision:
        raise _settled()
    services.runs.hear_consent(response_id)
    if kept.owner != services.replica:
        with contextlib.suppress(StoreUnavailable):  # the owner looks by itself as well
            command = {"type": "consent", "response_id": response_id}
            await store.publish_control(kept.owner, command)
    return _accepted(frame)


async def _ledger(services: Services, response_id: str) -> CallLedger:
    """What is stored of the response's calls."""
    events = await services.store.runs.events(response_id)
    return calls_of(response_id, [event for _, event in events])


def _settled() -> ApiError:
    message = "that call does not wait for a word any more"
    return ApiError("consent_settled", message, param="call_id")


def _accepted(frame: ConsentToCall) -> ConsentAccepted:
    return ConsentAccepted(
        response_id=frame.response_id, call_id=frame.call_id, decision=frame.decision
    )
