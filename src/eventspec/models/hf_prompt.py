"""From frames and a question to the rows that a transformers model's language half reads.

Nothing is known about single architectures: the model's own forward is stopped where its language model begins, and what it
hands over there is the prompt. Of a second question about the same frames only the text after the pictures is new.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from eventspec.core import BadCheckpoint, BadInput, EventspecError
from eventspec.models.prompt import Frames
from eventspec.process_lock import ProcessLock

_PASSED_ON = ("inputs_embeds", "position_ids", "attention_mask", "past_key_values", "use_cache", "input_ids", "cache_position")


_LOCKS: weakref.WeakKeyDictionary[nn.Module, ProcessLock] = weakref.WeakKeyDictionary()


def alone(model: nn.Module) -> ProcessLock:
    """The lock of a model: one call at a time, because our hooks run on every call, from any thread."""
    return _LOCKS.setdefault(model, ProcessLock())


@dataclass(frozen=True)
class HfPrompt:
    """rows float [T, D]; positions int64 [R, T]: R is 1, or 3 with M-RoPE (time, height, width); how many rows are visual, and
    from where to where, [begin, end), text between pictures included."""

    rows: Tensor
    positions: Tensor
    visual: int = 0
    span: tuple[int, int] = (0, 0)

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, begin: int, end: int) -> HfPrompt:
        """Rows [begin, end) with their positions."""
        return HfPrompt(self.rows[begin:end], self.positions[:, begin:end])


@dataclass(frozen=True)
class Prompter:
    """`model` and `processor` of a folder, the ids that stand for pictures, the dtype of rows; `quiet` silences
    transformers. `reuses`: whether the text after the pictures can be embedded on its own (`embeds_text_alone` measures it)."""

    folder: Path
    model: Any
    processor: Any
    placeholders: tuple[int, ...]
    dtype: torch.dtype
    quiet: Callable[[], Any]
    reuses: bool = True

    def inputs(self, question: str, frames: Frames) -> dict[str, Any]:
        """Tensors of the chat template with one image for each frame, on the model's device."""
        from PIL import Image

        tokenizer = self.processor.tokenizer
        for place in tokenizer.convert_ids_to_tokens(list(self.placeholders)):
            if place and place in question:
                raise BadInput(f"the prompt contains {place}, which stands for pictures: leave it out")
        pictures = [{"type": "image", "image": Image.fromarray(frame)} for frame in frames]

        def template(text: str, **how: Any) -> Any:
            messages = [{"role": "user", "content": [*pictures, {"type": "text", "text": text}]}]
            return self.processor.apply_chat_template(messages, add_generation_prompt=True, **how)

        with self.quiet(), self.explained(len(frames), frames.shape):
            # It may be trimmed, escaped or spelled otherwise, but one more word before or after it must not be lost.
            plain, *longer = (self._rendered(template, text) for text in (question, f"Why {question}", f"{question} why"))
            if plain in longer:
                problem = f"{self.folder}: its chat template does not hold the question as it was asked"
                raise BadCheckpoint(f"{problem}: mend the template, or every question gets the same answer")
            made = template(question, tokenize=True, return_dict=True, return_tensors="pt")
        return dict(made.to(self.model.device, self.dtype))  # ids stay whole numbers

    def _rendered(self, template: Callable[..., Any], text: str) -> str:
        """What the chat template makes of a question; BadCheckpoint for a template that cannot be used."""
        try:
            return str(template(text, tokenize=False))
        except Exception as error:
            said = next(iter(str(error).strip().splitlines()), "")[:200]
            problem = f"{self.folder}: its chat template fails ({type(error).__name__}: {said})"
            raise BadCheckpoint(f"{problem}: mend it; it gets a list of pictures and one text") from error

    @contextmanager
    def explained(self, count: int, shape: Sequence[int]) -> Iterator[None]:
        """What a processor or a model's vision says against frames [K, H, W, 3] becomes BadInput, one line."""
        try:
            yield
        except (EventspecError, _Reached):
            raise
        except Exception as error:
            said = next(iter(str(error).strip().splitlines()), "")[:200]
            problem = f"{self.folder}: it cannot read {count} frames of {shape[2]}x{shape[1]} ({type(error).__name__}: {said})"
            hint = "try --frames 1 or larger frames, or as many as its chat template has; EVENTSPEC_DEBUG=1 shows the trace"
            raise BadInput(f"{problem}: {hint}") from error

    def prompt(self, inputs: dict[str, Any]) -> HfPrompt:
        """The rows that the model makes of inputs; BadCheckpoint when they and positions are not all that its language half
        gets."""
        given = self._handed_over(inputs)
        more = [name for name, value in given.items() if name not in _PASSED_ON and isinstance(value, Tensor | list | tuple)]
        mask = given.get("attention_mask")
        if isinstance(mask, dict) or (isinstance(mask, Tensor) and mask.ndim > 2):
            more.append("an attention mask for pictures")
        if more or given.get("inputs_embeds") is None:
            handed = f"{type(self.model).__name__} hands its language model {', '.join(more) or 'token ids, not rows'}"
            raise BadCheckpoint(f"{self.folder}: {handed}: it cannot be a target")
        rows, positions = given["inputs_embeds"][0], given.get("position_ids")
        if positions is None:
            positions = torch.arange(len(rows), device=rows.device)[None]
        # Of a model that is spread ids and rows may lie on two devices.
        positions = positions.to(rows.device).reshape(-1, len(rows))
        positions = positions[-3:] if len(positions) > 1 else positions  # a fourth row, first, only helps to make masks
        places = self._is_picture(inputs["input_ids"][0]).nonzero().flatten().tolist()
        return HfPrompt(rows, positions, len(places), (places[0], places[-1] + 1) if places else (0, 0))

    def again(self, known: HfPrompt, known_ids: Tensor, inputs: dict[str, Any]) -> HfPrompt | None:
        """The prompt of another question about the same frames: the rows of `known`, whose ids int64 [T] are given, up to the
        last that the two share, and the text after them. None where that cannot be done."""
        ids = inputs["input_ids"][0]
        shortest = min(len(ids), len(known_ids))
        different = (ids[:shortest] != known_ids[:shortest]).nonzero()
        shared = int(different[0]) if len(different) else shortest
        if not self.reuses or self._is_picture(ids[shared:]).any() or self._is_picture(known_ids[shared:]).any() or not shared:
            return None
        rows = self.model.get_input_embeddings()(ids[shared:]).to(known.rows.dtype)
        # After the pictures positions count on by one, in all rows of M-RoPE alike.
        begin = known.positions[:, shared - 1 : shared].amax() + 1
        positions = (begin + torch.arange(len(rows), device=rows.device)).expand(len(known.positions), -1)
        whole = torch.cat((known.positions[:, :shared], positions), 1)
        return HfPrompt(torch.cat((known.rows[:shared], rows)), whole, known.visual, known.span)

    def embeds_text_alone(self, frames: Frames) -> bool:
        """Whether `again` makes what the model itself makes."""
        one, other = (self.inputs(question, frames) for question in ("What is this?", "Is it far away, and does it move?"))
        found, wanted = self.again(self.prompt(one), one["input_ids"][0], other), self.prompt(other)
        if found is None or found.positions.shape != wanted.positions.shape:
            return False
        return torch.equal(found.rows, wanted.rows) and torch.equal(found.positions, wanted.positions)

    def _is_picture(self, ids: Tensor) -> Tensor:
        return torch.isin(ids.cpu(), torch.tensor(self.placeholders, dtype=torch.int64))

    def _handed_over(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """What the model's own forward gives its language model: visual rows in place, M-RoPE positions made."""
        found: dict[str, Any] = {}

        def stop(module: Any, arguments: Any, named: dict[str, Any]) -> None:
            found.update(named)
            raise _Reached

        with alone(self.model):
            hook = self.model.get_decoder().register_forward_pre_hook(stop, with_kwargs=True)
            try:
                self.model(**inputs, use_cache=False)
            except _Reached:
                pass
            finally:
                hook.remove()
        return found


class _Reached(Exception):
    """The language model was called: all before it is done."""
