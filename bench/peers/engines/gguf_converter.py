"""Run llama.cpp's converter: SOURCE PACKAGES CHECKPOINT OUTPUT TYPE.

It knows tokenizers by a hash of their ids for one text, and refuses others. Those made by
`models.py` split words as Qwen2's do; this program says so where the converter does not know.
"""

import importlib
import runpy
import sys
from typing import Any


def main() -> None:
    source, packages, checkpoint, output, kind = sys.argv[1:]
    sys.path[:0] = [source, f"{source}/gguf-py"]
    sys.path.append(packages)  # for what is not installed beside this interpreter
    base = importlib.import_module("conversion.base")
    for value in vars(base).values():
        if isinstance(value, type) and "get_vocab_base_pre" in vars(value):
            accept_unknown(value)
    sys.argv = [sys.argv[0], checkpoint, "--outfile", output, "--outtype", kind]
    runpy.run_path(f"{source}/convert_hf_to_gguf.py", run_name="__main__")


def accept_unknown(kind: Any) -> None:
    known = kind.get_vocab_base_pre

    def get_vocab_base_pre(self: Any, tokenizer: Any) -> str:
        try:
            return str(known(self, tokenizer))
        except NotImplementedError:  # what that package raises for a tokenizer it does not know
            return "qwen2"

    kind.get_vocab_base_pre = get_vocab_base_pre


if __name__ == "__main__":
    main()
