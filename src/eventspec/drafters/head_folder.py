"""Folders of feature-level heads: config.json, and model.safetensors or pytorch_model.bin.

SafeAILab's layout. EAGLE-1 and 2: `fc`, `layers.0.*`, no head; an `input_layernorm` makes it EagleVLM's. EAGLE-3: `fc` over
three layers, `midlayer.*` (or `layers.0.*`), `norm`, `lm_head`, and the tables d2t and t2d of a reduced vocabulary. Which one
it is, its norm and its bias are read off the tensors; a config that says otherwise is refused. Our own folders also say, in
`eventspec`, which target the head was trained for, and hold the tensors of its compressor, if it has one, below `compressor.`.
The layout of `speculators` has EAGLE-3's tensors and another config.json: `drafters.speculators`.

Heads that no other code loads say what they are in `eventspec.kind`: MSD's and ViSpec's have EAGLE-1's tensors (and ViSpec's
`imadpt.*` and `img_fc.*`), DREAM's and MASSV's are written under our own names.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from eventspec.compress import Elastic
from eventspec.core import BadCheckpoint, BadInput
from eventspec.drafters import speculators
from eventspec.drafters.dream import DreamConfig, DreamHead
from eventspec.drafters.eagle import EagleConfig, EagleHead, MsdHead
from eventspec.drafters.eagle3 import Eagle3Config, Eagle3Head, usual_taps
from eventspec.drafters.feature import PromptView, adapted, compressed, decoupled, full_prompt
from eventspec.drafters.small_vlm import SmallConfig, SmallVlm
from eventspec.drafters.speculators import TAPS, Verifier
from eventspec.drafters.static_tree import Rates, read_rates
from eventspec.drafters.vispec import VispecHead
from eventspec.models import configuration as fields
from eventspec.models import weights
from eventspec.models.checkpoint import Checkpoint, without_memory
from eventspec.nn import Llama, LlamaConfig

Head = EagleHead | Eagle3Head | DreamHead | SmallVlm
KINDS: dict[type[nn.Module], str] = {MsdHead: "msd", VispecHead: "vispec", DreamHead: "dream", SmallVlm: "massv"}
"""What our own folders call a head that nobody else's code loads."""
LAYER, COMPRESSOR = "layers.0.", "compressor."
_SAMPLED = 64
_MOST_VECTORS = 4096


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
    """A head, what compresses the visual rows for it, and how often its first, second, ... choice was the target's on
    calibration clips, level by level (empty: not known)."""

    head: Head
    compressor: Elastic | None = None
    rates: Rates = ()

    @property
    def view(self) -> PromptView:
        """What of the prompt the head sees."""
        if self.compressor is not None:
            return compressed(self.compressor)
        if isinstance(self.head, VispecHead):
            return adapted(self.head)
        return decoupled if isinstance(self.head, MsdHead) else full_prompt


def load_head(folder: Path, target: Llama) -> TrainedHead:
    """The head of a folder, checked against the target it is to draft for; BadCheckpoint in one line for what does not fit."""
    data = _read(folder)
    trained = _own(data).get("target")
    if trained is not None and trained != (found := fingerprint(target)):
        raise BadCheckpoint(
            f"{folder}: the head was trained for target {trained}, this one is {found}: train it anew for this one"
        )
    checkpoint = Checkpoint(folder, _plain)
    made = _checked(folder, data, checkpoint, target.config)
    head, compressor, dtype, sources = made.head, made.compressor, target.embed.weight.dtype, head_sources(made.head)
    ids = _ids(folder, checkpoint, target.config) if isinstance(head, Eagle3Head) else None
    if compressor is not None:
        own = Checkpoint(folder, _plain)  # filling lets go of a .bin's tensors
        own.fill(compressor, compressor_sources(compressor), torch.float32)
        _check_finite(own, compressor, compressor_sources(compressor))
    checkpoint.fill(head, sources, dtype)
    _check_finite(checkpoint, head, sources)
    if isinstance(head, Eagle3Head):
        assert ids is not None
        head.ids = ids
    elif isinstance(head, SmallVlm) and head.config.language.tie_word_embeddings:
        head.language.head.weight = head.language.embed.weight
    elif isinstance(head, EagleHead) and not head.config.input_norm:
        head.layer.input_norm = torch.nn.Parameter(torch.empty(0, dtype=dtype), requires_grad=False)
    device = target.embed.weight.device
    head.to(device).requires_grad_(False).eval()
    if compressor is not None:
        compressor.to(device, dtype).requires_grad_(False).eval()
    return made


def inspect_head(folder: Path) -> tuple[TrainedHead, Checkpoint, str | None]:
    """What a head's folder holds, without weights and without its target, which is taken to have the head's width and
    vocabulary; its tensors; and the target that its config names. BadCheckpoint as `load_head`."""
    data = _read(folder)
    checkpoint = Checkpoint(folder, _plain)
    try:
        named = [checkpoint.shape(name)[0] for name in ("t2d", "lm_head.weight") if name in checkpoint.at] or [1]
        sizes = fields.llama_config({"vocab_size": named[0], **data})
        if _own(data).get("kind") == KINDS[SmallVlm]:
            _rows(checkpoint, "up.weight", 2, (1, 1 << 24))
            sizes = replace(sizes, hidden_size=checkpoint.shape("up.weight")[1])
    except fields.BadField as error:
        raise BadCheckpoint(f"{folder / 'config.json'}: {error}") from None
    target = replace(sizes, num_hidden_layers=fields.LARGEST["num_hidden_layers"])
    made = _checked(folder, data, checkpoint, target)
    if isinstance(made.head, Eagle3Head):
        _ids(folder, checkpoint, target)
    return made, checkpoint, _own(data).get("target")


def _read(folder: Path) -> fields.Fields:
    """config.json under a plain head's names."""
    path = folder / "config.json"
    data = fields.read_json(path)
    try:
        data = speculators.flattened(data) if speculators.KIND in data else data
        own = fields.part(data, "eventspec", {})
        fields.require(own, "target", isinstance(own.get("target"), str | None), "a target's fingerprint")
    except fields.BadField as error:
        raise BadCheckpoint(f"{path}: {error}") from None
    if "hidden_size" not in data:
        raise BadCheckpoint(f"{path} has no hidden_size: it is not the config of a head")
    return data


def _own(data: fields.Fields) -> fields.Fields:
    return fields.part(data, "eventspec", {})


def _checked(folder: Path, data: fields.Fields, checkpoint: Checkpoint, target: LlamaConfig) -> TrainedHead:
    """Head and compressor on the meta device; BadCheckpoint unless config and tensors are theirs, and fit the target."""
    try:
        head = _head(folder, data, checkpoint, target)
        rates = read_rates(_own(data), len(head.ids) if isinstance(head, Eagle3Head) else target.vocab_size)
    except fields.BadField as error:
        raise BadCheckpoint(f"{folder / 'config.json'}: {error}") from None
    compressor = _compressor(folder, data, checkpoint, head)

    def tolerated(name: str) -> bool:
        return (
            name in ("d2t", "t2d")
            or name.startswith("embed_tokens.")
            or (compressor is not None and name.startswith(COMPRESSOR))
        )

    checkpoint.check(head, head_sources(head), tolerated)
    return TrainedHead(head, compressor, rates)


def save_head(trained: TrainedHead, folder: Path, target: Llama, dtype: torch.dtype = torch.float16) -> None:
    """Write a folder that `load_head` and SafeAILab's loaders read; config.json says which target it is for.

    BadInput for a head that SafeAILab's code would run otherwise.
    """
    head, elastic = trained.head, trained.compressor
    sizes = fields.llama_json(head.config.language)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": _name(dtype), **sizes}
    own: fields.Fields = {"target": fingerprint(target)}
    if type(head) in KINDS:
        own["kind"] = KINDS[type(head)]
    if trained.rates:
        own["ranks"] = [[round(share, 4) for share in level] for level in trained.rates]
    layer, more = LAYER, dict[str, Tensor]()
    if isinstance(head, Eagle3Head):
        if head.config.norm_before_residual:
            raise BadInput("the head has norm_before_residual, which SafeAILab's code has not: export it for speculators")
        config.update(architectures=["LlamaForCausalLMEagle3"], draft_vocab_size=head.config.draft_vocab)
        config[TAPS] = list(head.taps)
        layer, more = "midlayer.", _tables(head)
    elif isinstance(head, EagleHead) and not head.config.bias:
        config["bias"] = False  # true is what SafeAILab's code takes for granted; vLLM would make attention biases of it
    if elastic is not None:
        own["compressor"] = elastic.as_json()
        places = compressor_sources(elastic)
        more.update({places[name][0][0]: p.detach().cpu().to(dtype) for name, p in elastic.named_parameters()})
    _write(folder, head, layer, more, {**config, "eventspec": own}, dtype)


def export_speculators(
    trained: TrainedHead, folder: Path, target: Llama, verifier: Verifier, dtype: torch.dtype = torch.float16
) -> None:
    """Write a folder that `load_head`, the package `speculators` 0.9 and vLLM read; BadInput for a head it has no place for."""
    head = trained.head
    if not isinstance(head, Eagle3Head):
        raise BadInput("speculators reads no EAGLE-1 head since 0.9, only EAGLE-3: choose layout safeailab")
    if trained.compressor is not None:
        raise BadInput("speculators has no place for a head's compressor")
    more, whole = _tables(head), head.config.draft_vocab == head.config.language.vocab_size
    if whole and bool(more["d2t"].any()):
        raise BadInput("the head names the target's tokens in another order, which speculators does not read")
    config = {**speculators.described(head.config, verifier, _name(dtype)), "eventspec": {"target": fingerprint(target)}}
    _write(folder, head, LAYER, {} if whole else more, config, dtype)


def exact_dtype(trained: TrainedHead) -> torch.dtype:
    """The narrowest of fp16, bf16 and fp32 that holds every number of a head as it is."""
    parts = [part for part in (trained.head, trained.compressor) if part is not None]
    for dtype in (torch.float16, torch.bfloat16):
        if all(torch.equal(p.to(dtype).to(p.dtype), p) for part in parts for p in part.parameters()):
            return dtype
    return torch.float32


def head_sources(head: Head, layer: str = LAYER) -> weights.Sources:
    """Tensor names of the published layouts, or our own; `layer` is what they call the decoder layer."""
    if isinstance(head, DreamHead | SmallVlm):
        return {name: [(name, 0)] for name, _ in head.named_parameters()}
    names = {**weights.layer_sources(head.config.language, "layer.", layer), "fc.weight": [("fc.weight", 0)]}
    if isinstance(head, Eagle3Head):
        names.update({"norm": [("norm.weight", 0)], "head.weight": [("lm_head.weight", 0)]})
        return {**names, "hidden_norm": [(f"{layer}hidden_norm.weight", 0)]}
    if not head.config.input_norm:
        del names["layer.input_norm"]
    if head.config.bias:
        names["fc.bias"] = [("fc.bias", 0)]
    if isinstance(head, VispecHead):
        names.update(weights.linear_sources("global_proj", "img_fc"))
        for ours, theirs in (("queries", "q"), ("keys.weight", "k_proj.weight"), ("values.weight", "v_proj.weight")):
            names[f"adaptor.{ours}"] = [(f"imadpt.{theirs}", 0)]
        names["adaptor.out.weight"] = [("imadpt.o_proj.weight", 0)]
    return names


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _tables(head: Eagle3Head) -> dict[str, Tensor]:
    """The published tables of a reduced vocabulary: d2t int64 [draft_vocab] and t2d bool [V]."""
    ids = head.ids.cpu()
    known = torch.zeros(head.config.language.vocab_size, dtype=torch.bool)
    known[ids] = True
    return {"d2t": ids - torch.arange(len(ids)), "t2d": known}


def _write(folder: Path, head: Head, layer: str, more: dict[str, Tensor], config: fields.Fields, dtype: torch.dtype) -> None:
    """A head's tensors, its decoder layer called `layer`, with some more, and its config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    weights.save(head, folder / "model.safetensors", head_sources(head, layer), more=more, dtype=dtype)
    (folder / "config.json").write_text(fields.pretty(config))


def _head(folder: Path, data: fields.Fields, checkpoint: Checkpoint, target: LlamaConfig) -> Head:
    """The head that config and tensors describe, on the meta device; BadField where one contradicts the other or the target."""
    eagle3, bias = "lm_head.weight" in checkpoint.at, "fc.bias" in checkpoint.at
    kind = _kind(data, eagle3)
    sizes = fields.llama_config({**data, "vocab_size": target.vocab_size})
    if kind == "massv":
        with without_memory():
            return SmallVlm(SmallConfig(sizes, target.hidden_size))
    if sizes.hidden_size != target.hidden_size:
        widths = f"{sizes.hidden_size}, the target's {target.hidden_size}"
        raise BadCheckpoint(f"{folder}: the head's width is {widths}: it belongs to another target")
    _agrees(data, "vocab_size", target.vocab_size, "as the target has")
    _agrees(data, "target_hidden_size", target.hidden_size, "as the target has")
    _agrees(data, "num_hidden_layers", 1, "a head has one layer")
    sizes = replace(sizes, num_hidden_layers=1)
    if kind == "dream":
        with without_memory():
            return DreamHead(DreamConfig(sizes))
    if not eagle3:
        _agrees(data, "draft_vocab_size", None, "there is no lm_head.weight")
        _agrees(data, "bias", bias, f"fc.bias is {'there' if bias else 'not there'}")
        config = EagleConfig(sizes, f"{LAYER}input_layernorm.weight" in checkpoint.at, bias)
        with without_memory():
            if kind == "vispec":
                return VispecHead(config, _rows(checkpoint, "imadpt.q", 3, (2, _MOST_VECTORS)) - 1)
            return (MsdHead if kind == "msd" else EagleHead)(config)
    rows = _rows(checkpoint, "lm_head.weight", 2, (1, target.vocab_size))
    _agrees(data, "draft_vocab_size", rows, "the rows of lm_head.weight")
    for name in speculators.SWITCHES:
        _agrees(data, name, False, "our EAGLE-3 head has no such norm")
    normed = data.get("norm_before_residual", False)
    fields.require(data, "norm_before_residual", isinstance(normed, bool), "true or false")
    with without_memory():
        return Eagle3Head(Eagle3Config(sizes, _taps(data, target), rows, normed))


def _kind(data: fields.Fields, eagle3: bool) -> str | None:
    """What `eventspec.kind` says; BadField for what it cannot be, or beside tensors or a compressor that it has not."""
    own = fields.part(data, "eventspec", {})
    kind: str | None = own.get("kind")
    fields.require(own, "kind", kind is None or kind in KINDS.values(), f"one of {', '.join(KINDS.values())}")
    fields.require(own, "kind", kind is None or not eagle3, "none: lm_head.weight is there, as in EAGLE-3's heads alone")
    if "compressor" in own and (kind is not None or eagle3):
        name = "EAGLE-3" if kind is None else kind
        raise fields.BadField(f"eventspec.compressor is there, in a head of kind {name}: only EAGLE's head has one")
    return kind


def _rows(checkpoint: Checkpoint, name: str, axes: int, bounds: tuple[int, int]) -> int:
    """The first length of a tensor with so many axes; BadCheckpoint where it is missing, of another shape or out of bounds."""
    if name not in checkpoint.at:
        raise BadCheckpoint(f"{checkpoint.where}: tensor {name} is missing: this is no head of that kind, or an incomplete one")
    shape, (least, most) = checkpoint.shape(name), bounds
    if len(shape) != axes or not least <= shape[0] <= most:
        raise BadCheckpoint(f"{checkpoint.where}: tensor {name} is {shape}, wanted {axes} axes, {least} to {most} on the first")
    return shape[0]


def _check_finite(checkpoint: Checkpoint, module: nn.Module, sources: weights.Sources) -> None:
    """BadCheckpoint for NaN and infinity among the numbers that were just filled in."""
    own = dict(module.named_parameters())
    for name, parts in sources.items():
        extremes = torch.stack(own[name].detach().aminmax())  # needs no memory, and says NaN where there is one
        if not bool(extremes.isfinite().all()):
            problem = f"tensor {checkpoint.at[parts[0][0]][1]} holds NaN or infinity in {_name(extremes.dtype)}"
            raise BadCheckpoint(f"{checkpoint.where}: {problem}: fetch or train the head again")


def _agrees(data: fields.Fields, name: str, only: int | None, why: str) -> None:
    """BadField unless a field has the only value it can have; one that is not there contradicts nothing."""
    found = data.get(name)
    fields.require(data, name, found is None or (type(found) is type(only) and found == only), f"{only}: {why}")


def _compressor(folder: Path, data: fields.Fields, checkpoint: Checkpoint, head: Head) -> Elastic | None:
    """The compressor that config.json names, on the meta device; None where it names none. Its tensors are checked."""
    own = _own(data)
    if "compressor" not in own:
        return None
    try:
        with without_memory():
            elastic = Elastic.from_json(head.config.language.hidden_size, own["compressor"])
    except BadCheckpoint as error:
        raise BadCheckpoint(f"{folder / 'config.json'}: eventspec.compressor: {error}") from None
    sources = compressor_sources(elastic)
    extra = {name for name in checkpoint.at if name.startswith(COMPRESSOR)} - {parts[0][0] for parts in sources.values()}
    checkpoint.check(elastic, sources, lambda name: name not in extra)
    return elastic


def compressor_sources(elastic: Elastic) -> weights.Sources:
    """Tensor names of a compressor beside its head's."""
    files = ((name, name.replace("branches.", "ways.", 1)) for name, _ in elastic.named_parameters())
    return {name: [(f"{COMPRESSOR}{file}", 0)] for name, file in files}


def _plain(name: str) -> str:
    """EAGLE-3's layer is called `midlayer` by SafeAILab and `layers.0` by others."""
    return re.sub(r"^midlayer\.", LAYER, name.removeprefix("model."))


def _taps(data: fields.Fields, target: LlamaConfig) -> tuple[int, ...]:
    layers, inner = target.num_hidden_layers, data.get("eagle_config")
    found = data.get(TAPS)
    if found is None and isinstance(inner, dict):
        found = inner.get(TAPS)
    if found is None:
        return usual_taps(layers)
    fits = isinstance(found, list) and len(found) > 0 and all(type(i) is int and 0 <= i <= layers for i in found)
    fields.require({TAPS: found}, TAPS, fits and sorted(set(found)) == found, f"ascending layers of the target, 0 to {layers}")
    return tuple(found)


def _ids(folder: Path, checkpoint: Checkpoint, target: LlamaConfig) -> Tensor:
    """Target ids of the head's rows, from d2t; without it the vocabularies are one."""
    rows, most = checkpoint.shape("lm_head.weight")[0], target.vocab_size
    if "d2t" not in checkpoint.at:
        if rows != most:
            raise BadCheckpoint(f"{folder}: the head names {rows} tokens of {most} and has no table d2t of which ones")
        return torch.arange(rows)
    shape = checkpoint.shape("d2t")
    if shape != [rows]:
        raise BadCheckpoint(f"{folder}: d2t is {shape}, wanted [{rows}]: a number for every row of lm_head.weight")
    ids = checkpoint.integers("d2t") + torch.arange(rows)
    if bool((ids < 0).any()) or bool((ids >= most).any()) or len(ids.unique()) != len(ids):
        raise BadCheckpoint(
            f"{folder}: d2t does not name {rows} tokens of the target's {most}: it belongs to another vocabulary"
        )
    return ids
