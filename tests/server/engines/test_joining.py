"""How a worker learns what it must know of the models that the supervisor names."""

from pathlib import Path

from engine import demo_model
from server.config.models import ModelStatus
from server.engines.client import ServedModel
from server.engines.joining import learn
from server.engines.models import Models
from tests.server.helpers.engines import IdleEngine


def status(name: str, folder: Path) -> ModelStatus:
    options = {"address": f"ipc:///nowhere/{name}", "folder": str(folder), "name": name}
    return ModelStatus(name=name, kind="native", options=options)


async def test_files_that_are_gone_or_broken_keep_no_other_model_from_being_learnt(
    tmp_path: Path,
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "generation_config.json").write_text("{")
    folders = {"gone": tmp_path / "gone", "broken": broken, "here": demo_model()}
    statuses = [status(name, folder) for name, folder in folders.items()]
    engines = [IdleEngine() for _ in range(4)]
    models = Models([status("a", demo_model()), *statuses], engines, ServedModel("a", "1"))
    await learn(models, statuses)
    assert [model.name for model in models.bases()] == ["a", "here"]
    assert models.is_pending("gone")
