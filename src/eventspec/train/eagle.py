"""The recipe of the heads that draft on a target's features: the target answers training clips, all heads learn from its
running pass, and their acceptance on calibration clips is reported while they do."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from eventspec.compress.elastic import CONCAT, FRUGAL, SELECT, WEIGHTED, Elastic, Mode, Option
from eventspec.core import BadInput
from eventspec.drafters import Eagle3Config, Eagle3Head, EagleConfig, EagleHead, TrainedHead, load_head, save_head
from eventspec.drafters.dream import DreamConfig, DreamHead
from eventspec.drafters.eagle import MsdHead
from eventspec.drafters.eagle3 import usual_taps
from eventspec.drafters.head_folder import fingerprint
from eventspec.drafters.small_vlm import SmallConfig, SmallVlm
from eventspec.drafters.static_tree import Rates
from eventspec.drafters.vispec import VispecHead
from eventspec.models.video_llava import VideoLlava, load_video_llava
from eventspec.pairs.pair_file import PairFile, folder_of
from eventspec.train.answered import answered
from eventspec.train.data import Branch, Clips, Questions
from eventspec.train.heads import HeadRecipe, HeadTraining
from eventspec.train.loop import Report, Stage, run_stage, same_run
from eventspec.train.models import Sampler, initialise
from eventspec.train.processes import ALONE, Processes

CALIBRATION = 64
SNAPSHOTS = (0.25, 0.5)


@dataclass(frozen=True)
class Preset:
    """Clips that the target answers, the stage, questions packed behind a recording."""

    answered: int
    stage: Stage
    packed: int


PRESETS = {
    "cpu": Preset(3000, Stage("heads", 3600, 1e-3, 8), 12),
    "gpu": Preset(20000, Stage("heads", 480, 1e-3, 64), 12),
    "smoke": Preset(4, Stage("heads", 2, 1e-3, 2), 2),
}
NAMES = ("eagle", "eagle1", "eagle3", "specvlm")
NEIGHBOURS = ("frugal", "weighted", "concat", "hivis", "msd", "vispec", "dream", "massv")
"""Further heads, of the papers around: not trained unless they are named."""
VECTORS = 8
"""ViSpec's rows for a recording: one for each of the frames, as the paper takes one for an image."""
SMALL = (96, 256, 2)
"""Width, inner width and layers of MASSV's small model."""
COST = 0.05
"""Weight of what the ways of SpecVLM's compressor cost; without it the gate takes the dearest one for every question."""
BEGINS = {
    **dict.fromkeys(("hivis", "msd", "vispec"), "eagle"),
    **dict.fromkeys(("frugal", "weighted", "concat"), "specvlm"),
}
"""The head whose weights another one may begin with."""


def recipe(name: str, target: VideoLlava, used: Iterable[int]) -> HeadRecipe:
    """A head to be trained, by name; `used` are the tokens of the target's answers, which EAGLE-3's own head is made for.

    eagle1: the paper's head, one step. eagle: EagleVLM, unrolled for three. eagle3: three layers fused, unrolled for four,
    learns words only. specvlm: eagle behind an elastic compressor that selects; frugal: the same, pooling over frames too, and
    what a way costs is a loss; weighted, concat: its other modes. hivis: eagle that sees no visual row. msd: no reduction on
    visual rows. vispec: few vectors instead. dream: cross-attention. massv: a small model behind the target's vision.
    """
    sizes = replace(target.config.language, num_hidden_layers=1)
    width = sizes.hidden_size
    modes: dict[str, tuple[Mode, tuple[Option, ...]]] = {
        "specvlm": ("select", SELECT),
        "frugal": ("select", FRUGAL),
        "weighted": ("weighted", WEIGHTED),
        "concat": ("concat", CONCAT),
        "hivis": ("concat", (Option("none"),)),
    }
    if name in modes:
        cost = COST if name == "frugal" else 0.0
        frame = target.config.vision.tokens if name == "frugal" else 0
        return HeadRecipe(EagleHead(EagleConfig(sizes)), Elastic(width, *modes[name], frame), unroll=3, cost=cost)
    if name == "eagle1":
        return HeadRecipe(EagleHead(EagleConfig(sizes, input_norm=False)))
    if name == "eagle3":
        ids = sorted({*used})
        head = Eagle3Head(Eagle3Config(sizes, usual_taps(target.config.language.num_hidden_layers), len(ids)))
        head.ids.copy_(torch.tensor(ids))
        return HeadRecipe(head, unroll=4, words=1.0, feature=0.0)
    if name == "dream":
        last = max(2, int(0.4 * target.config.language.num_hidden_layers) + 1)
        return HeadRecipe(DreamHead(DreamConfig(sizes)), unroll=2, words=1.0, feature=0.2, middle=tuple(range(2, last + 1)))
    if name == "massv":
        small = replace(sizes, hidden_size=SMALL[0], intermediate_size=SMALL[1], num_hidden_layers=SMALL[2])
        return HeadRecipe(SmallVlm(SmallConfig(replace(small, tie_word_embeddings=True), width)), words=1.0, feature=0.0)
    if name == "vispec":
        return HeadRecipe(VispecHead(EagleConfig(sizes), VECTORS), unroll=3)
    if name not in ("eagle", "msd"):
        raise BadInput(f"head '{name}' is unknown: choose one of {', '.join((*NAMES, *NEIGHBOURS))}")
    return HeadRecipe((MsdHead if name == "msd" else EagleHead)(EagleConfig(sizes)), unroll=3)


def train(
    pair: str,
    preset_name: str,
    names: list[str],
    out: Path,
    report: Report,
    workers: int = 2,
    processes: Processes = ALONE,
    go_on: bool = False,
) -> Path:
    """Train heads for a pair's target and write OUT/pair: the pair with its heads. Picks up where a run was interrupted, with
    any number of processes; the first of them does alone what is not training. `go_on`: the weights that the pair's own heads
    have in common with the new ones are where these begin."""
    preset, folder = PRESETS[preset_name], folder_of(pair)
    target, tokenizer = load_video_llava(folder / "target"), Tokenizer.from_file(str(folder / "tokenizer.json"))
    with processes.first_ahead():
        clips, answers = answered(folder, out, "train", preset.answered, report, workers)
        judged = answered(folder, out, "calibration", min(preset.answered, CALIBRATION), report, workers)
        same_run(out, {"target": fingerprint(target.language), "heads": names})
    used = Counter(token for known in answers.values() for branch in known for token in branch.answer)
    torch.manual_seed(0)
    recipes = {name: recipe(name, target, used) for name in names}
    for name, made in recipes.items():
        begin(made, folder / "heads" / BEGINS.get(name, name) if go_on else None, target)
    torch.manual_seed(1 + processes.rank)  # every process draws its own noise, and its own questions
    target.to(processes.device)
    questions = Questions(tokenizer)
    training = HeadTraining(target, recipes, questions, clips, answers, preset.packed, processes.rank).to(processes.device)
    judge = Calibration(training, *judged, out / "calibration.jsonl")
    sampler = Sampler(clips, preset.stage.batch, 400, sorted(answers), processes)
    parts = list(training.heads.values())
    report_step = judge.telling(report)
    run_stage(
        preset.stage,
        training,
        sampler,
        training.losses,
        out,
        report_step,
        clipped=parts,
        snapshots=SNAPSHOTS,
        processes=processes,
    )
    if not processes.first:
        return out / "pair"
    judge.measure({"step": -1})
    return export(folder, recipes, judge.rates(), target.to("cpu"), out)


def begin(made: HeadRecipe, folder: Path | None, target: VideoLlava) -> None:
    """Fresh weights, or those that a trained head in `folder` has under the same name and shape."""
    initialise(made.head)
    if isinstance(made.head, VispecHead):
        made.head.begin()
    if folder is None or not folder.is_dir():
        return
    trained = load_head(folder, target.language)
    for part, found in ((made.head, trained.head), (made.compressor, trained.compressor)):
        if part is not None and found is not None:
            own = part.state_dict()
            fit = {
                name: tensor for name, tensor in found.state_dict().items() if name in own and own[name].shape == tensor.shape
            }
            if made.cost:  # a gate that has chosen is too sure to hear of costs
                fit = {name: tensor for name, tensor in fit.items() if not name.startswith("gate.")}
            part.load_state_dict({**own, **fit})


class Calibration:
    """Acceptance on clips that no training saw: tokens a chain of drafts would gain per round, the bonus token included."""

    def __init__(self, training: HeadTraining, clips: Clips, answers: dict[int, list[Branch]], log: Path, every: int = 100):
        self.training, self.log, self.every = training, log, every
        self.own = HeadTraining(training.target, training.recipes, training.questions, clips, answers, packed=8, seed=1)
        self.clips = sorted(answers)

    def telling(self, report: Report) -> Report:
        """`report`, with a measurement every so many steps."""

        def report_step(name: str, progress: float, figures: dict[str, float]) -> None:
            if figures.get("step", 1) % self.every == 0:
                self.measure({"step": figures["step"], "progress": round(progress, 4)})
            report(name, progress, figures)

        return report_step

    def rates(self) -> dict[str, Rates]:
        """How often each of every head's choices is right, by level."""
        self.training.eval()
        return self.own.rates(self.clips, batch=8)

    @torch.no_grad()
    def measure(self, where: dict[str, Any]) -> dict[str, float]:
        """tau of every head; written to the log."""
        self.training.eval()
        found = self.own.acceptance(self.clips, batch=8)
        self.training.train()
        with self.log.open("a") as file:
            file.write(json.dumps({**where, "tau": {name: round(tau, 4) for name, tau in found.items()}}) + "\n")
        return found


def export(folder: Path, recipes: dict[str, HeadRecipe], rates: dict[str, Rates], target: VideoLlava, out: Path) -> Path:
    """A copy of the pair with the heads in it; heads it had under other names stay."""
    made = out / ".pair.part"
    shutil.rmtree(made, ignore_errors=True)
    shutil.copytree(folder, made)
    for name, each in recipes.items():
        shutil.rmtree(made / "heads" / name, ignore_errors=True)
        save_head(TrainedHead(each.head, each.compressor, rates[name]), made / "heads" / name, target.language)
    listed = {path.name: f"heads/{path.name}" for path in sorted((made / "heads").iterdir())}
    PairFile.read(made).with_table("heads", listed).write()
    calibration = json.loads((out / "calibration.jsonl").read_text().splitlines()[-1])
    calibration["tau"] = {**_known(made / "heads.json"), **calibration["tau"]}
    (made / "heads.json").write_text(json.dumps({"calibration": calibration, "torch": torch.__version__}) + "\n")
    shutil.rmtree(out / "pair", ignore_errors=True)
    made.rename(out / "pair")
    return out / "pair"


def _known(path: Path) -> dict[str, float]:
    """tau of the heads that a pair had before."""
    known: dict[str, float] = json.loads(path.read_text())["calibration"]["tau"] if path.exists() else {}
    return known
