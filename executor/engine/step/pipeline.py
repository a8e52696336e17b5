"""Runs one rank's actions of a pipeline schedule.

Messages between two ranks travel in the order in which the sender's schedule makes them: the
receiver knows that order and posts its receives in it, at the latest when it needs one and at best
one action earlier. A receive buffer lives from then until the backward pass of its micro-batch.
Only the start of the autograd graph is kept of a stage's output once it is sent.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from meshplan.costmodels.schedule.actions import Action
from meshplan.executor.engine.parts.rank_context import Local
from meshplan.executor.engine.step.schedule import rank_of
from meshplan.executor.engine.step.stage import VirtualStage
from meshplan.executor.engine.watch.clock import Observer


@dataclass(frozen=True, slots=True)
class Message:
    """An activation for the forward of `stage`, or a gradient for its backward."""

    gradient: bool
    stage: int
    micro_batch: int


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch on this rank: (local sequence, batch) tokens, and the tokens 1, 2, ...
    ahead.
    """

    tokens: Tensor
    targets: Tensor


class Mailbox:
    """Messages to and from the other pipeline ranks."""

    def __init__(self, local: Local, orders: list[list[Action]]) -> None:
        self.local, self.rank = local, local.groups.at.pp_rank
        self.peers = local.groups.at.pp_group()
        self.orders = orders
        self.sending: deque[tuple[dist.Work, Tensor]] = deque()
        self.arriving: dict[Message, tuple[dist.Work, Tensor]] = {}
        self.expected: dict[int, deque[Message]] = {}

    def open(self) -> None:
        """At the start of a step: what every other rank will send here, in its order."""
        self.expected = {
            peer: deque(
                message
                for action in order
                if (message := outgoing(self.local, action)) is not None
                and rank_of(self.local.layout, message.stage) == self.rank
            )
            for peer, order in enumerate(self.orders)
            if peer != self.rank
        }

    def send(self, message: Message, x: Tensor) -> None:
        """Start to send; finished sends give their tensors back."""
        while self.sending and self.sending[0][0].is_completed():
            self.sending.popleft()
        peer = rank_of(self.local.layout, message.stage)
        group = self.local.groups.up if peer > self.rank else self.local.groups.down
        x = x.contiguous()
        work = dist.isend(x, self.peers[peer], group=group)
        assert work is not None
        self.sending.append((work, x))

    def post(self, message: Message, shape: tuple[int, ...]) -> None:
        """Start to receive everything that its sender sends up to `message`."""
        peer = self._sender(message)
        group = self.local.groups.up if peer < self.rank else self.local.groups.down
        while message not in self.arriving:
            following = self.expected[peer].popleft()
            buffer = torch.empty(shape, dtype=self.local.dtype, device=self.local.device)
            work = dist.irecv(buffer, self.peers[peer], group=group)
            assert work is not None
            self.arriving[following] = (work, buffer)

    def receive(self, message: Message, shape: tuple[int, ...]) -> Tensor:
        """Wait for `message`."""
        self.post(message, shape)
        work, buffer = self.arriving.pop(message)
        work.wait()
        return buffer

    def _sender(self, message: Message) -> int:
        stage = message.stage + (1 if message.gradient else -1)
        return rank_of(self.local.layout, stage)

    def close(self) -> None:
        """At the end of a step: every message has been taken and every send has gone."""
        assert not self.arriving
        assert not any(self.expected.values())
        for work, _ in self.sending:
            work.wait()
        self.sending.clear()


def outgoing(local: Local, action: Action) -> Message | None:
    """What an action sends to another rank, if anything."""
    layout = local.layout
    if action.kind == "W":
        return None
    gradient = action.kind in "BI"
    stage = action.stage + (-1 if gradient else 1)
    if not 0 <= stage < len(layout.stages):
        return None
    if rank_of(layout, stage) == rank_of(layout, action.stage):
        return None
    return Message(gradient, stage, action.micro_batch)


class Pipeline:
    """The virtual stages of one rank and their schedule."""

    def __init__(
        self,
        local: Local,
        parts: list[VirtualStage],
        orders: list[list[Action]],
        observer: Observer,
    ) -> None:
        self.local, self.observer = local, observer
        self.parts = {part.index: part for part in parts}
        self.mailbox = Mailbox(local, orders)
        self.order = orders[local.groups.at.pp_rank]
        self.last = len(local.layout.stages) - 1
        layout = local.layout
        self.shape = (
            local.local_seq_len // layout.tensor_parallel,
            layout.micro_batch_size,
            local.model.hidden,
        )
        self.handed: dict[Message, Tensor] = {}
        self.inputs: dict[tuple[int, int], Tensor] = {}
        self.ends: dict[tuple[int, int], GradientEdge | Tensor] = {}
        self.deferred: dict[tuple[int, int], list[Callable[[], None]]] = {}

    def run(self, batch_of: Callable[[int], Batch]) -> Tensor:
        """Every action of one step; the sum of the last stage's losses (0 on other ranks)."""
        loss = torch.zeros((), device=self.local.device)
        self.mailbox.open()
        for action, following in zip(self.order, [*self.order[1:], None], strict=True):
            received = self._awaited(action)
            if following is not None:
                self._post(following)
            with self.observer.phase("forward" if action.kind == "F" else "backward", action):
                if action.kind == "F":
                    loss += self._forward(action, received, batch_of(action.micro_batch))
                elif action.kind == "W":
                    self._weights(action)
                else:
                    self._backward(action, received)
        with self.observer.phase("wait"):
            self.mailbox.close()
        return loss

    def _needed(self, action: Action) -> Message | None:
        """What an action waits for."""
        gradient = action.kind in "BI"
        if action.kind == "W" or action.stage == (self.last if gradient else 0):
            return None
        return Message(gradient, action.stage, action.micro_batch)

    def _is_local(self, message: Message) -> bool:
        return message.stage + (1 if message.gradient else -1) in self.parts

    def _post(self, action: Action) -> None:
        needed = self._needed(action)
        if needed is not None and not self._is_local(needed):
            self.mailbox.post(needed, self.shape)

    def _awaited(self, action: Action) -> Tensor | None:
        needed = self._needed(action)
        if needed is None:
            return None
        if self._is_local(needed):
            return self.handed.pop(needed)
        with self.observer.phase("wait", action):
            return self.mailbox.receive(needed, self.shape)

    def _deliver(self, message: Message, x: Tensor) -> None:
        if message.stage in self.parts:
            self.handed[message] = x
        else:
            self.mailbox.send(message, x)

    def _forward(self, action: Action, received: Tensor | None, batch: Batch) -> Tensor:
        key, part = (action.stage, action.micro_batch), self.parts[action.stage]
        x = batch.tokens if received is None else received.requires_grad_()
        self.inputs[key] = x
        y = part(x, batch.targets)
        if action.stage == self.last:
            self.ends[key] = y
            return y.detach()
        self.ends[key] = get_gradient_edge(y)
        self._deliver(Message(False, action.stage + 1, action.micro_batch), y.detach())
        return torch.zeros((), device=y.device)

    def _backward(self, action: Action, received: Tensor | None) -> None:
        key, ledger = (action.stage, action.micro_batch), self.local.ledger
        end = self.ends.pop(key)
        gradients = None if received is None else [received]
        if action.kind == "I":
            with ledger.putting_off() as self.deferred[key]:
                torch.autograd.backward([end], gradients)  # type: ignore[arg-type]
        else:
            torch.autograd.backward([end], gradients)  # type: ignore[arg-type]
        x = self.inputs.pop(key)
        if action.stage > 0:
            assert x.grad is not None
            self._deliver(Message(True, action.stage - 1, action.micro_batch), x.grad)

    def _weights(self, action: Action) -> None:
        with torch.no_grad():
            for product in self.deferred.pop((action.stage, action.micro_batch)):
                product()
        for unit in self.parts[action.stage].units:
            unit.complete()
