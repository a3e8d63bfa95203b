"""Names and places of models, as `--model` and `PARLEY_MODEL` take them."""

from pathlib import Path

import pytest

from server.config.models import ModelSource, discreet, model_sources, parse_model
from server.config.settings import ConfigError, load_settings


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("demo", ModelSource("demo")),
        ("owner/name-GGUF:Q4_K_M", ModelSource("owner/name-GGUF:Q4_K_M")),
        ("fast=owner/name", ModelSource("owner/name", "fast")),
        ("a.b-c_1:x=ollama:llama3.2:1b", ModelSource("ollama:llama3.2:1b", "a.b-c_1:x")),
        ("/models/x=y", ModelSource("/models/x=y")),  # a name has no slash
    ],
)
def test_a_model_may_have_a_name(text: str, source: ModelSource) -> None:
    assert parse_model(text) == source


def test_a_list_in_the_environment_is_separated_by_commas_or_spaces(tmp_path: Path) -> None:
    assert model_sources(" a, b=c\n d ") == ("a", "b=c", "d")
    folder = tmp_path / "my models, all"
    folder.mkdir()
    assert model_sources(str(folder)) == (str(folder),)  # as before there were lists
    assert model_sources(f"x={folder}") == (f"x={folder}",)


def test_the_first_is_the_default() -> None:
    settings = load_settings({"model": ["b=demo", "a"]}, {})
    assert settings.models == (ModelSource("demo", "b"), ModelSource("a"))
    assert [settings.pace_of(model) for model in settings.models] == [60.0, 0.0]
    assert load_settings({"model": []}, {}).models == (ModelSource("demo"),)


@pytest.mark.parametrize(
    ("models", "problem"),
    [
        (["a", "a"], "once"),
        (["n=a", "n=b"], "once"),
        ([" =a"], "is no name"),
        (["n="], "a model is a folder"),
        ([f"n{i}" for i in range(33)], "from 1 to 32"),
    ],
)
def test_what_cannot_be_distinguished_or_named_is_refused(models: list[str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        load_settings({"model": models}, {})


def test_clients_read_no_folders() -> None:
    assert discreet("/srv/m/config.json: is cut") == "config.json: is cut"
    assert discreet("https://hub.example/a/b cannot be reached") == (
        "https://hub.example/a/b cannot be reached"
    )
