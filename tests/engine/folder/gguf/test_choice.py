import pytest

from engine.folder.gguf.choice import NotChosen, choose, models_among

REPOSITORY = [
    "README.md",
    "config.json",
    "tiny-BF16.gguf",
    "tiny-IQ4_XS.gguf",
    "tiny-Q4_0.gguf",
    "tiny-Q4_0_4_4.gguf",
    "tiny-Q4_K_M.gguf",
    "Q8_0/tiny-Q8_0-00002-of-00002.gguf",
    "Q8_0/tiny-Q8_0-00001-of-00002.gguf",
    "mmproj-tiny-F16.gguf",
    "tiny.imatrix.gguf",
]


@pytest.mark.parametrize(
    ("wanted", "files"),
    [
        (None, ["tiny-Q4_K_M.gguf"]),
        ("Q4_0", ["tiny-Q4_0.gguf"]),
        ("q4_k_m", ["tiny-Q4_K_M.gguf"]),
        ("bf16", ["tiny-BF16.gguf"]),
        ("tiny-IQ4_XS.gguf", ["tiny-IQ4_XS.gguf"]),
        ("Q8_0", ["Q8_0/tiny-Q8_0-00001-of-00002.gguf", "Q8_0/tiny-Q8_0-00002-of-00002.gguf"]),
    ],
)
def test_quantization_chooses_its_files(wanted: str | None, files: list[str]) -> None:
    assert list(choose(REPOSITORY, wanted)) == files


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["a-Q8_0.gguf", "a-Q4_0.gguf", "a-F16.gguf"], "a-Q4_0.gguf"),
        (["a-Q8_0.gguf", "a-F16.gguf"], "a-Q8_0.gguf"),
        (["mmproj-a.gguf", "a-Q2_K.gguf"], "a-Q2_K.gguf"),
    ],
)
def test_without_a_name_it_is_the_one_that_most_people_take(names: list[str], chosen: str) -> None:
    assert choose(names) == (chosen,)


@pytest.mark.parametrize(
    ("names", "wanted", "says"),
    [
        (REPOSITORY, "Q5_K_M", "has no model named Q5_K_M; there are Q8_0/tiny-Q8_0, tiny-BF16,"),
        (REPOSITORY, "Q4", "has no model named Q4"),
        (["a-Q4_0.gguf", "b-Q4_0.gguf"], "Q4_0", "has 2 models named Q4_0: a-Q4_0, b-Q4_0"),
        (["a-F16.gguf", "a-F32.gguf"], None, "has several models: a-F16, a-F32"),
        (["mmproj-a.gguf", "README.md"], None, "has no GGUF files of a model"),
        (["/etc/a.gguf", "../a.gguf"], None, "has no GGUF files of a model"),
    ],
)
def test_what_is_not_clear_is_refused_with_what_there_is(
    names: list[str], wanted: str | None, says: str
) -> None:
    with pytest.raises(NotChosen) as refused:
        choose(names, wanted)
    assert str(refused.value).startswith(says)


def test_folder_must_hold_one_model() -> None:
    assert choose(["a-00002-of-00002.gguf", "a-00001-of-00002.gguf"], is_only=True)
    with pytest.raises(NotChosen, match="several models: a-Q4_0, a-Q8_0"):
        choose(["a-Q4_0.gguf", "a-Q8_0.gguf"], is_only=True)


def test_long_list_is_cut() -> None:
    names = [f"model-{number:03d}.gguf" for number in range(50)]
    assert len(models_among(names)) == 50
    with pytest.raises(NotChosen, match=r"model-019 and 30 others$"):
        choose(names)


def test_a_whole_name_is_not_taken_for_the_beginning_of_another() -> None:
    names = ["UD/tiny-Q4_0.gguf", "tiny-Q4_0-extra.gguf"]
    assert choose(names, "tiny-Q4_0") == ("UD/tiny-Q4_0.gguf",)


def test_a_file_whose_name_is_dots_is_no_model() -> None:
    assert models_among(["..gguf", "...gguf", ".-00001-of-00002.gguf", ".gguf"]) == {}
