"""Items of a queue whose ids and keys are their texts."""

from typing import Any

from sessions.model.queue import Queue, QueuedInput


def queued(text: str, **fields: Any) -> QueuedInput:
    name = text[:20].replace(" ", "_")
    given = {"id": name, "idempotency_key": name, "body_hash": "hash", "text": text}
    return QueuedInput(**(given | fields))


def queue_of(*texts: str) -> Queue:
    return Queue(items=tuple(map(queued, texts)))


def texts_of(queue: Queue) -> list[str]:
    return [item.text for item in queue.items]
