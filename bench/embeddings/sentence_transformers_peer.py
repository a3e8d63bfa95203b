"""sentence-transformers as a process: MODEL THREADS, in its environment, without Parley.

The first line that it reads is a JSON list of texts. To each line after it, it embeds them, all in
one batch, and answers with a line of JSON: the first embedding. It pools by the last
token, as sentence-transformers does with such a folder that says nothing, and normalizes.
"""

import json
import sys

import torch
from sentence_transformers import SentenceTransformer


def main() -> None:
    folder, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    model = SentenceTransformer(folder, device="cpu", model_kwargs={"dtype": "bfloat16"})
    texts = json.loads(sys.stdin.readline())
    for _ in sys.stdin:
        embeddings = model.encode(
            texts, batch_size=len(texts), normalize_embeddings=True, show_progress_bar=False
        )
        print(json.dumps({"first": embeddings[0].tolist()}), flush=True)


if __name__ == "__main__":
    main()
