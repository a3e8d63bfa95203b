"""`parley adapters`: which LoRA adapters there are and which are loaded."""

import typer

from server.terminal.admin_client import AdminClient, quoted
from server.terminal.commands import Result, admin_command
from server.terminal.tables import Cell, Table

HASH_DIGITS = 12

app = typer.Typer(
    name="adapters", help="List, load and unload LoRA adapters.", no_args_is_help=True
)


@admin_command(app, "list")
def list_adapters(client: AdminClient) -> Result:
    """List the adapters in PARLEY_LORA_DIR, and those that are loaded."""
    adapters = client.get("/adapters")["adapters"]
    table = Table("name", "", "content", "")
    for adapter in adapters:
        state = Cell("loaded", "green") if adapter["loaded"] else Cell("not loaded", "dim")
        content = adapter.get("content_hash", "")[:HASH_DIGITS]
        table.add(adapter["name"], state, content, Cell(adapter.get("problem", ""), "red"))
    return Result(adapters, table)


@admin_command(app, "load")
def load_adapter(client: AdminClient, name: str) -> Result:
    """Load an adapter: sessions can then choose it as their model."""
    return Result(client.post("/adapters", name=name), f"{name} is loaded")


@admin_command(app, "unload")
def unload_adapter(client: AdminClient, name: str) -> Result:
    """Offer an adapter no more; answers that have it go on."""
    return Result(client.delete(f"/adapters/{quoted(name)}"), f"{name} is offered no more")
