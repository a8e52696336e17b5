"""One rank's part of a training job: built from the layout alone, then run step by step."""

import hashlib
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from meshplan.costmodels.layout import Layout, check_layout
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.training import Training
from meshplan.executor.engine.layers.embedding_head import Embed, Head
from meshplan.executor.engine.layers.multi_token import MultiToken
from meshplan.executor.engine.parts.coordinates import Coordinates
from meshplan.executor.engine.parts.groups import make_groups
from meshplan.executor.engine.parts.rank_context import Local
from meshplan.executor.engine.parts.weights import Source, Unit, Weight
from meshplan.executor.engine.step.data import Sequences
from meshplan.executor.engine.step.legality import check_engine_layout
from meshplan.executor.engine.step.optimizer import Update
from meshplan.executor.engine.step.pipeline import Batch, Pipeline
from meshplan.executor.engine.step.schedule import actions, rank_of, stages_of
from meshplan.executor.engine.step.stage import Ends, VirtualStage
from meshplan.executor.engine.watch.clock import Clock, Observer
from meshplan.executor.engine.watch.heap import Heap
from meshplan.executor.engine.watch.record import StepRecord

INIT_STD = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to train and how."""

    model: Model
    layout: Layout
    training: Training
    seed: int = 0
    learning_rate: float = 3e-4


class Engine:
    """The parts of the model that this rank holds, and their schedule. Needs a process group.

    balanced  route every expert the same number of tokens, as a dry run must
    observer  is told of the phases of each step; by default they are timed
    said      told the name of each phase when it begins

    Raises `InvalidLayout` for a layout that the engine cannot run.
    """

    def __init__(
        self,
        job: Job,
        device: torch.device,
        *,
        balanced: bool = False,
        observer: Observer | None = None,
        said: Callable[[str], None] | None = None,
    ) -> None:
        check_layout(job.layout, job.model, job.training)
        check_engine_layout(job.layout, job.model, job.training)
        self.job, self.device = job, device
        self.clock = Clock(device, said)
        self.heap = Heap() if device.type == "cpu" else None
        self.observer: Observer = observer or self.clock
        at = Coordinates(job.layout, dist.get_rank())
        self.local = Local(
            model=job.model,
            layout=job.layout,
            training=job.training,
            groups=make_groups(at, _shares_embedding(job)),
            device=device,
            balanced=balanced,
        )
        self.num_micro_batches = job.layout.num_micro_batches(job.training)
        self.tables: dict[str, Unit] = {}
        parts = [self._part(index) for index in stages_of(job.layout, at.pp_rank)]
        self.units = list({id(u): u for part in parts for u in part.units}.values())
        self.uses = {
            id(unit): self.num_micro_batches * sum(part.units.count(unit) for part in parts)
            for unit in self.units
        }
        orders = actions(job.layout, self.num_micro_batches)
        self.pipeline = Pipeline(self.local, parts, orders, self.observer)
        shared = [self.tables["embedding"]] if self.local.groups.ties is not None else []
        self.update = Update(self.local, self.units, shared, job.learning_rate)

    def _part(self, index: int) -> VirtualStage:
        """One virtual stage; the first and the last hold the model's ends."""
        model, local = self.job.model, self.local
        embed, head = None, None
        further: tuple[MultiToken, ...] = ()
        if index == 0:
            embed = Embed(local, self._table("embedding"))
        if index == len(self.job.layout.stages) - 1:
            table = self._table("embedding" if model.tied else "head")
            head = Head(local, table)
            further = tuple(
                MultiToken(local, number, self._table("embedding"), table)
                for number in range(model.mtp_layers)
            )
        return VirtualStage(local, index, Ends(embed, head, further))

    def _table(self, name: str) -> Unit:
        """The unit of a vocabulary table; tied ends on one rank share it."""
        if name not in self.tables:
            model = self.job.model
            weight = self.local.matrix(name, model.vocab, model.hidden, 0)
            self.tables[name] = self.local.unit(name, [weight])
        return self.tables[name]

    def init_weights(self, given: Mapping[str, Tensor] | None = None) -> None:
        """Normal matrices, constant vectors: each from its own name, whatever the layout; or the
        whole ones of the model that are `given` by name.
        """
        for unit in self.units:
            for weight in unit.weights:
                self._init(unit, weight, given)
            unit.refresh()

    def _init(self, unit: Unit, weight: Weight, given: Mapping[str, Tensor] | None) -> None:
        """Fill what this rank's master shard holds of `weight`."""
        size = len(unit.master)
        for number, source in enumerate(weight.sources):
            length = int(torch.Size(source.shape).numel())
            start = weight.offset + number * length - unit.index * size
            first, stop = max(0, start), min(size, start + length)
            if first >= stop:
                continue
            if given is None and weight.fill is not None:
                unit.master[first:stop] = weight.fill
            else:
                whole = self._normal(source) if given is None else given[source.name]
                piece = whole.narrow(source.dim, source.start, source.shape[source.dim]).flatten()
                unit.master[first:stop] = piece[first - start : stop - start]

    def _normal(self, source: Source) -> Tensor:
        digest = hashlib.sha256(f"{self.job.seed}:{source.name}".encode()).digest()
        generator = torch.Generator(self.device).manual_seed(int.from_bytes(digest[:7], "big"))
        whole = torch.empty(source.full_shape, dtype=torch.float32, device=self.device)
        return whole.normal_(0, INIT_STD, generator=generator)

    def step(self, step: int, sequences: Sequences, warmup: bool = False) -> StepRecord:
        """One optimizer step on the global batch of `step`."""
        self.clock.said("data")
        batches = self.batches(step, sequences)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        began, used_s = time.perf_counter(), time.process_time()
        with self.heap.watched() if self.heap and warmup else nullcontext():
            norm, loss = self.run(batches)
        figures = torch.stack((norm, loss)).tolist()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        seconds = self.clock.take()
        allocated, reserved = self._peaks()
        return StepRecord(
            step=step,
            warmup=warmup,
            loss=figures[1],
            grad_norm=figures[0],
            step_time_s=time.perf_counter() - began,
            forward_s=seconds["forward"],
            backward_s=seconds["backward"],
            optimizer_s=seconds["optimizer"],
            waiting_s=seconds["wait"],
            exposed_comm_s=seconds["reduce"],
            processor_s=time.process_time() - used_s,
            allocated_peak_bytes=allocated,
            reserved_peak_bytes=reserved,
        )

    def run(self, batches: Sequence[Batch]) -> tuple[Tensor, Tensor]:
        """Forward, backward and optimizer over micro-batches; gradient norm and loss, both
        global.
        """
        for unit in self.units:
            unit.start_step(self.uses[id(unit)])
        loss = self.pipeline.run(batches.__getitem__)
        with self.observer.phase("reduce"):
            self.update.reduce()
        with self.observer.phase("optimizer"):
            norm, loss = self.update.norm_and_loss(loss)
            self.update.apply(norm)
        return norm, loss

    def batches(self, step: int, sequences: Sequences) -> list[Batch]:
        """This replica's micro-batches: sequences are dealt to replicas in order, then cut by
        cp.
        """
        layout, at = self.job.layout, self.local.groups.at
        positions = self.local.positions
        size = layout.micro_batch_size
        batches = []
        for number in range(self.num_micro_batches):
            first = (number * layout.data_parallel + at.dp_rank) * size
            rows = torch.stack(
                [sequences.sequence(step, i) for i in range(first, first + size)], dim=1
            )
            windows = range(2 + self.job.model.mtp_layers)
            ahead = torch.stack([rows[positions + shift] for shift in windows]).to(self.device)
            batches.append(Batch(ahead[0], ahead[1:]))
        return batches

    def _peaks(self) -> tuple[int, int]:
        """Allocated and reserved: of the step (CUDA), or so far in use and resident (CPU)."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        in_use = self.heap.peak_bytes if self.heap else 0
        return in_use or resident, resident


def _shares_embedding(job: Job) -> bool:
    """Whether the first and the last stage both hold the embedding, on different pipeline ranks."""
    apart = rank_of(job.layout, 0) != rank_of(job.layout, len(job.layout.stages) - 1)
    return apart and (job.model.tied or job.model.mtp_layers > 0)
