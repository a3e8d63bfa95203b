"""The engines that an operator names, as `--engines` and `PARLEY_ENGINES` take them."""

from pathlib import Path

import pytest

from server.config.engines import SOLE, EngineEntry, far_address, parse_engines
from server.config.settings import ConfigError, load_settings


def entries(text: str) -> tuple[EngineEntry, ...]:
    return load_settings({"engines": text}, {}).engine_entries


def refused(text: str) -> str:
    with pytest.raises(ConfigError) as raised:
        load_settings({"engines": text}, {})
    message = str(raised.value)
    assert message.startswith("engines: ") and "\n" not in message
    return message


@pytest.mark.parametrize("text", [None, "native", " native,"])
def test_without_a_word_there_is_one_engine_of_ours(text: str | None) -> None:
    assert load_settings({"engines": text}, {}).engine_entries == (SOLE,)


def test_a_count_stands_for_so_many_engines_each_with_a_name_of_its_own() -> None:
    names = [entry.name for entry in entries("native*2, native")]
    assert names == ["native-1", "native-2", "native-3"]


@pytest.mark.parametrize(("text", "name"), [("native*1", "native-1"), ("native;name=a", "a")])
def test_one_engine_to_which_others_may_come_is_said_so(text: str, name: str) -> None:
    (entry,) = entries(text)
    assert entry != SOLE and (entry.kind, entry.name) == ("native", name)


def test_files_of_an_engine_that_an_administrator_adds_lie_in_one_folder(tmp_path: Path) -> None:
    (entry,) = entries("vllm=https://gpu1;key=gpu1.key;ca=ca.pem;weight=2")
    placed = entry.with_files_in(tmp_path)
    assert (placed.key_file, placed.ca_file) == (tmp_path / "gpu1.key", tmp_path / "ca.pem")
    assert placed.weight == 2
    for path in ("/etc/shadow", "../token", "..", "a/b"):
        (outside,) = entries(f"vllm=https://gpu1;key={path}")
        with pytest.raises(ValueError, match="without its folder"):
            outside.with_files_in(tmp_path)


def test_commas_and_spaces_separate_engines_of_several_kinds() -> None:
    found = entries("native vllm=http://a:8000,llamacpp=https://b/,\n openai=https://c/v1")
    assert [(entry.kind, entry.url) for entry in found] == [
        ("native", None),
        ("vllm", "http://a:8000"),
        ("llamacpp", "https://b"),
        ("openai", "https://c/v1"),
    ]


def test_options_say_how_much_an_engine_gets_and_how_it_is_reached(tmp_path: Path) -> None:
    key, ca = tmp_path / "key", tmp_path / "ca.pem"
    (entry,) = entries(f"vllm=https://gpu1:8000;key={key};ca={ca};weight=2.5;model=m/8b;name=gpu")
    assert (entry.name, entry.weight, entry.model) == ("gpu", 2.5, "m/8b")
    assert (entry.key_file, entry.ca_file) == (key, ca)
    (plain,) = entries("vllm=https://gpu1:8000")
    assert (plain.name, plain.weight, plain.model) == ("vllm-1", 1.0, None)
    assert (plain.key_file, plain.ca_file) == (None, None)


def test_an_engine_may_be_for_one_of_several_models_alone() -> None:
    small, any_model = entries("native;for=small;name=s native")
    assert (small.serves, any_model.serves) == ("small", None)


def test_a_name_that_is_given_to_several_gets_numbers() -> None:
    assert [entry.name for entry in entries("native*2;name=cpu")] == ["cpu-1", "cpu-2"]


def test_the_command_line_names_engines_one_by_one() -> None:
    given = load_settings({"engines": ["native", "vllm=http://a"]}, {})
    assert [entry.name for entry in given.engine_entries] == ["native-1", "vllm-1"]


def test_the_environment_names_them_in_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARLEY_ENGINES", "native*2 vllm=http://a")
    names = [entry.name for entry in load_settings({}).engine_entries]
    assert names == ["native-1", "native-2", "vllm-1"]


@pytest.mark.parametrize("host", ["gpu1", "10.0.0.7", "[fd00::7]", "gpu1.example."])
def test_a_core_of_ours_may_be_on_another_machine(host: str) -> None:
    (entry,) = entries(f"native=tcp://{host}:7700;keys=~/keys;weight=2")
    assert (entry.kind, entry.name, entry.url) == ("native", "native-1", f"tcp://{host}:7700")
    assert entry.keys_folder == Path("~/keys").expanduser() and entry.weight == 2


def test_the_keys_that_an_administrator_names_lie_in_one_folder() -> None:
    (entry,) = entries("native=tcp://gpu1:7700;keys=gpu1")
    assert entry.with_files_in(Path("/data/engines")).keys_folder == Path("/data/engines/gpu1")
    (other,) = entries("native=tcp://gpu1:7700;keys=../gpu1")
    with pytest.raises(ValueError, match="without its folder"):
        other.with_files_in(Path("/data/engines"))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("nativ", "'nativ' is no kind of engine: there are native, vllm, sglang"),
        ("group", "'group' is no kind"),
        ("native*0", "from 1 to 64"),
        ("native*65", "from 1 to 64"),
        ("native*x", "from 1 to 64"),
        ("native*40 native*40", "from 1 to 64"),
        ("native=http://a:1;keys=/k", "one looks like tcp://HOST:PORT"),
        ("native=tcp://a;keys=/k", "one looks like tcp://HOST:PORT"),
        ("native=tcp://a:0;keys=/k", "one looks like tcp://HOST:PORT"),
        ("native=tcp://a:70000;keys=/k", "one looks like tcp://HOST:PORT"),
        ("native=tcp://a:7700/x;keys=/k", "one looks like tcp://HOST:PORT"),
        ("native=tcp://u:w@a:7700;keys=/k", "one looks like tcp://HOST:PORT"),
        ("native=tcp://a..b:7700;keys=/k", "one looks like tcp://HOST:PORT"),
        ("native=tcp://größe:7700;keys=/k", "one looks like tcp://HOST:PORT"),
        ("native=tcp://*:7700;keys=/k", "one looks like tcp://HOST:PORT"),
        ("native=tcp://a!b:7700;keys=/k", "one looks like tcp://HOST:PORT"),
        ("native=tcp://a:7700", "needs ;keys=FOLDER, which `parley core keys` makes"),
        ("native*2=tcp://a:7700;keys=/k", "named for itself"),
        ("native;keys=/k", "native has no option 'keys'"),
        ("native=tcp://a:7700;ca=/k", "native has no option 'ca'"),
        ("vllm=http://a;keys=/k", "vllm has no option 'keys'; did you mean key?"),
        ("vllm", "needs an address"),
        ("vllm=", "is no address"),
        ("vllm=gpu1:8000", "is no address"),
        ("vllm=ftp://gpu1", "is no address"),
        ("vllm=http://a:99999", "is no address"),
        ("vllm=http://a..b", "is no address"),
        ("vllm=http://.", "is no address"),
        (f"vllm=http://{'a' * 64}.example", "is no address"),
        ("openai=http://größe.example", "ASCII"),
        ("openai=http://a/größe", "ASCII"),
        ("openai=http://a/\x7f", "ASCII"),
        ("openai=http://a/v1?", "ends with its path"),
        ("vllm=http://u:secret@a", "a key belongs in a file"),
        ("vllm=http://a?x=1", "ends with its path"),
        ("vllm*2=http://a", "named for itself"),
        ("vllm=http://a;wieght=2", "did you mean weight?"),
        ("native;key=/k", "native has no option 'key'"),
        ("native;weight", "has one value"),
        ("native;weight=1;weight=2", "has one value"),
        ("native;weight=0", "a number above 0"),
        ("native;weight=nan", "a number above 0"),
        ("native;weight=inf", "a number above 0"),
        ("native;name=-x", "is no name"),
        ("native;name=a native;name=a", "two engines have the name a"),
        (";weight=1", "is no engine"),
    ],
)
def test_what_is_no_engine_is_refused_in_one_line(text: str, problem: str) -> None:
    assert problem in refused(text)


@pytest.mark.parametrize("address", ["http://u:secret@a", "u:secret@a", "http://secret@a:99999"])
def test_a_secret_in_an_address_is_not_repeated(address: str) -> None:
    assert "secret" not in refused(f"vllm={address}")


def test_no_engine_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="from 1 to 64"):
        parse_engines(())


@pytest.mark.parametrize("host", ["10.0.0.1:0;gpu1", "*", "eth0;gpu1", "a b", ""])
def test_what_libzmq_reads_in_an_address_beside_host_and_port_is_none_of_ours(host: str) -> None:
    with pytest.raises(ValueError, match="one looks like tcp://HOST:PORT"):
        far_address(f"tcp://{host}:7700")


@pytest.mark.parametrize("host", ["gpu1", "GPU-1.test.org", "10.0.0.1", "[::1]", "[fe80::1%eth0]"])
def test_names_and_addresses_are_hosts(host: str) -> None:
    assert far_address(f"tcp://{host}:7700") == f"tcp://{host}:7700"
