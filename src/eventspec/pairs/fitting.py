"""Whether what was chosen fits who answers, by config.json and the names in weight files: no model is read, and no torch is
needed. What only the weights tell, such as the fingerprint of a target, is checked when they are read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eventspec.align.deciding import FITTED, Decision
from eventspec.errors import BadInput, check_known, check_scale, check_squares
from eventspec.files import read_json
from eventspec.machine import NO_SPREAD, SPREAD, unusable
from eventspec.media import Modality, Window, check_senses
from eventspec.models.shards import EVENTGPT, OURS, VIDEO_LLAVA, check_files, check_ours, modality_of, opened, shards
from eventspec.pairs.names import (
    ACCEPTANCE,
    ALIGNED,
    CASCADE,
    EVENT_EAGLE,
    EVENT_METHOD,
    SEVERAL_LAYERS,
    SKIP,
    SMALL_VLM,
    SMALL_VLM_TREES,
    TREES,
    USUAL_MAPPING,
    VOCABULARY_MAPPINGS,
    CompressionSpec,
    HeadSpec,
    check_adapter,
    check_packer,
    folder_named,
    name_and_choice,
    uncalibrated,
)
from eventspec.pairs.pair_file import PairFile

if TYPE_CHECKING:
    from eventspec.recordings import Recording
    from eventspec.recordings.qa import Check

DRAFTED_FROM_EVENTS = (EVENT_METHOD, CASCADE, ALIGNED, EVENT_EAGLE, SKIP)
"""Methods that ask nothing about a recording without events."""
ONLY_OURS = "adapters are for a pair of ours, see `eventspec train adapter`"


@dataclass(frozen=True)
class Needs:
    """What a method needs of a recording, as `Method` has it."""

    target_needs: Modality
    drafter_needs: Modality | None


def needs_of(method: str, file: PairFile) -> Needs:
    """Of a method of a pair."""
    return Needs(modality_of(file.place("target")), "events" if method in DRAFTED_FROM_EVENTS else None)


def suits(file: PairFile, methods: Sequence[str], may_be_empty: Collection[str] = ()) -> Check:
    """What raises BadInput for a recording that lacks in a window what one of the methods of a pair needs; streams of the
    senses that `may_be_empty` must be there all the same."""

    def check(recording: Recording, window: Window | None) -> None:
        there = recording.senses_in(window or recording.span) | {sense for sense in may_be_empty if sense in recording.streams}
        for method in methods:
            check_senses(recording.name, there, method, needs_of(method, file))

    return check


def kind_of(data: Mapping[str, Any]) -> str:
    """What a config.json describes: a packer, an adapter, a head or a checkpoint. A head has a width and sees nothing."""
    if data.get("model_type") in ("packer", "adapter"):
        return str(data["model_type"])
    whole = any(name.startswith(("vision", "mm_", "text_config")) for name in data)
    return "head" if not whole and ("hidden_size" in data or "speculators_model_type" in data) else "checkpoint"


def check_parts(given: Mapping[str, Iterable[str]], file: PairFile, method: str | None = None) -> list[Path]:
    """BadInput or BadCheckpoint for heads (`head`), event drafters, adapters and compressions that there are not, or that are
    not for a pair's target, by what was given of each; the folders of the others. method: that which adapters are for, None
    for any."""
    for text in given.get("compress", ()):
        _check_compression(CompressionSpec.parse(text), file)
    found = [_head(text, file) for text in given.get("head", ())]
    found += [_drafter(text, file) for text in given.get("drafter", ())]
    return found + [_adapter(text, file, method) for text in given.get("adapter", ())]


def _part(kind: str, which: str, known: Mapping[str, Path]) -> tuple[Path, dict[str, Any]]:
    """The folder of a part and its config.json, which is that of such a part."""
    folder, wanted = folder_named(kind, which, known), "checkpoint" if kind == "drafter" else kind
    if not (folder / "config.json").is_file() and (below := sorted(path.parent for path in folder.glob("*/config.json"))):
        raise BadInput(f"{folder} is no {kind}'s folder, it holds others: give one of them, such as {below[0]}")
    data = check_files(folder, tokenizer=False)
    if (found := kind_of(data)) != wanted:
        option = {"checkpoint": "drafter", "packer": None}.get(found, found)
        mend = f": give it as --{option} {which}" if option else ": the table [packers] of a pair.toml takes it"
        raise BadInput(f"{which} is the folder of {_one(found)}, and of no {kind}{mend}")
    return folder, data


def _one(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def _head(text: str, file: PairFile) -> Path:
    spec = HeadSpec.parse(text, file.tables["heads"])
    folder, data = _part("head", spec.which, file.places("heads"))
    own, layer = (part if isinstance(part := data.get(key), dict) else {} for key in ("eventspec", "transformer_layer_config"))
    small, branches = own.get("kind") == SMALL_VLM, _branches(own.get("compressor"))
    if spec.tree not in (known := SMALL_VLM_TREES if small else TREES):
        also = f", or of its branches {', '.join(branches)}" if branches and spec.branch is None else ""
        raise BadInput(f"tree policy '{spec.tree}' is unknown for head {folder.name}: choose one of {', '.join(known)}{also}")
    if spec.branch is not None and spec.branch not in branches:
        has = f"it has {', '.join(branches)}" if branches else "it has no compressor that chooses"
        raise BadInput(f"head {folder.name} has no branch {spec.branch}: {has}")
    sizes = {name: data.get(name, layer.get(name)) for name in ("vocab_size", "hidden_size")[: 1 if small else 2]}
    _check_sizes(folder, "head", file, sizes)
    return folder


def _branches(compressor: Any) -> list[str]:
    """What the gate of a head's compressor, as config.json has it, chooses from; nothing where it does not choose."""
    options = compressor.get("options") if isinstance(compressor, dict) and compressor.get("mode") == "select" else None
    return [str(row.get("kind")) for row in options if isinstance(row, dict)] if isinstance(options, list) else []


def _drafter(text: str, file: PairFile) -> Path:
    name, mapping = name_and_choice(text, USUAL_MAPPING, file.tables["drafters"])
    folder, data = _part("drafter", name, file.places("drafters"))
    check_known("vocabulary", [mapping], VOCABULARY_MAPPINGS)
    if data.get("model_type") != EVENTGPT:
        raise BadInput(f"{name} sees frames: the drafter of method {EVENT_METHOD} must see events")
    if mapping == "same":
        check_same_ids(name, folder, file)
    return folder


def check_same_ids(name: str, drafter: Path, file: PairFile) -> None:
    """BadInput where a drafter's tokenizer is not the target's."""
    from eventspec.text import Vocabulary, first_difference

    ours = Vocabulary.load(file.place("tokenizer")) if file.load is None else Vocabulary.of_folder(file.place("target"))
    if different := first_difference(Vocabulary.of_folder(drafter, "tokenizer.model"), ours):
        where = f"id {different[0]} is {different[1]!r} for the drafter and {different[2]!r} for the target"
        differ = f"the tokenizers of {name} and {file.name} differ: {where}"
        raise BadInput(f"{differ}; choose --vocabulary auto, retokenize or intersect")


def _adapter(which: str, file: PairFile, method: str | None) -> Path:
    if not _sees_both(file):
        raise BadInput(ONLY_OURS)
    folder, data = _part("adapter", which, file.places("adapters"))
    by = EVENT_EAGLE if data.get("output") == "features" else ALIGNED
    check_adapter(which, by, method)
    if method == SKIP and not (folder / ACCEPTANCE).is_file():
        raise uncalibrated(which)
    if data.get("output") != "tower":  # whose width is the tower's
        _check_sizes(folder, "adapter", file, {"hidden_size": data.get("width")})
    return folder


def row_adapters(file: PairFile) -> list[str]:
    """The names of a pair's adapters to rows or the tower's features: the one that is used unless another is named first."""
    writes = {name: read_json(place / "config.json").get("output") for name, place in file.places("adapters").items()}
    return [name for output in ("rows", "tower") for name, own in writes.items() if own == output]


def check_learning(heads: Iterable[str], file: PairFile) -> None:
    """BadInput for heads that cannot learn while they draft, of those that `check_parts` took."""
    for text in heads:
        folder = folder_named("head", HeadSpec.parse(text, file.tables["heads"]).which, file.places("heads"))
        own = read_json(folder / "config.json").get("eventspec")
        if isinstance(own, dict) and own.get("kind") in SEVERAL_LAYERS:
            raise BadInput(f"head {text} has several decoder layers: --learn is for heads of one, on the target's features")


def check_decisions(decisions: Iterable[Decision], file: PairFile, adapter: str | None) -> None:
    """BadInput for rules of skip-encode that a pair has no adapter for, or one that was not calibrated for them."""
    for decision in decisions:
        places = file.places("adapters")
        if (which := adapter or next(iter(row_adapters(file)), None)) is None:
            raise BadInput(f"--decide {decision}: pair {file.name} has no adapter to rows, see `eventspec train adapter`")
        folder, rule = _part("adapter", which, places)[0], decision.calibration
        check_adapter(which, EVENT_EAGLE if read_json(folder / "config.json").get("output") == "features" else ALIGNED, SKIP)
        if rule is not None and not (folder / FITTED[rule].file).is_file():
            raise uncalibrated(which, rule)


def _sees_both(file: PairFile) -> bool:
    """Whether a pair has the two models that adapters stand between."""
    there = [file.place(role) for role in ("target", "drafter") if role in file.files]
    types = [read_json(place / "config.json").get("model_type") for place in there]
    return types == [VIDEO_LLAVA, EVENTGPT]


def _check_sizes(folder: Path, kind: str, file: PairFile, sizes: Mapping[str, object]) -> None:
    """BadInput for a part of other sizes than the target's; what one of them does not say is not compared."""
    target = language_of(file.place("target"))
    for name, own in sizes.items():
        wanted = target.get(name)
        if own is not None and wanted is not None and own != wanted:
            raise BadInput(
                f"{folder}: the {kind} was trained for targets whose {name} is {own}, this one's is {wanted}: name another"
            )


def language_of(checkpoint: Path) -> dict[str, Any]:
    """The fields of a config.json about its language model."""
    data = read_json(checkpoint / "config.json")
    inner = data.get("text_config")
    return data | inner if isinstance(inner, dict) else data


def _check_compression(spec: CompressionSpec, file: PairFile) -> None:
    if read_json(file.place("target") / "config.json").get("model_type") not in OURS:
        raise BadInput("this needs a target of our own (Video-LLaVA, EventGPT or a bundled pair), transformers opens this one")
    if spec.kind == "packer":
        check_packer(spec.size, file.tables["packers"])
    elif spec.kind in ("grid", "max") and (side := _grid(file)):
        check_squares(spec.kind, spec.size, side)


def check_packed(file: PairFile, scale: int) -> None:
    """BadInput for a packer of a scale that the grid of a pair's target does not have, as far as its config.json says it."""
    if side := _grid(file):
        check_scale(scale, side)


def _grid(file: PairFile) -> int | None:
    """Patches a side of what a pair's target sees, where its config.json says it."""
    seen = read_json(file.place("target") / "config.json").get("vision_config")
    image, patch = (seen.get(name) if isinstance(seen, dict) else None for name in ("image_size", "patch_size"))
    return image // patch if isinstance(image, int) and isinstance(patch, int) and patch > 0 else None


def check_loading(target: Path, dtype: str | None, *devices: str | None) -> None:
    """BadInput for a precision that a checkpoint cannot be opened in, and for devices that cannot be there: the first one is
    the target's."""
    if SPREAD in devices[1:]:
        raise BadInput(NO_SPREAD)
    for device in devices:
        if device is not None and (why := unusable(device)) is not None:
            raise BadInput(f"device '{device}' cannot be used ({why}): choose cpu, or what `eventspec doctor` finds")
    if read_json(target / "config.json").get("model_type") in OURS:
        check_ours(dtype, devices[0])
    elif dtype in ("nf4", "int8") and not (device := devices[0] or "cpu").startswith(("cuda", SPREAD)):
        raise BadInput(f"dtype {dtype} needs a CUDA device, here is {device}: choose float32, bfloat16 or float16")


def check_exported(head: Path, layout: str) -> None:
    """BadInput for a head that a layout has no place for, by the names of its tensors."""
    own = read_json(head / "config.json").get("eventspec")
    if layout != "speculators" or (isinstance(own, dict) and own.keys() - {"target", "ranks"}):
        return  # a head that is for eventspec alone: its family says so
    names = [name for path in shards(head) if path.suffix != ".bin" for name in list(opened(path, "numpy").keys())]
    if names and "lm_head.weight" not in names:
        raise BadInput("speculators reads no EAGLE-1 head since 0.9, only EAGLE-3: choose layout safeailab")
