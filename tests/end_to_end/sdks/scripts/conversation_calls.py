"""Conversations by OpenAI's Python client, as its users write them."""

import asyncio

import openai
from asking import MODEL, THREE, client, later

HELLO = {"role": "user", "content": "Hello"}
CALL = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "rain"}
COUNT = {"role": "user", "content": "t00001 "}


def a_conversation_from_its_beginning_to_its_end():
    made = client.conversations.create(metadata={"topic": "tulips"}, items=[HELLO])
    assert made.id.startswith("conv_") and made.metadata == {"topic": "tulips"}
    assert client.conversations.retrieve(made.id) == made
    changed = client.conversations.update(made.id, metadata={"topic": "roses"})
    assert changed.metadata == {"topic": "roses"} and changed.created_at == made.created_at
    gone = client.conversations.delete(made.id)
    assert gone.deleted and gone.id == made.id
    try:
        client.conversations.retrieve(made.id)
    except openai.NotFoundError as error:
        assert error.code == "session_not_found" and error.param == "conversation_id"
    else:
        raise AssertionError("it is still there")


def items_of_every_kind():
    conversation = client.conversations.create().id
    added = client.conversations.items.create(
        conversation,
        items=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
            CALL,
            OUTPUT,
            {"role": "assistant", "content": "Rain."},
        ],
        include=["web_search_call.action.sources"],
    )
    kinds = ["message", "message", "function_call", "function_call_output", "message"]
    assert [item.type for item in added.data] == kinds
    assert added.first_id == added.data[0].id and not added.has_more
    listed = list(client.conversations.items.list(conversation, order="asc"))
    assert listed == added.data
    for item in listed:
        found = client.conversations.items.retrieve(item.id, conversation_id=conversation)
        assert found == item


def a_list_that_is_longer_than_a_page():
    conversation = client.conversations.create(items=[HELLO] * 7).id
    items = client.conversations.items
    pages = list(items.list(conversation, limit=3).iter_pages())
    assert [len(page.data) for page in pages] == [3, 3, 1]
    newest_first = [item.id for page in pages for item in page.data]
    assert newest_first[::-1] == [item.id for item in items.list(conversation, order="asc")]


def what_a_client_was_given_it_may_give_again():
    first = client.conversations.create(items=[HELLO, CALL, OUTPUT])
    items = [item.model_dump() for item in client.conversations.items.list(first.id, order="asc")]
    again = client.conversations.create(items=items)
    copied = client.conversations.items.list(again.id, order="asc")
    assert [item.type for item in copied] == [item["type"] for item in items]


def an_item_is_deleted():
    conversation = client.conversations.create(items=[HELLO, HELLO]).id
    newest = client.conversations.items.list(conversation).data[0].id
    after = client.conversations.items.delete(newest, conversation_id=conversation)
    assert after.id == conversation
    (left,) = client.conversations.items.list(conversation)
    assert left.id != newest


def a_response_in_a_conversation_is_its_newest_item():
    conversation = client.conversations.create(items=[HELLO])
    asked = {"model": MODEL, "max_output_tokens": 3, "temperature": 0}
    answer = client.responses.create(conversation=conversation.id, input=[COUNT], **asked)
    assert answer.output_text == THREE
    items = client.conversations.items
    newest, question, hello = items.list(conversation.id).data
    assert newest.id == answer.output[0].id
    assert newest.content[0].text == answer.output_text
    assert question.content[0].text == COUNT["content"] and hello.content[0].text == "Hello"
    assert items.retrieve(newest.id, conversation_id=conversation.id) == newest
    after = client.responses.create(conversation=conversation.id, input="t00007 ", **asked)
    assert after.conversation.id == conversation.id
    items.delete(newest.id, conversation_id=conversation.id)
    left = [item.id for item in items.list(conversation.id, order="asc")]
    assert left[:2] == [hello.id, question.id] and left[-1] == after.output[0].id
    assert newest.id not in left and len(left) == 4
    assert client.responses.retrieve(answer.id).output_text == ""
    told = list(client.responses.retrieve(answer.id, stream=True))
    assert told[-1].response.output_text == "" and THREE not in str(told)


def an_image_is_refused_by_its_place():
    image = {"type": "input_image", "image_url": "https://example.org/x.png", "detail": "auto"}
    try:
        client.conversations.create(items=[HELLO, {"role": "user", "content": [image]}])
    except openai.BadRequestError as error:
        assert error.param == "items[1].content[0].type", error.param
    else:
        raise AssertionError("it was taken")


async def items_are_listed_later():
    made = await later.conversations.create(items=[HELLO] * 3)
    listed = [item async for item in later.conversations.items.list(made.id, limit=2)]
    assert len(listed) == 3


async def four_who_add_at_once():
    conversation = (await later.conversations.create()).id
    adding = [later.conversations.items.create(conversation, items=[HELLO]) for _ in range(4)]
    added = {page.first_id for page in await asyncio.gather(*adding)}
    listed = [item.id async for item in later.conversations.items.list(conversation)]
    assert set(listed) == added and len(added) == 4
