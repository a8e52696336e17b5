"""Train a Hugging Face model with random weights on synthetic tokens, and time each step.

Started beside one of three files, which it takes as they are:

    accelerate launch --config_file accelerate.yaml train.py --accelerate ...
    torchrun --nproc-per-node 2 train.py --deepspeed ds_config.json ...
    torchrun --nproc-per-node 2 train.py --distributed distributed_config.json ...

    accelerate   FSDP2 and context parallelism of Accelerate's ParallelismConfig
    deepspeed    ZeRO 0 to 3, by deepspeed.initialize
    distributed  FSDP2 and tensor parallelism of transformers' DistributedConfig

The model is built from its config.json; each rank builds it whole in the host's memory first, but
under ZeRO-3. With --records DIR each rank appends one JSON line per step to DIR/rankN.jsonl: the
seconds of forward, backward and optimizer, and the peaks of memory (the caching allocator's on a
GPU, the process's resident set on a CPU). It needs torch, transformers and the framework named.
"""

import argparse
import json
import math
import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers
from torch import Tensor
from torch.distributed.elastic.multiprocessing.errors import record as reports_errors

LEARNING_RATE, MAX_NORM = 3e-4, 1.0
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def no_shards(buffers: list[Tensor]) -> AbstractContextManager[Any]:
    """Each rank computes whole sequences."""
    return nullcontext()


@dataclass
class Trainer:
    """What the loop needs of a framework.

    model     called with input_ids and position_ids
    replica   number of this rank's part of the batch, and of how many
    backward  of a loss that is already divided by the number of micro-batches
    update    clip, step and clear; the gradient norm
    shards    context manager in which a micro-batch's tensors are cut along the sequence
    """

    model: Any
    device: torch.device
    replica: tuple[int, int]
    backward: Callable[[Tensor], Any]
    update: Callable[[], float]
    shards: Callable[[list[Tensor]], AbstractContextManager[Any]] = field(default=no_shards)


@reports_errors
def main() -> None:
    """Train for --warmup and --steps steps."""
    options = parse()
    if not options.cpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    config = transformers.AutoConfig.from_pretrained(options.model)
    torch.manual_seed(0)
    if options.accelerate:
        trainer = by_accelerate(options, config)
    elif options.deepspeed:
        trainer = by_deepspeed(options, config)
    else:
        trainer = by_transformers(options, config)
    train(trainer, options, config.get_text_config().vocab_size)
    dist.barrier()
    dist.destroy_process_group()


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser()
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--accelerate", action="store_true", help="as `accelerate launch` says")
    which.add_argument("--deepspeed", type=Path, metavar="FILE")
    which.add_argument("--distributed", type=Path, metavar="FILE")
    parser.add_argument("--model", required=True, help="config.json, or a folder that has one")
    parser.add_argument("--seq-len", type=int, required=True)
    parser.add_argument("--micro-batch-size", type=int, required=True)
    parser.add_argument("--micro-batches", type=int, required=True)
    parser.add_argument("--dtype", choices=tuple(DTYPES), required=True)
    parser.add_argument("--recompute", action="store_true", help="all layers recompute")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=0)
    parser.add_argument("--records", type=Path)
    parser.add_argument("--cpu", action="store_true", help="processes on CPUs, with gloo")
    return parser.parse_args()


def by_accelerate(options: argparse.Namespace, config: Any) -> Trainer:
    """FSDP2 and ParallelismConfig, as the YAML says; it checkpoints activations itself."""
    from accelerate import Accelerator, PartialState
    from accelerate.utils import DistributedType

    if options.cpu:
        # Accelerate 1.15 shards over processes on devices (MULTI_GPU and the like) and not on CPUs
        # (MULTI_CPU), where it refuses a ParallelismConfig. What it calls is the same on both.
        PartialState(cpu=True)
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    accelerator = Accelerator()
    degrees = accelerator.parallelism_config
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    model, optimizer = accelerator.prepare(model, optimizer)
    copies = degrees.tp_size * degrees.cp_size

    def update() -> float:
        norm = accelerator.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()
        return whole(norm)

    def shards(buffers: list[Tensor]) -> AbstractContextManager[Any]:
        along: AbstractContextManager[Any] = accelerator.maybe_context_parallel(
            buffers=buffers, buffer_seq_dims=[1] * len(buffers), no_restore_buffers=set(buffers)
        )
        return along

    return Trainer(
        model=model, device=accelerator.device,
        replica=(dist.get_rank() // copies, dist.get_world_size() // copies),
        backward=accelerator.backward, update=update,
        shards=shards if degrees.cp_size > 1 else no_shards,
    )  # fmt: skip


def by_transformers(options: argparse.Namespace, config: Any) -> Trainer:
    """transformers' own DistributedConfig, as the JSON says."""
    from transformers.distributed import DistributedConfig

    dist.init_process_group("gloo" if options.cpu else "nccl")
    said = DistributedConfig.from_dict(json.loads(options.distributed.read_text(encoding="utf-8")))
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model = type(model).from_pretrained(
        None, config=config, state_dict=model.state_dict(), dtype=torch.float32,
        distributed_config=said,
    )  # fmt: skip
    if options.recompute:
        model.gradient_checkpointing_enable()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, foreach=False)

    def update() -> float:
        norm = clip(list(model.parameters()))
        optimizer.step()
        optimizer.zero_grad()
        return norm

    return Trainer(
        model=model, device=torch.device("cpu" if options.cpu else "cuda"),
        replica=(dist.get_rank() // said.tp_size, said.dp_size),
        backward=torch.autograd.backward, update=update,
    )  # fmt: skip


def by_deepspeed(options: argparse.Namespace, config: Any) -> Trainer:
    """deepspeed.initialize with the JSON as it is."""
    said = json.loads(options.deepspeed.read_text(encoding="utf-8"))
    if options.cpu:
        os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed
    from transformers.integrations import HfDeepSpeedConfig

    if options.cpu:
        # Its kernels for CPUs (all-reduce in shared memory, Adam) take minutes to compile.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        said["optimizer"]["params"]["torch_adam"] = True
    deepspeed.init_distributed(dist_backend="gloo" if options.cpu else "nccl")
    told = HfDeepSpeedConfig(said)  # while it lives transformers builds a model of ZeRO-3 in shards
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=DTYPES[options.dtype])
    del told
    if options.recompute:
        model.gradient_checkpointing_enable()
    engine, _, _, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=said
    )
    tensor = said.get("tensor_parallel", {}).get("autotp_size", 1)

    def update() -> float:
        own = None if engine.zero_optimization_stage() else local_norm(list(model.parameters()))
        engine.step()
        norm = engine.get_global_grad_norm()
        return whole(own if norm is None else norm)

    def backward(loss: Tensor) -> None:
        engine.backward(loss * options.micro_batches)  # it divides by them itself
        if not engine.is_gradient_accumulation_boundary():
            engine.step()

    return Trainer(
        model=engine, device=torch.device(engine.device),
        replica=(dist.get_rank() // tensor, dist.get_world_size() // tensor),
        backward=backward, update=update,
    )  # fmt: skip


def clip(parameters: list[Tensor]) -> float:
    """Scale the gradients to a norm of MAX_NORM at most; their norm. Tensor and data parallel
    gradients are on different meshes, which one call of torch's function does not take."""
    meshes: dict[Any, list[Tensor]] = {}
    for each in parameters:
        if each.grad is not None:
            meshes.setdefault(getattr(each.grad, "device_mesh", None), []).append(each)
    norm = torch.stack([full(local_norm(group)) for group in meshes.values()]).norm()
    for group in meshes.values():
        torch.nn.utils.clip_grads_with_norm_(group, MAX_NORM, norm, foreach=False)
    return whole(norm)


def local_norm(parameters: list[Tensor]) -> Tensor:
    """The norm of these gradients, as one DTensor where they are."""
    gradients = [each.grad for each in parameters if each.grad is not None]
    return torch.nn.utils.get_total_norm(gradients, foreach=False)


def full(norm: Any) -> Any:
    """A norm over all shards."""
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm


def whole(norm: Any) -> float:
    """A gradient norm as a number; nan where the framework has none."""
    return math.nan if norm is None else float(full(norm))


def train(trainer: Trainer, options: argparse.Namespace, vocab: int) -> None:
    """The steps; each rank writes its records."""
    clock = Clock(trainer.device)
    for step in range(options.warmup + options.steps):
        batches = list(synthetic(trainer, options, vocab, step))
        dist.barrier()
        if trainer.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        began_s, processor_s = clock.now(), time.process_time()
        losses = [micro_batch(trainer, clock, batch, len(batches)) for batch in batches]
        with clock.phase("optimizer"):
            norm = trainer.update()
        took_s, busy_s = clock.now() - began_s, time.process_time() - processor_s
        loss = mean(torch.stack(losses).sum())
        keep(options, {
            "step": step, "warmup": step < options.warmup, "loss": loss, "grad_norm": norm,
            "step_time_s": took_s, **clock.seconds(), "processor_s": busy_s,
            **peaks(trainer.device),
        })  # fmt: skip


def keep(options: argparse.Namespace, step: dict[str, Any]) -> None:
    """Print the step, and append it to this rank's records; what is not finite is null there."""
    if dist.get_rank() == 0:
        print(
            f"step {step['step']}  loss {step['loss']:.4f}  {step['step_time_s']:.4g} s", flush=True
        )
    if options.records:
        plain = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in step.items()
        }
        path = options.records / f"rank{dist.get_rank()}.jsonl"
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(plain, allow_nan=False) + "\n")


def micro_batch(trainer: Trainer, clock: "Clock", batch: list[Tensor], count: int) -> Tensor:
    """Forward and backward of one of `count` micro-batches; its share of the step's loss."""
    with trainer.shards(batch):
        ids, labels, positions = batch
        with clock.phase("forward"):
            logits = trainer.model(input_ids=ids, position_ids=positions, use_cache=False).logits
            loss: Tensor = torch.nn.functional.cross_entropy(
                logits.float().flatten(0, 1), labels.flatten()
            )
            loss = loss / count
        with clock.phase("backward"):
            trainer.backward(loss)
    return loss.detach()


def synthetic(
    trainer: Trainer, options: argparse.Namespace, vocab: int, step: int
) -> Iterator[list[Tensor]]:
    """Token ids, the tokens after them, and positions of this rank's micro-batches."""
    index, replicas = trainer.replica
    size = options.micro_batch_size
    for at in range(options.micro_batches):
        number = (step * options.micro_batches + at) * replicas + index
        generator = torch.Generator().manual_seed(number)
        tokens = torch.randint(0, vocab, (size, options.seq_len + 1), generator=generator)
        positions = torch.arange(options.seq_len).repeat(size, 1)
        made = (tokens[:, :-1], tokens[:, 1:], positions)
        yield [each.contiguous().to(trainer.device) for each in made]


def mean(loss: Tensor) -> float:
    """The mean over all ranks of their losses."""
    total = loss.clone().float()
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()


class Clock:
    """Seconds that the device spends in each phase of a step; it waits for a GPU once a step."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._phases: list[tuple[str, Any, Any]] = []

    def now(self) -> float:
        """Seconds, when the device has done all that it was given."""
        if self._cuda:
            torch.cuda.synchronize()
        return time.perf_counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what happens inside as this part of the step."""
        began = self._mark()
        yield
        self._phases.append((name, began, self._mark()))

    def _mark(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def seconds(self) -> dict[str, float]:
        """What each phase took since the last call; there is no pipeline to wait for, and gradient
        reductions that nothing hides are inside the backward pass or the optimizer."""
        found = {"forward_s": 0.0, "backward_s": 0.0, "optimizer_s": 0.0}
        for name, began, ended in self._phases:
            took_s = began.elapsed_time(ended) / 1e3 if self._cuda else ended - began
            found[f"{name}_s"] += took_s
        self._phases = []
        return {**found, "waiting_s": 0.0, "exposed_comm_s": 0.0}


def peaks(device: torch.device) -> dict[str, int]:
    """The step's peaks of the caching allocator; on a CPU the process's resident peak so far."""
    if device.type == "cuda":
        allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    else:
        allocated = reserved = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"allocated_peak_bytes": allocated, "reserved_peak_bytes": reserved}


if __name__ == "__main__":
    main()
