"""`WorkerConfig`: a worker gets of the settings what counts, as the supervisor read it."""

import msgspec

from server.config.settings import load_settings
from server.config.worker import WorkerSettings


def test_a_worker_gets_its_part_of_the_settings_through_json_as_it_is() -> None:
    flags = {"host": "0.0.0.0", "allowed_origins": "https://chat.example", "drain_seconds": 7}
    settings = load_settings({**flags, "log_format": "text", "max_tokens_per_day": 5}, {})
    line = msgspec.json.encode(msgspec.to_builtins(WorkerSettings.of(settings)))
    read = msgspec.json.decode(line, type=WorkerSettings)
    for name in WorkerSettings.__struct_fields__:
        assert getattr(read, name) == getattr(settings, name), name
