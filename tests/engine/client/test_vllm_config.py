import json
from pathlib import Path

from engine.client.vllm_config import ModelConfig


def test_recommended_sampling_comes_from_the_checkpoint(tmp_path: Path) -> None:
    config = ModelConfig(str(tmp_path), "m", 100, 100, "float32")
    assert config.get_diff_sampling_param() == {}
    recommended = {"temperature": 0.6, "top_k": 20, "max_new_tokens": 7, "eos_token_id": 3}
    (tmp_path / "generation_config.json").write_text(json.dumps(recommended))
    assert config.get_diff_sampling_param() == {"temperature": 0.6, "top_k": 20, "max_tokens": 7}
    (tmp_path / "generation_config.json").write_text('{"do_sample": false}')
    assert config.get_diff_sampling_param() == {"temperature": 0.0}
