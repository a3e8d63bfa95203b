"""`EngineConfig`: every setting of a core, decided in the client half and sent to it on stdin."""

import msgspec


class FarDoor(msgspec.Struct, frozen=True, kw_only=True):
    """How a core is reached from other machines, besides its own socket."""

    address: str  # tcp://ADDRESS:PORT
    keys: str  # the folder, as `engine/far/keys.py` has it
    permits: list[str] = []  # of `engine/far/calls.py`


class CoreIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What is alike in two cores that go on with each other's answers, wherever they are."""

    version: str  # of Parley
    model: str  # a fingerprint of all files of the model
    texts: str  # the same of those that workers read as well: all but the weights


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Built by `AsyncEngineArgs.create_engine_config()`; `0` and `None` mean "the core decides"."""

    model: str  # a local folder: config.json, safetensors, tokenizer.json
    address: str  # ipc:// path of the ROUTER socket, in a 0700 directory
    served_model_name: str
    dtype: str = "auto"  # auto, float32, bfloat16, float16
    device: str = "auto"  # auto, cpu, cuda
    load_format: str = "auto"  # auto, dummy
    seed: int = 0
    max_model_len: int | None = None  # clamped to positions and to the cache
    block_size: int = 16
    num_blocks: int | None = None
    kv_cache_memory_bytes: int | None = None
    gpu_memory_utilization: float = 0.9  # of a GPU: weights, KV cache and all else together
    enable_prefix_caching: bool = True
    max_num_batched_tokens: int = 0  # token budget of one step
    max_step_seconds: float = 0.03  # prompts are read in chunks of about this, 0 = any length
    max_num_seqs: int = 64
    long_prefill_token_threshold: int = 0  # cap of one prompt's share of a step, 0 = none
    scheduling_policy: str = "fcfs"  # fcfs, priority
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    max_queue_seconds: float | None = None
    max_request_seconds: float | None = None  # from the first step of a request to its end
    tokenizer: str = ""  # the folder that has it, for grammars; empty: the model's
    attn_backend: str = "auto"  # auto, cpu or cuda (csrc), flash_attn, varlen, torch (reference)
    model_impl: str = "auto"  # auto, transformers, fused
    runner: str = "auto"  # generate: refuse a model that generates nothing; auto, pooling
    quantization: str | None = None  # int8, int4: weights in so many bits
    kv_cache_dtype: str = "auto"  # auto: as the model; int8: fused only
    logprobs_mode: str = "raw_logprobs"  # raw or processed, logprobs or logits
    logits_processors: list[str] = []  # module:Class, which the core imports
    batch_invariant: bool = True  # pad the rows of a step so that answers are alike in any batch
    pace: float = 0.0  # tokens/s per answer, 0 = as fast as possible
    watchdog_seconds: float = 30.0
    sleep_after_seconds: float | None = None  # without a request the engine sleeps, at level 1
    async_scheduling: bool | None = None  # start steps before the last one has ended; None: on GPUs
    enforce_eager: bool = False  # on a GPU: start each kernel by itself, record no graphs
    enable_lora: bool = False  # adapters may be used
    max_loras: int = 1  # different ones at a time, of running requests
    max_cpu_loras: int | None = None  # in memory; None: as many as may be used
    max_lora_rank: int = 16
    threads: int = 0  # of torch; 0 = torch's own choice
    num_sharing: int = 1  # cores of ours on this machine: each has its share of torch's choice
    far: FarDoor | None = None
    identity: CoreIdentity | None = None  # for clients on other machines
    log_level: str = "INFO"
    log_format: str = "text"  # text, json
