"""Folders of feature-level heads in the layout of SafeAILab's releases: config.json and model.safetensors or pytorch_model.bin.

EAGLE-1 and 2: `fc`, `layers.0.*`, no head; an `input_layernorm` makes it EagleVLM's. EAGLE-3: `fc` over three layers,
`midlayer.*` (or `layers.0.*`), `norm`, `lm_head`, and the tables d2t and t2d of a reduced vocabulary. Which one it is, its
norm and its bias are read off the tensors. Our own folders also say, in `eventspec`, which target the head was trained for, and
hold the tensors of its compressor, if it has one, below `compressor.`.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from eventspec.compress import Elastic
from eventspec.core import BadCheckpoint
from eventspec.drafters.eagle import EagleConfig, EagleHead
from eventspec.drafters.eagle3 import Eagle3Config, Eagle3Head, usual_taps
from eventspec.drafters.feature import Prefix, compressed, whole
from eventspec.models import configuration as fields
from eventspec.models import weights
from eventspec.models.checkpoint import Checkpoint, without_memory
from eventspec.nn import Llama

Head = EagleHead | Eagle3Head
TAPS = "eagle_aux_hidden_state_layer_ids"
LAYER, COMPRESSOR = "layers.0.", "compressor."
_SAMPLED = 64


def fingerprint(target: torch.nn.Module) -> str:
    """Names a model by evenly spaced weights of every tensor, rounded to bfloat16 (16 hex digits).

    Not by all of them: a mapped checkpoint of 7 B would be read from end to end. A dtype of loading does not change it.
    """
    digest = hashlib.sha256()
    for name, parameter in target.named_parameters():
        flat = parameter.detach().flatten()
        places = torch.linspace(0, len(flat) - 1, min(_SAMPLED, len(flat)), dtype=torch.float64).long().to(flat.device)
        values = flat[places].to(torch.bfloat16).view(torch.int16).cpu().numpy()
        digest.update(f"{name} {tuple(parameter.shape)}".encode() + values.tobytes())
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class TrainedHead:
    """A head, and what compresses the visual rows for it."""

    head: Head
    compressor: Elastic | None = None

    @property
    def prefix(self) -> Prefix:
        """What of the prompt the head sees."""
        return whole if self.compressor is None else compressed(self.compressor)


def load_head(folder: Path, target: Llama) -> TrainedHead:
    """The head of a folder, checked against the target it is to draft for; BadCheckpoint in one line for what does not fit."""
    data = fields.read_json(folder / "config.json")
    if "hidden_size" not in data:
        raise BadCheckpoint(f"{folder / 'config.json'} has no hidden_size: it is not the config of a head")
    checkpoint = Checkpoint(folder, _plain)
    _check_target(folder, data, target)
    try:
        sizes = fields.llama_config({**data, "vocab_size": target.config.vocab_size})
    except fields.BadField as error:
        raise BadCheckpoint(f"{folder / 'config.json'}: {error}") from None
    if sizes.hidden_size != target.config.hidden_size:
        widths = f"{sizes.hidden_size}, the target's {target.config.hidden_size}"
        raise BadCheckpoint(f"{folder}: the head's width is {widths}: it belongs to another target")
    sizes = replace(sizes, num_hidden_layers=1)
    dtype = target.embed.weight.dtype
    head: Head
    with without_memory():
        if "lm_head.weight" in checkpoint.at:
            head = Eagle3Head(Eagle3Config(sizes, _taps(folder, data, target), checkpoint.shape("lm_head.weight")[0]))
        else:
            norm = f"{LAYER}input_layernorm.weight" in checkpoint.at
            head = EagleHead(EagleConfig(sizes, norm, "fc.bias" in checkpoint.at))
    sources = head_sources(head)
    compressor = _compressor(folder, data, checkpoint, head)
    own = compressor is not None

    def tolerated(name: str) -> bool:
        return name in ("d2t", "t2d") or name.startswith("embed_tokens.") or (own and name.startswith(COMPRESSOR))

    checkpoint.check(head, sources, tolerated)
    ids = _ids(folder, checkpoint, target) if isinstance(head, Eagle3Head) else None
    checkpoint.fill(head, sources, dtype)
    if isinstance(head, Eagle3Head):
        assert ids is not None
        head.ids = ids
    elif not head.config.input_norm:
        head.layer.input_norm = torch.nn.Parameter(torch.empty(0, dtype=dtype), requires_grad=False)
    device = target.embed.weight.device
    head.to(device).requires_grad_(False).eval()
    if compressor is not None:
        compressor.to(device, dtype).requires_grad_(False).eval()
    return TrainedHead(head, compressor)


def save_head(trained: TrainedHead, folder: Path, target: Llama) -> None:
    """Write a folder that `load_head` and SafeAILab's loaders read, in fp16; config.json says which target it is for."""
    head, elastic = trained.head, trained.compressor
    folder.mkdir(parents=True, exist_ok=True)
    sizes = fields.llama_json(replace(head.config.language, num_hidden_layers=1))
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "float16", **sizes}
    own: fields.Fields = {"target": fingerprint(target)}
    weights.save(head, folder / "model.safetensors", head_sources(head, "midlayer." if isinstance(head, Eagle3Head) else LAYER))
    if isinstance(head, Eagle3Head):
        config.update(architectures=["LlamaForCausalLMEagle3"], draft_vocab_size=head.config.draft_vocab)
        config[TAPS] = list(head.taps)
        known = torch.zeros(head.config.language.vocab_size, dtype=torch.bool)
        known[head.ids] = True
        offsets = head.ids.cpu() - torch.arange(len(head.ids))
        _add(folder, {"d2t": offsets, "t2d": known})
    else:
        config["bias"] = head.config.bias
    if elastic is not None:
        own["compressor"] = elastic.as_json()
        _add(folder, {f"{COMPRESSOR}{name}": p.detach().cpu().half() for name, p in elastic.named_parameters()})
    config["eventspec"] = own
    (folder / "config.json").write_text(fields.pretty(config))


def head_sources(head: Head, layer: str = LAYER) -> weights.Sources:
    """Tensor names of the published layouts; `layer` is what they call the decoder layer."""
    names = {**weights.layer_sources(head.config.language, "layer.", layer), "fc.weight": [("fc.weight", 0)]}
    if isinstance(head, Eagle3Head):
        names.update({"norm": [("norm.weight", 0)], "head.weight": [("lm_head.weight", 0)]})
        return {**names, "hidden_norm": [(f"{layer}hidden_norm.weight", 0)]}
    if not head.config.input_norm:
        del names["layer.input_norm"]
    if head.config.bias:
        names["fc.bias"] = [("fc.bias", 0)]
    return names


def _add(folder: Path, tensors: dict[str, Tensor]) -> None:
    """More tensors into the file that was just written."""
    path = folder / "model.safetensors"
    beside = path.with_suffix(".part")
    save_file({**load_file(path), **tensors}, beside, metadata={"format": "pt"})
    beside.chmod(0o644)
    beside.rename(path)


def _compressor(folder: Path, data: fields.Fields, checkpoint: Checkpoint, head: Head) -> Elastic | None:
    """The compressor that config.json names, with its tensors; None where it names none."""
    own = data.get("eventspec")
    if not isinstance(own, dict) or "compressor" not in own:
        return None
    elastic = Elastic.from_json(head.config.language.hidden_size, own["compressor"])
    sources: weights.Sources = {name: [(f"{COMPRESSOR}{name}", 0)] for name, _ in elastic.named_parameters()}
    extra = {name for name in checkpoint.at if name.startswith(COMPRESSOR)} - {parts[0][0] for parts in sources.values()}
    checkpoint.check(elastic, sources, lambda name: name not in extra)
    checkpoint.fill(elastic, sources, torch.float32)
    return elastic


def _plain(name: str) -> str:
    """EAGLE-3's layer is called `midlayer` by SafeAILab and `layers.0` by others."""
    return re.sub(r"^midlayer\.", LAYER, name.removeprefix("model."))


def _taps(folder: Path, data: fields.Fields, target: Llama) -> tuple[int, ...]:
    layers = target.config.num_hidden_layers
    found = data.get(TAPS, data.get("eagle_config", {}).get(TAPS) if isinstance(data.get("eagle_config"), dict) else None)
    if found is None:
        return usual_taps(layers)
    fits = isinstance(found, list) and len(found) > 0 and all(type(i) is int and 0 <= i <= layers for i in found)
    if not fits or sorted(set(found)) != found:
        raise BadCheckpoint(
            f"{folder / 'config.json'}: {TAPS} is {found!r}, wanted ascending layers of the target, 0 to {layers}"
        )
    return tuple(found)


def _ids(folder: Path, checkpoint: Checkpoint, target: Llama) -> Tensor:
    """Target ids of the head's rows, from d2t; without it the vocabularies are one."""
    rows, most = checkpoint.shape("lm_head.weight")[0], target.config.vocab_size
    if "d2t" not in checkpoint.at:
        if rows != most:
            raise BadCheckpoint(f"{folder}: the head names {rows} tokens of {most} and has no table d2t of which ones")
        return torch.arange(rows)
    offsets = checkpoint.integers("d2t")
    ids = offsets + torch.arange(len(offsets))
    if len(ids) != rows or bool((ids < 0).any()) or bool((ids >= most).any()) or len(ids.unique()) != len(ids):
        raise BadCheckpoint(
            f"{folder}: d2t does not name {rows} tokens of the target's {most}: it belongs to another vocabulary"
        )
    return ids


def _check_target(folder: Path, data: fields.Fields, target: Llama) -> None:
    own = data.get("eventspec")
    trained = own.get("target") if isinstance(own, dict) else None
    if trained is not None and trained != (found := fingerprint(target)):
        raise BadCheckpoint(
            f"{folder}: the head was trained for target {trained}, this one is {found}: train it anew for this one"
        )
