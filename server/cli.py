"""The `parley` command."""

import inspect
import io
import itertools
import json
import os
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, TextIO, get_origin
from urllib.parse import urlsplit

import typer

from server import __version__
from server.config.settings import ENVIRONMENT_ONLY, PREFIX, ConfigError, Settings, load_settings
from server.terminal.admin_client import AdminClient, AdminError, quoted

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

users_app = typer.Typer(name="users", help="Create, change and remove users.", no_args_is_help=True)
sessions_app = typer.Typer(name="sessions", help="Watch sessions live; stop and evict.")
adapters_app = typer.Typer(
    name="adapters", help="List, load and unload LoRA adapters.", no_args_is_help=True
)
workers_app = typer.Typer(name="workers", help="List and drain workers.", no_args_is_help=True)
engines_app = typer.Typer(
    name="engines", help="List, drain, add and remove engines.", no_args_is_help=True
)
core_app = typer.Typer(
    name="core", help="Run a core alone, for servers on other machines; make its keys."
)
app.add_typer(core_app)
app.add_typer(users_app)
app.add_typer(sessions_app)
app.add_typer(workers_app)
app.add_typer(adapters_app)
app.add_typer(engines_app)

DataDir = Annotated[
    Path | None,
    typer.Option(help="Data directory of the running server.", envvar=PREFIX + "DATA_DIR"),
]


def _fail(message: str) -> typer.Exit:
    print(f"parley: {message}", file=sys.stderr)
    return typer.Exit(2)


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
    if flags["redis_url"] is not None and urlsplit(flags["redis_url"]).password is not None:
        raise _fail(f"redis_url: a password belongs in {PREFIX}REDIS_URL")
    try:
        settings = load_settings(flags)
    except ConfigError as error:
        raise _fail(str(error)) from None
    from server.supervisor.hardening import harden
    from server.supervisor.supervisor import Supervisor
    from server.telemetry.logs import configure_logs

    harden()
    configure_logs(settings.log_level, settings.effective_log_format, "supervisor")
    raise typer.Exit(Supervisor(settings).run())


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
        raise _fail(str(error)) from None
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
    """Make the keys of this machine in a folder, once; print the public one."""
    from server.engines.native.far.keys import KeysError, make_keys

    try:
        print(make_keys(folder))
    except KeysError as error:
        raise _fail(str(error)) from None


@core_app.command("trust")
def trust_key(folder: Path, name: str, key: str) -> None:
    """Trust the other side: a server that may come, or the core that is to be joined."""
    from server.engines.native.far.keys import KeysError, trust

    try:
        trust(folder, name, key)
    except KeysError as error:
        raise _fail(str(error)) from None


@app.command()
def login(data_dir: DataDir = None) -> None:
    """Print a one-time URL that logs a browser in."""
    from server.supervisor.supervisor import request_login_url
    from server.supervisor.workers import StartError

    url, token = _running_server(data_dir)
    try:
        print(request_login_url(url, token))
    except StartError as error:
        raise _fail(str(error)) from None


@app.command()
def chat(
    question: Annotated[
        str | None, typer.Argument(help="Ask this first; with --once, this alone.")
    ] = None,
    data_dir: DataDir = None,
    session: Annotated[str | None, typer.Option(help="Go on with this session.")] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Print the answer to one question, and end.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="The answer as one JSON object; like --once.")
    ] = False,
) -> None:
    """Chat in the terminal, or ask one question in a pipe.

    Without a terminal, or with --once, the question is read from standard input, and only the
    answer is printed. In the chat, /help lists commands and keys.
    """
    address = _address(data_dir)
    if once or as_json or not _in_terminal():
        from server.terminal.chat.once import run_once

        _be_lenient(sys.stdin, sys.stdout, sys.stderr)
        question = (sys.stdin.read() if question is None else question).strip()
        if not question:
            raise _fail("there is no question: write it behind --once, or into standard input")
        raise typer.Exit(run_once(address, session, question, as_json=as_json))
    from server.terminal.chat.interactive import run_interactive

    raise typer.Exit(run_interactive(address, session, question))


@users_app.command("list")
def list_users(
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
) -> None:
    """List all users, the newest first."""
    from server.terminal import users as terminal_users

    with _admin(data_dir) as client:
        terminal_users.list_users(client, as_json)


@users_app.command("add")
def add_user(
    name: str,
    data_dir: DataDir = None,
    admin: Annotated[bool, typer.Option("--admin", help="Give the role admin.")] = False,
    scope: Annotated[
        list[str] | None, typer.Option(help="admin or admin:transcripts; may be repeated.")
    ] = None,
    days: Annotated[int | None, typer.Option(help="Days until the token expires.", min=1)] = None,
) -> None:
    """Create a user and print their token, once."""
    from server.terminal import users as terminal_users

    roles = ["user", "admin"] if admin else ["user"]
    with _admin(data_dir) as client:
        terminal_users.add_user(client, name, roles, scope or (["admin"] if admin else []), days)


@users_app.command("revoke")
def revoke_tokens(
    user: str,
    data_dir: DataDir = None,
    token: Annotated[str | None, typer.Option(help="This one alone, by its id.")] = None,
) -> None:
    """Revoke a user's tokens (an id or a name); log their browsers out."""
    from server.terminal import users as terminal_users

    with _admin(data_dir) as client:
        if token is None:
            terminal_users.revoke_tokens(client, user)
        else:
            terminal_users.revoke_token(client, user, token)


@users_app.command("show")
def show_user(
    user: str,
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
) -> None:
    """Show a user (an id or a name) with the ids of their tokens."""
    from server.terminal import users as terminal_users

    with _admin(data_dir) as client:
        terminal_users.show_user(client, user, as_json)


@users_app.command("disable")
def disable_user(user: str, data_dir: DataDir = None) -> None:
    """Keep a user out (an id or a name), and end their connections."""
    from server.terminal import users as terminal_users

    with _admin(data_dir) as client:
        terminal_users.set_disabled(client, user, True)


@users_app.command("enable")
def enable_user(user: str, data_dir: DataDir = None) -> None:
    """Let a user in again who was disabled."""
    from server.terminal import users as terminal_users

    with _admin(data_dir) as client:
        terminal_users.set_disabled(client, user, False)


@users_app.command("roles")
def set_roles(
    user: str,
    roles: Annotated[list[str], typer.Argument(help="user, admin, or both.")],
    data_dir: DataDir = None,
) -> None:
    """Give a user (an id or a name) these roles, and no others."""
    from server.terminal import users as terminal_users

    with _admin(data_dir) as client:
        terminal_users.set_roles(client, user, roles)


@users_app.command("rename")
def rename_user(user: str, name: str, data_dir: DataDir = None) -> None:
    """Give a user (an id or a name) another name."""
    from server.terminal import users as terminal_users

    with _admin(data_dir) as client:
        terminal_users.rename_user(client, user, name)


@users_app.command("token")
def add_token(
    user: str,
    data_dir: DataDir = None,
    scope: Annotated[
        list[str] | None, typer.Option(help="admin or admin:transcripts; may be repeated.")
    ] = None,
    days: Annotated[int | None, typer.Option(help="Days until the token expires.", min=1)] = None,
) -> None:
    """Print another token for a user (an id or a name), once."""
    from server.terminal import users as terminal_users

    with _admin(data_dir) as client:
        terminal_users.add_token(client, user, scope or [], days)


@users_app.command("quotas")
def show_quotas(
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
) -> None:
    """List what users keep and have used today, beside what they may."""
    from server.terminal import users as terminal_users

    with _admin(data_dir) as client:
        terminal_users.show_quotas(client, as_json)


@users_app.command("remove")
def remove_user(user: str, data_dir: DataDir = None) -> None:
    """Remove a user (an id or a name) with all their sessions."""
    from server.terminal import users as terminal_users

    with _admin(data_dir) as client:
        terminal_users.remove_user(client, user)


@users_app.command("invite")
def invite_user(user: str, data_dir: DataDir = None) -> None:
    """Print a one-time URL that logs in as a user (an id or a name)."""
    from server.terminal import users as terminal_users

    with _admin(data_dir) as client:
        terminal_users.invite_user(client, user)


@sessions_app.callback(invoke_without_command=True)
def sessions(
    context: typer.Context,
    data_dir: DataDir = None,
    everything: Annotated[bool, typer.Option("--all", help="Include idle sessions.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Print the list and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
    find: Annotated[
        str, typer.Option(help="Of a user (a name or an id), or one session or response by its id.")
    ] = "",
) -> None:
    """Watch sessions and the server's figures live, and stop and evict by keys."""
    if context.invoked_subcommand is not None:
        return
    with _admin(data_dir) as client:
        if once or as_json or not _in_terminal():
            from server.terminal.sessions.table import list_once
            from server.terminal.text import output_console

            console = output_console()
            list_once(client, console, everything=everything, as_json=as_json, wanted=find)
        else:
            from server.terminal.sessions.live import run_live

            run_live(client, everything=everything, wanted=find)


@sessions_app.command("stop")
def stop_session(
    session: str,
    data_dir: DataDir = None,
    reason: Annotated[str, typer.Option(help="For the audit log.")] = "",
) -> None:
    """Stop a session's answers."""
    with _admin(data_dir) as client:
        stopped = client.post(f"/sessions/{quoted(session)}/stop", reason=reason)["responses"]
    for response in stopped:
        print(f"{response['id']} {response['status']}")


@sessions_app.command("evict")
def evict_session(
    session: str,
    reason: Annotated[str, typer.Option(help="Shown to the viewers.")],
    data_dir: DataDir = None,
    lock: Annotated[bool, typer.Option("--lock", help="No new answers until unlocked.")] = False,
) -> None:
    """Stop a session's answers and close its viewers' connections."""
    with _admin(data_dir) as client:
        client.post(f"/sessions/{quoted(session)}/evict", reason=reason, lock=lock)


@sessions_app.command("unlock")
def unlock_session(session: str, data_dir: DataDir = None) -> None:
    """Let a locked session take answers again."""
    with _admin(data_dir) as client:
        client.post(f"/sessions/{quoted(session)}/unlock")


@workers_app.command("list")
def list_workers(
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
) -> None:
    """List the workers, their engines, and those that have fallen silent."""
    from server.terminal import workers as terminal_workers

    with _admin(data_dir) as client:
        terminal_workers.list_workers(client, as_json)


@workers_app.command("drain")
def drain_worker(
    worker: str,
    data_dir: DataDir = None,
    reason: Annotated[str, typer.Option(help="For the audit log.")] = "",
) -> None:
    """Let a worker finish or hand over its answers, and restart."""
    with _admin(data_dir) as client:
        client.post(f"/replicas/{quoted(worker)}/drain", reason=reason)


@adapters_app.command("list")
def list_adapters(
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
) -> None:
    """List the adapters in PARLEY_LORA_DIR, and those that are loaded."""
    from server.terminal import adapters as terminal_adapters

    with _admin(data_dir) as client:
        terminal_adapters.list_adapters(client, as_json)


@adapters_app.command("load")
def load_adapter(name: str, data_dir: DataDir = None) -> None:
    """Load an adapter: sessions can then choose it as their model."""
    with _admin(data_dir) as client:
        client.post("/adapters", name=name)


@adapters_app.command("unload")
def unload_adapter(name: str, data_dir: DataDir = None) -> None:
    """Offer an adapter no more; answers that have it go on."""
    with _admin(data_dir) as client:
        client.delete(f"/adapters/{quoted(name)}")


@engines_app.command("list")
def list_engines(
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
) -> None:
    """List the engines of this host, where a model has several."""
    from server.terminal import engines as terminal_engines

    with _admin(data_dir) as client:
        terminal_engines.list_engines(client, as_json)


@engines_app.command("drain")
def drain_engine(
    name: str,
    data_dir: DataDir = None,
    move: Annotated[bool, typer.Option("--move", help="Its answers go on at others.")] = False,
) -> None:
    """Let an engine take no new answers."""
    with _admin(data_dir) as client:
        client.post(f"/engines/{quoted(name)}/drain", move=move)


@engines_app.command("resume")
def resume_engine(name: str, data_dir: DataDir = None) -> None:
    """Let an engine take new answers again."""
    with _admin(data_dir) as client:
        client.post(f"/engines/{quoted(name)}/resume")


@engines_app.command("add")
def add_engine(engine: str, data_dir: DataDir = None) -> None:
    """Add an engine, written as PARLEY_ENGINES has them."""
    with _admin(data_dir) as client:
        client.post("/engines", engine=engine)


@engines_app.command("remove")
def remove_engine(name: str, data_dir: DataDir = None) -> None:
    """Let an engine go; its answers go on at others."""
    with _admin(data_dir) as client:
        client.delete(f"/engines/{quoted(name)}")


@app.command("models")
def list_models(
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
) -> None:
    """List the models on this machine, by names that `serve` takes."""
    from server.terminal.models import show_models

    show_models(as_json)


@app.command()
def version() -> None:
    """Print the version."""
    _print_version(True)


def _be_lenient(*streams: TextIO) -> None:
    """What is no text, or has no place in the terminal's encoding, becomes a question mark."""
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _in_terminal() -> bool:
    """Whether somebody sits before it, at a terminal that can be drawn on."""
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    return is_terminal and os.environ.get("TERM") != "dumb"


@contextmanager
def _admin(data_dir: Path | None) -> Iterator[AdminClient]:
    """Open the running server's admin API; print its refusals as one line."""
    url, token = _running_server(data_dir, "admin-token")
    try:
        yield AdminClient(url, token)
    except AdminError as error:
        raise _fail(str(error)) from None


class NoServer(Exception):
    """Why no server can be asked, in one line."""


def _running_server(data_dir: Path | None, secret: str = "token") -> tuple[str, str]:
    """Return URL and token, or admin-token, of the server that runs on this data directory."""
    try:
        return _find_server(data_dir, secret)
    except NoServer as error:
        raise _fail(str(error)) from None


def _address(data_dir: Path | None) -> Callable[[], tuple[str, str]]:
    """What tells the same of now: a server that has restarted may listen at another port."""
    known = _running_server(data_dir)

    def address() -> tuple[str, str]:
        nonlocal known
        with suppress(NoServer):
            known = _find_server(data_dir)
        return known

    return address


def _find_server(data_dir: Path | None, secret: str = "token") -> tuple[str, str]:
    """Raises `NoServer`."""
    try:
        settings = load_settings({} if data_dir is None else {"data_dir": data_dir})
    except ConfigError as error:
        raise NoServer(str(error)) from None
    folder = settings.data_dir
    try:
        url: str = json.loads((folder / "server.json").read_text())["url"]
    except (OSError, ValueError, KeyError):
        raise NoServer(f"no server is running on {folder}; start one with `parley serve`") from None
    name = secret.replace("-", "_")
    try:
        return url, getattr(settings, name) or (folder / secret).read_text().strip()
    except OSError:
        setting = PREFIX + name.upper()
        raise NoServer(f"set {setting} as for the server: {folder} holds no {secret}") from None


def main() -> None:
    if sys.argv[1:2] == ["serve"] and _log_format(sys.argv) == "json":
        from server.telemetry.logs import print_json

        print_json("supervisor")  # errors of wrong arguments, too
    app()


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
