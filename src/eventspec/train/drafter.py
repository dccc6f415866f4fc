"""The recipe of an event drafter for a user's own target: a small EventGPT with the target's tokenizer, distilled on what the
target says of recordings that both see. It is the recipe of the bundled pair's drafter, without that one's rendered labels."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from eventspec.core import BadInput
from eventspec.files import write_text
from eventspec.models.eventgpt import EventGpt, EventGptConfig, save_eventgpt, save_with_weights
from eventspec.nn import ClipConfig, LlamaConfig
from eventspec.pairs import load_pair
from eventspec.pairs.names import BASELINE
from eventspec.pairs.pair_file import PairFile, fingerprint_of, folder_of
from eventspec.text import TokenSpace
from eventspec.train.answers import Preset, TrainingPreset, preset_of, presets_of
from eventspec.train.data import Branch, Index, PixelSource
from eventspec.train.frozen import AnswerTraining, Branches, Said, as_read, event_reads, said_of
from eventspec.train.loop import PROVENANCE, Report, Stage, add_part
from eventspec.train.material import material_of_questions
from eventspec.train.models import initialise
from eventspec.train.names import Given
from eventspec.train.processes import ALONE, Processes

NAME = "small"
"""What a pair that has an event drafter calls this one."""
FOLDER = f"drafter_{NAME}"
FIGURES = f"{FOLDER}/{PROVENANCE}"
PRESETS = presets_of(
    {
        "cpu": TrainingPreset(1500, 64, Stage("drafter", 7200, 1e-3, 8), 6),
        "gpu": TrainingPreset(20000, 64, Stage("drafter", 1800, 1e-3, 64), 6),
        "smoke": TrainingPreset(4, 2, Stage("drafter", 0, 1e-3, 2, steps=4), 2),
    }
)
POSITIONS = 2048
SIZES = {"cpu": (128, 4, 192, 3), "gpu": (256, 6, 512, 6), "smoke": (64, 2, 64, 2)}
"""Width and layers of the tower, and of the language model."""
SIDE, PATCH, HEADS = 112, 14, 4


def config_of(preset_name: str, vocabulary: int) -> EventGptConfig:
    """The sizes of a preset's drafter, for so many ids."""
    seeing, tower, width, layers = SIZES[preset_name]
    vision = ClipConfig(seeing, 4 * seeing, tower, HEADS, SIDE, PATCH)
    language = LlamaConfig(vocabulary, width, 8 * width // 3, layers, HEADS, HEADS, POSITIONS, tie_word_embeddings=True)
    return EventGptConfig(vision, language)


def begun(preset_name: str, tokens: TokenSpace, rows: int, folder: Path) -> None:
    """Write the checkpoint's folder of a drafter that knows nothing, with a target's tokenizer, and a name for each of the
    target's `rows` that has none: it may say them. What is there stays."""
    if (folder / "config.json").exists():
        return
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    torch.manual_seed(0)
    vocabulary = tokens.vocabulary.with_special([f"<row {row}>" for row in range(tokens.vocabulary.size, rows)])
    model = initialise(EventGpt(config_of(preset_name, vocabulary.size)))
    # Its end is the target's first: ids mean the same to both.
    ids = {"eos_token_id": tokens.eos_id, "mm_use_im_patch_token": False, "mm_use_im_start_end": False}
    save_eventgpt(model, part, ids)
    write_text(part / "tokenizer.json", vocabulary.as_json())
    part.rename(folder)


class DistilledTraining(AnswerTraining):
    """An event model of which everything learns; its prompts begin with the ids `before`."""

    def __init__(
        self,
        model: EventGpt,
        before: list[int],
        clips: PixelSource,
        answers: Mapping[int, list[Branch]],
        packed: int,
    ) -> None:
        super().__init__(clips, answers, packed)
        # Late steps are too small for the bfloat16 that the pair may be in.
        self.model, self.before = model.float().train().requires_grad_(True), before

    def said(self, clips: PixelSource, index: Index, branches: Branches) -> Said:
        hidden, _, packed = event_reads(self.model, self.before, clips, index, branches)
        return said_of(self.model.language.logits(hidden), packed, as_read(branches))


def train(
    pair: str,
    size: Preset,
    out: Path,
    report: Report,
    processes: Processes = ALONE,
    given: Given | None = None,
) -> Path:
    """Train an event drafter for a pair of checkpoints, and write OUT/pair: the pair with it, as its drafter where it has none,
    else as `small` beside the others. Picks up where a run was interrupted, with any number of processes. BadInput for a pair
    of ours: `eventspec train embedded` trains its drafter."""
    preset, file = preset_of(PRESETS, size), PairFile.read(folder_of(pair))
    if file.load is None:
        raise BadInput(f"pair {file.name} is one of ours: `eventspec train embedded` trains its drafter")
    if given is None:
        raise BadInput(f"pair {file.name} is of checkpoints: --questions names a qa.jsonl about recordings to learn from")
    first = out / "begun"
    with load_pair(file.folder, "one", fit=False, method=BASELINE) as whole, processes.first_ahead():
        begun(preset.name, whole.tokens, whole.parts.ends.config.vocab_size, first)
    beside = replace(file, files={**file.files, "drafter": str(first.resolve())})
    material = material_of_questions(beside, preset, out, report, given, processes, lambda models: {})
    model, learned = material.events, material.learned
    torch.manual_seed(1 + processes.rank)
    known = learned.source, learned.answers, preset.packed
    training = DistilledTraining(model, material.drafter_before, *known).to(material.devices(processes)[1])
    found = material.teach(training, material.fitting(preset.stage, processes), 800, out, report, processes)
    if not processes.first:
        return out / "pair"
    about = {**found, "parameters": sum(parameter.numel() for parameter in model.parameters())}
    return export(replace(file, learned=material.file.learned), model.to("cpu").eval(), first, about, out)


def export(file: PairFile, model: EventGpt, begun: Path, about: Mapping[str, Any], out: Path) -> Path:
    """The pair with the drafter in it, in the place of an earlier one."""

    def listed(made: PairFile) -> PairFile:
        if "drafter" in file.files:
            return made.listing("drafters", NAME, FOLDER)
        known = {**made.fingerprints, "drafter": fingerprint_of(made.folder / FOLDER)}
        return replace(made, files={**made.files, "drafter": FOLDER}, fingerprints=known)

    return add_part(file, out, FOLDER, lambda place: save_with_weights(model, begun, place), about, listed)
