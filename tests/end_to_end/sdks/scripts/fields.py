"""Run in the environment of OpenAI's client: which fields its types for requests have.

Arguments are types, as in `conversations.item_list_params:ItemListParams`. Printed is an object:
the fields of each. Of a union they are the `type`s of what it holds.
"""

import importlib
import json
import sys
from typing import get_args, get_type_hints


def literals(hint):
    """The texts that a field may have, in any place."""
    found = [part for part in get_args(hint) if isinstance(part, str)]
    return found + [text for part in get_args(hint) for text in literals(part)]


def main():
    found = {}
    for path in sys.argv[1:]:
        module, name = path.split(":")
        kind = getattr(importlib.import_module(f"openai.types.{module}"), name)
        if kinds := get_args(kind):
            found[path] = sorted(
                {t for each in kinds for t in literals(get_type_hints(each)["type"])}
            )
        else:
            found[path] = sorted(get_type_hints(kind))
    print(json.dumps(found))


main()
