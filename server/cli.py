"""The `parley` command: what it runs, and below it the commands of `server/terminal/`."""

import inspect
import itertools
import os
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, get_origin

import typer

from server import __version__
from server.config.masking import masked
from server.config.settings import ENVIRONMENT_ONLY, PREFIX, ConfigError, Settings, load_settings
from server.terminal.chat.command import chat
from server.terminal.commands import DataDir, admin_command, fail
from server.terminal.manage import groups, notice, shares, users
from server.terminal.manage.audit import show_audit
from server.terminal.manage.settings import show_settings
from server.terminal.running import NoServer, find_server
from server.terminal.serving import adapters, engines, workers
from server.terminal.serving.models import show_models
from server.terminal.sessions import commands as sessions

# What of the settings concerns a core, which may run alone.
CORE_SETTINGS = (
    "model",
    "pace",
    "max_model_len",
    "max_num_seqs",
    "kv_cache_memory_bytes",
    "gpu_memory_utilization",
    "device",
    "attn_backend",
    "dtype",
    "quantize",
    "kv_cache_dtype",
    "sleep_after_seconds",
    "standby_core",
    "watchdog_seconds",
    "lora_dir",
    "max_loras",
    "max_cpu_loras",
    "max_lora_rank",
    "log_level",
    "log_format",
)

app = typer.Typer(
    name="parley",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # Rich cuts long names where the terminal is narrow
    pretty_exceptions_enable=False,
)

core_app = typer.Typer(
    name="core", help="Run a core alone, for servers on other machines; make its keys."
)
for room in (sessions, workers, engines, adapters, users, groups, shares, notice):
    app.add_typer(room.app)
app.add_typer(core_app)


def _takes_settings(
    command: Callable[..., None], names: Collection[str] | None = None
) -> Callable[..., None]:
    """Give a command an option for each setting that a command line may show, as typer reads it.

    It has the options of its own besides. With `names` it takes these settings alone.
    """
    own = inspect.signature(command).parameters.values()
    options = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=_option_type(field.annotation) | None,
            default=typer.Option(
                None,
                "--" + name.replace("_", "-"),
                help=f"{field.description} [env: {PREFIX}{name.upper()}]",
                metavar="<text>"
                if name == "answer_format"
                else None,  # its names would be a long line
                show_default=False,
            ),
        )
        for name, field in Settings.model_fields.items()
        if name not in ENVIRONMENT_ONLY and (names is None or name in names)
    ]
    options = [*(one for one in own if one.kind is not one.VAR_KEYWORD), *options]
    # Typer reads the options there; the type of a function does not declare the attribute.
    command.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    return command


def _option_type(annotation: Any) -> Any:
    """A tuple is an option that may be given many times."""
    return list[str] if get_origin(annotation) is tuple else annotation


def _print_version(asked: bool) -> None:
    if asked:
        print(f"parley {__version__}")
        raise typer.Exit


@app.callback()
def parley(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    """A websocket chat backend that owns its LLM engine."""


@app.command()
@_takes_settings
def serve(**flags: Any) -> None:
    """Run the server: web workers, the engine and Redis, until Ctrl-C.

    Every option can also be set in the environment; a flag takes precedence. Secrets come from the
    environment only, because every user of the machine can read a command line.
    """
    _refuse_secrets(flags)
    try:
        settings = load_settings(flags)
    except ConfigError as error:
        raise fail(str(error)) from None
    from server.supervisor.hardening import harden
    from server.supervisor.supervisor import Supervisor
    from server.telemetry.logs import configure_logs

    harden()
    configure_logs(settings.log_level, settings.effective_log_format, "supervisor")
    raise typer.Exit(Supervisor(settings).run())


def _refuse_secrets(flags: Mapping[str, Any]) -> None:
    for name, given in flags.items():
        texts = given if isinstance(given, list) else [given]
        if any(isinstance(text, str) and masked(text) != text for text in texts):
            raise fail(f"{name}: a password belongs in {PREFIX}{name.upper()}")


def _run_core(
    context: typer.Context,
    *,
    listen: Annotated[
        str, typer.Option(help="Where: an address of this machine, or 0.0.0.0 for all.")
    ] = "tcp://0.0.0.0:7700",
    keys: Annotated[
        Path | None, typer.Option(help="The folder that `parley core keys` has made.")
    ] = None,
    permit: Annotated[
        list[str] | None,
        typer.Option(
            help="Let servers do this to the core as well: lora, control, profile or "
            "collective_rpc; may be repeated."
        ),
    ] = None,
    **flags: Any,
) -> None:
    if context.invoked_subcommand is not None:
        return
    try:
        settings = load_settings(flags)
    except ConfigError as error:
        raise fail(str(error)) from None
    from server.engines.native.far import host
    from server.supervisor.core_host import CoreHost
    from server.supervisor.hardening import harden
    from server.telemetry.logs import configure_logs

    harden()
    configure_logs(settings.log_level, settings.effective_log_format, "supervisor")

    def prepare(wake: Callable[[], None]) -> Any:
        return host.manage(settings, listen, keys, permit or [], wake)

    is_json = settings.effective_log_format == "json"
    raise typer.Exit(CoreHost(prepare, is_json=is_json).run())


core_app.callback(invoke_without_command=True)(_takes_settings(_run_core, CORE_SETTINGS))


@core_app.command("keys")
def make_core_keys(folder: Path) -> None:
    """Make the keys of this machine, once; print the public one."""
    from server.engines.native.far.keys import KeysError, make_keys

    try:
        print(make_keys(folder))
    except KeysError as error:
        raise fail(str(error)) from None


@core_app.command("trust")
def trust_key(folder: Path, name: str, key: str) -> None:
    """Trust a server that may come, or the core that is to be joined."""
    from server.engines.native.far.keys import KeysError, trust

    try:
        trust(folder, name, key)
    except KeysError as error:
        raise fail(str(error)) from None


@app.command()
def login(data_dir: DataDir = None) -> None:
    """Print a one-time URL that logs a browser in."""
    from server.supervisor.supervisor import request_login_url
    from server.supervisor.workers import StartError

    try:
        print(request_login_url(*find_server(data_dir)))
    except (NoServer, StartError) as error:
        raise fail(str(error)) from None


app.command()(chat)
app.command("models")(show_models)
admin_command(app, "audit")(show_audit)
admin_command(app, "settings")(show_settings)


@app.command()
def version() -> None:
    """Print the version."""
    _print_version(True)


def main() -> None:
    _open_streams()
    if sys.argv[1:2] == ["serve"] and _log_format(sys.argv) == "json":
        from server.telemetry.logs import print_json

        print_json("supervisor")  # errors of wrong arguments, too
    app()


def _open_streams() -> None:
    """Whoever has started us may have closed them, as `>&-` does."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))


def _log_format(arguments: list[str]) -> str:
    """Read the log format before the arguments are validated."""
    chosen = os.environ.get(PREFIX + "LOG_FORMAT", "auto")
    for argument, following in itertools.pairwise([*arguments, ""]):
        name, _, value = argument.partition("=")
        if name == "--log-format":
            chosen = value or following
    if chosen == "auto":
        return "text" if sys.stderr.isatty() else "json"
    return chosen


if __name__ == "__main__":
    main()
