"""The processes that train one model together, each on batches of its own: what they average and agree on.

`torchrun` or `accelerate launch` starts them; accelerate chooses the device and carries the tensors, and is imported then only.
They hold the same parameters, bit for bit, and read what the first one writes: the output folder is shared by all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn

from eventspec.core import BadInput
from eventspec.train.names import launched

PATIENCE = timedelta(days=2)
"""How long a process waits for the others: the first one may render and answer for hours. A launcher ends all with one."""


class Processes:
    """One process, which agrees with itself."""

    rank, count = 0, 1

    @property
    def first(self) -> bool:
        """Whether this is the process that writes and reports."""
        return self.rank == 0

    @property
    def device(self) -> torch.device:
        """Where this process computes."""
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def begin(self, model: nn.Module) -> None:
        """Give every process the first one's parameters and buffers."""

    def average(self, model: nn.Module, parts: Mapping[str, Tensor]) -> dict[str, float]:
        """The means over all processes of the gradients, in place, and of the scalars `parts`."""
        return {name: float(part.detach()) for name, part in parts.items()}

    def most(self, number: float) -> float:
        """The largest of the processes' numbers."""
        return number

    def wait(self) -> None:
        """Until every process is here."""

    @contextmanager
    def first_ahead(self) -> Iterator[None]:
        """The others begin this block when the first has ended it: they find on disk what it made."""
        if not self.first:
            self.wait()
        yield
        if self.first:
            self.wait()


class Together(Processes):
    """This process among others, through an accelerator of the accelerate library."""

    def __init__(self, accelerator: Any) -> None:
        self.accelerator = accelerator
        self.rank, self.count = accelerator.process_index, accelerator.num_processes

    @property
    def device(self) -> torch.device:
        found: torch.device = self.accelerator.device
        return found

    def begin(self, model: nn.Module) -> None:
        from accelerate.utils import broadcast

        for tensor in model.state_dict().values():
            tensor.copy_(broadcast(tensor.to(self.device)))

    @torch.no_grad()
    def average(self, model: nn.Module, parts: Mapping[str, Tensor]) -> dict[str, float]:
        # One message: gradients, which of them there are, figures. DDP's hooks want one forward; here a batch has many.
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in trained]
        there = torch.tensor([float(each.grad is not None) for each in trained], device=self.device)
        values = torch.stack([part.detach().float() for part in parts.values()])
        sizes = [gradient.numel() for gradient in gradients]
        flat = torch.cat([*(gradient.flatten() for gradient in gradients), there, values])
        *means, any_there, figures = self.accelerator.reduce(flat, reduction="mean").split([*sizes, len(there), len(values)])
        for parameter, mean, has in zip(trained, means, any_there.tolist(), strict=True):
            # None nowhere is no zero: an optimiser passes over a parameter without a gradient, but decays one with zeros.
            parameter.grad = mean.view_as(parameter).to(parameter.dtype) if has else None
        return dict(zip(parts, figures.tolist(), strict=True))

    def most(self, number: float) -> float:
        return float(self.accelerator.gather(torch.tensor([number], device=self.device, dtype=torch.float64)).max())

    def wait(self) -> None:
        self.accelerator.wait_for_everyone()


ALONE = Processes()


@contextmanager
def started() -> Iterator[Processes]:
    """The processes that a launcher started, connected: NCCL on GPUs, gloo on CPUs. BadInput when accelerate is missing."""
    if launched() == 1:
        yield ALONE
        return
    try:
        from accelerate import Accelerator
        from accelerate.utils import InitProcessGroupKwargs
    except ImportError:
        raise BadInput(
            f"training in {launched()} processes needs accelerate: pip install 'eventspec[train]', or start one process"
        ) from None
    patience = InitProcessGroupKwargs(timeout=PATIENCE)
    # The recipes choose their own precision. Without `cpu`, processes on a machine without a GPU would not find each other.
    accelerator = Accelerator(mixed_precision="no", cpu=not torch.cuda.is_available(), kwargs_handlers=[patience])
    yield Together(accelerator)
    accelerator.end_training()
