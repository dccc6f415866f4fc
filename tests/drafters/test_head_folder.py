"""Head folders: the published layouts read and written, and a head that does not belong to a target refused in one line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from eventspec.compress.elastic import CONCAT, FRUGAL, SELECT, WEIGHTED, Elastic, Mode, Option
from eventspec.core import BadCheckpoint
from eventspec.drafters import Eagle3Config, Eagle3Head, EagleConfig, EagleHead, TrainedHead, load_head, save_head
from eventspec.drafters.heads.dream import DreamHead
from eventspec.drafters.heads.eagle import msd_head
from eventspec.drafters.heads.eagle3 import usual_taps
from eventspec.drafters.heads.head import HeadConfig
from eventspec.drafters.heads.massv import SmallConfig, SmallVlm
from eventspec.drafters.heads.specvlm import specvlm_head
from eventspec.drafters.heads.vispec import vispec_head
from eventspec.models.weights import fingerprint
from eventspec.nn import Llama, LlamaConfig

SIZES = LlamaConfig(40, 16, 24, 6, 2, 1, max_position_embeddings=128)
ONE = replace(SIZES, num_hidden_layers=1)
SMALL = replace(SIZES, hidden_size=8, num_hidden_layers=2, tie_word_embeddings=True)


def target(seed: int = 0) -> Llama:
    made = Llama(SIZES).requires_grad_(False).eval()
    generator = torch.Generator().manual_seed(seed)
    for parameter in made.parameters():
        parameter.normal_(0.0, 0.6, generator=generator)
    return made


def halved(module: Any) -> Any:
    """With values that fp16 holds exactly, as what is stored."""
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape).half().float()
    return module


def eagle3(taps: tuple[int, ...] = usual_taps(6)) -> Eagle3Head:
    head = Eagle3Head(Eagle3Config(ONE, taps, 24))
    head.vocab_ids.copy_(torch.randperm(40)[:24].sort().values)
    made = halved(head)
    assert isinstance(made, Eagle3Head)
    return made


def specvlm(mode: Mode, options: tuple[Option, ...], frame: int = 0, bias: bool = True) -> TrainedHead:
    return TrainedHead(halved(specvlm_head(EagleConfig(ONE, bias=bias), Elastic(16, mode, options, frame))))


KINDS: dict[str, Callable[[], TrainedHead]] = {
    "eagle1": lambda: TrainedHead(halved(EagleHead(EagleConfig(ONE, input_norm=False)))),
    "eaglevlm": lambda: TrainedHead(halved(EagleHead(EagleConfig(ONE)))),
    "no bias": lambda: TrainedHead(halved(EagleHead(EagleConfig(ONE, bias=False)))),
    "eagle3": lambda: TrainedHead(eagle3()),
    "other taps": lambda: TrainedHead(eagle3((1, 2, 4))),
    "select": lambda: specvlm("select", SELECT, 5),
    "frugal": lambda: specvlm("select", FRUGAL, 5),
    "weighted": lambda: specvlm("weighted", WEIGHTED),
    "concat": lambda: specvlm("concat", CONCAT, bias=False),
    "ranks": lambda: TrainedHead(halved(EagleHead(EagleConfig(ONE))), rates=((0.75, 0.125, 0.0625), (0.5, 0.25, 0.0))),
    "msd": lambda: TrainedHead(halved(msd_head(EagleConfig(ONE)))),
    "vispec": lambda: TrainedHead(halved(vispec_head(EagleConfig(ONE), 3))),
    "dream": lambda: TrainedHead(halved(DreamHead(HeadConfig(ONE)))),
    "massv": lambda: TrainedHead(halved(SmallVlm(SmallConfig(SMALL, 16)))),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_that_was_written_is_read_back_bit_by_bit(kind: str, tmp_path: Path) -> None:
    whose, made = target(), KINDS[kind]()
    save_head(made, tmp_path / "head", whose)
    found = load_head(tmp_path / "head", whose)
    assert type(found.head) is type(made.head)
    assert found.head.config == made.head.config
    assert found.rates == made.rates
    ours, theirs = made.head.state_dict(), found.head.state_dict()
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name
    assert all(path.stat().st_mode & 0o044 for path in (tmp_path / "head").iterdir()), "others may read it"


def test_the_layouts_are_the_published_ones(tmp_path: Path) -> None:
    whose = target()
    save_head(KINDS["eagle1"](), tmp_path / "1", whose)
    layer = {f"layers.0.self_attn.{x}_proj.weight" for x in "qkvo"} | {
        f"layers.0.mlp.{x}_proj.weight" for x in ("gate", "up", "down")
    }
    names = {"fc.weight", "fc.bias", "layers.0.post_attention_layernorm.weight", *layer}
    assert load_file(tmp_path / "1/model.safetensors").keys() == names
    # SafeAILab's code takes a bias for granted; vLLM would take the field for the attention's.
    assert "bias" not in json.loads((tmp_path / "1/config.json").read_text())
    save_head(KINDS["no bias"](), tmp_path / "none", whose)
    assert json.loads((tmp_path / "none/config.json").read_text())["bias"] is False
    save_head(KINDS["eagle3"](), tmp_path / "3", whose)
    written = load_file(tmp_path / "3/model.safetensors")
    more = {"d2t", "t2d", "fc.weight", "norm.weight", "lm_head.weight"}
    norms = {f"midlayer.{x}.weight" for x in ("hidden_norm", "input_layernorm", "post_attention_layernorm")}
    assert written.keys() == {name.replace("layers.0.", "midlayer.") for name in layer} | norms | more
    assert written["midlayer.self_attn.q_proj.weight"].shape == (16, 32)
    ids = torch.arange(24) + written["d2t"]
    assert written["d2t"].dtype == torch.int64
    assert torch.equal(written["t2d"].nonzero().flatten(), ids)
    assert json.loads((tmp_path / "3/config.json").read_text())["draft_vocab_size"] == 24


@pytest.mark.parametrize("kind", ["eagle1", "eagle3"])
def test_published_variants_are_read(kind: str, tmp_path: Path) -> None:
    """As .bin, with the embedding in it, with the layer's other name, without a word of ours in config.json."""
    whose, made = target(), KINDS[kind]()
    save_head(made, tmp_path, whose)
    tensors = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    renamed = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()}
    torch.save({**renamed, "embed_tokens.weight": whose.embed.weight}, tmp_path / "pytorch_model.bin")
    config = json.loads((tmp_path / "config.json").read_text())
    del config["eventspec"]
    config.pop("eagle_aux_hidden_state_layer_ids", None)
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = load_head(tmp_path, whose).head
    assert torch.equal(found.fc.weight, made.head.fc.weight)
    assert found.taps == made.head.taps


def test_the_fingerprint_is_of_the_weights_not_of_their_precision() -> None:
    one, other = target(), target(1)
    assert fingerprint(one) != fingerprint(other)
    stored = target().half()
    assert fingerprint(stored) == fingerprint(stored.float())


FIELDS = {
    "hidden_size": 32,
    "vocab_size": 41,
    "num_hidden_layers": 2,
    "draft_vocab_size": 25,
    "target_hidden_size": 32,
    "norm_before_residual": "yes",
    "norm_before_fc": True,
    "fc_norm": True,
    "norm_output": True,
}
"""What a config can say that the tensors or the target do not bear out."""


def broken(folder: Path, how: str) -> None:
    path, config = folder / "model.safetensors", json.loads((folder / "config.json").read_text())
    tensors = load_file(path)
    if how == "d2t elsewhere":
        tensors["d2t"] += 40
    elif how == "d2t twice":
        tensors["d2t"][1] = tensors["d2t"][0] - 1
    elif how == "no d2t":
        del tensors["d2t"]
    elif how == "no layer":
        del tensors["midlayer.mlp.up_proj.weight"]
    elif how == "more":
        tensors["midlayer.extra"] = torch.zeros(1)
    elif how == "taps":
        config["eagle_aux_hidden_state_layer_ids"] = [2, 2, 9]
    elif how in FIELDS:
        config[how] = FIELDS[how]
    elif how == "compressor":
        config["eventspec"]["compressor"] = {"mode": "select", "options": [{"kind": "pool", "size": 0}]}
    elif how == "no weights":
        path.unlink()
    elif how == "torn":
        path.write_bytes(path.read_bytes()[:100])
    if how not in ("no weights", "torn"):
        save_file(tensors, path)
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("d2t elsewhere", "another vocabulary"),
        ("d2t twice", "another vocabulary"),
        ("no d2t", "no table d2t"),
        ("no layer", "up_proj.weight is missing"),
        ("more", "unknown"),
        ("taps", "ascending layers"),
        ("hidden_size", "another target"),
        *((name, f"{name} is .*, wanted ") for name in list(FIELDS)[1:]),
        ("compressor", "only SpecVLM's head has one"),
        ("no weights", "missing"),
        ("torn", "cannot be read"),
    ],
)
def test_what_is_wrong_with_a_head_is_said_in_one_line(how: str, told: str, tmp_path: Path) -> None:
    save_head(TrainedHead(eagle3()), tmp_path, target())
    broken(tmp_path, how)
    with pytest.raises(BadCheckpoint, match=told) as error:
        load_head(tmp_path, target())
    assert "\n" not in str(error.value)


def test_a_field_that_is_not_there_contradicts_nothing(tmp_path: Path) -> None:
    made = eagle3()
    save_head(TrainedHead(made), tmp_path, target())
    config = json.loads((tmp_path / "config.json").read_text())
    for name in ("vocab_size", "num_hidden_layers", "draft_vocab_size"):
        del config[name]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert load_head(tmp_path, target()).head.config == made.config


@pytest.mark.parametrize(("field", "value"), [("bias", False), ("vocab_size", 39), ("draft_vocab_size", 40)])
def test_an_eagle1_config_that_contradicts_its_tensors_is_refused(field: str, value: object, tmp_path: Path) -> None:
    save_head(KINDS["eagle1"](), tmp_path, target())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, field: value}))
    with pytest.raises(BadCheckpoint, match=f"{field} is {value}, wanted"):
        load_head(tmp_path, target())


def test_a_head_for_another_target_is_refused(tmp_path: Path) -> None:
    save_head(KINDS["eaglevlm"](), tmp_path, target())
    with pytest.raises(BadCheckpoint, match="was trained for target"):
        load_head(tmp_path, target(1))
    copy = shutil.copytree(tmp_path, tmp_path / "copy")
    (copy / "config.json").unlink()
    with pytest.raises(BadCheckpoint, match=r"config\.json is missing"):
        load_head(copy, target())


def changed(folder: Path, own: dict[str, Any] | None = None, tensors: dict[str, Any] | None = None) -> Path:
    """Other fields in `eventspec`, other tensors (None: not there)."""
    config = json.loads((folder / "config.json").read_text())
    config["eventspec"].update(own or {})
    (folder / "config.json").write_text(json.dumps(config))
    kept = {**load_file(folder / "model.safetensors"), **(tensors or {})}
    save_file({name: tensor for name, tensor in kept.items() if tensor is not None}, folder / "model.safetensors")
    return folder


def over(frames: int, frame: Any = 0) -> dict[str, Any]:
    """A compressor that pools over so many frames of so many rows."""
    return {"compressor": {"mode": "select", "options": [{"kind": "pool", "size": 2, "frames": frames}], "frame": frame}}


NONE = {"compressor": {"mode": "concat", "options": [{"kind": "none", "size": 1}]}}


def squared(frame: int, **changed: Any) -> dict[str, Any]:
    """A compressor that pools by squares of two patches a side in frames of so many rows."""
    option = {"kind": "pool", "size": 2, "grid": True, **changed}
    return {"compressor": {"mode": "select", "options": [option], "frame": frame}}


CONTRADICTIONS: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "no queries": ("vispec", {}, {"imadpt.q": None}, r"tensor imadpt\.q is missing"),
    "vispec in name only": ("eagle1", {"kind": "vispec"}, {}, r"tensor imadpt\.q is missing"),
    "queries of no axis": ("vispec", {}, {"imadpt.q": torch.zeros(())}, r"imadpt\.q is \[\], wanted 3 axes"),
    "the whole alone": ("vispec", {}, {"imadpt.q": torch.zeros(1, 2, 8)}, r"imadpt\.q is \[1, 2, 8\], wanted 3 axes, 2 to"),
    "a head of no axis": ("eagle3", {}, {"lm_head.weight": torch.zeros(())}, r"lm_head\.weight is \[\], wanted 2 axes"),
    "a head of one axis": ("eagle3", {}, {"lm_head.weight": torch.zeros(24)}, r"lm_head\.weight is \[24\], wanted 2 axes"),
    "d2t of two axes": ("eagle3", {}, {"d2t": torch.zeros(24, 1, dtype=torch.int64)}, r"d2t is \[24, 1\], wanted \[24\]"),
    "d2t of no axis": ("eagle3", {}, {"d2t": torch.tensor(0)}, r"d2t is \[\], wanted \[24\]"),
    "d2t of fractions": ("eagle3", {}, {"d2t": torch.zeros(24)}, "d2t is float32, wanted whole numbers"),
    **{
        f"eagle3 as {kind}": ("eagle3", {"kind": kind}, {}, "EAGLE-3's heads alone")
        for kind in ("msd", "vispec", "dream", "massv")
    },
    **{f"{kind} compressed": (kind, NONE, {}, "only SpecVLM's head") for kind in ("eagle3", "msd", "vispec", "dream", "massv")},
    "nan": ("eagle1", {}, {"fc.bias": torch.tensor([float("nan")] + 15 * [0.0])}, "fc.bias holds NaN or infinity"),
    "infinity": ("msd", {}, {"fc.bias": torch.tensor([float("-inf")] + 15 * [0.0])}, "fc.bias holds NaN or infinity"),
    "a gate of nan": ("select", {}, {"compressor.gate.out.bias": torch.full((6,), float("nan"))}, "gate.out.bias holds NaN"),
    "squares of no grid": ("select", squared(7), {}, "7 rows of a frame are no square of patches"),
    "squares of unknown frames": ("select", squared(0), {}, "squares cannot be without frame"),
    "queries on a grid": ("select", squared(5, kind="resample"), {}, "resample with grid True cannot be"),
    "a maximum in a row": ("select", squared(5, kind="max", grid=False), {}, "max with grid False cannot be"),
    "a grid of text": ("select", squared(5, grid="yes"), {}, "grid 'yes' cannot be"),
    "pooling by importance": ("select", squared(5, learned=True), {}, "only prune has an importance"),
    "a picture of text": ("select", {"compressor": {**NONE["compressor"], "picture": 1}}, {}, "picture of the compressor is 1"),
    "a yes among ranks": ("eagle1", {"ranks": [True]}, {}, "wanted shares of 1"),
    "ranks that add up to more": ("eagle1", {"ranks": [[0.9, 0.9]]}, {}, "wanted shares of 1"),
    "a rank between levels": ("eagle1", {"ranks": [[0.5], 0.5]}, {}, "wanted shares of 1"),
    "ranks of 65 levels": ("eagle1", {"ranks": 65 * [[0.5]]}, {}, "wanted shares of 1"),
    "pooling over no frames": ("select", over(0), {}, "pool over 0 frames cannot be"),
    "frames of unknown rows": ("select", over(3), {}, r"config.json: eventspec.compressor: pool over frames and squares"),
    "frames of a number as text": ("select", over(3, "65"), {}, "frame is '65', wanted the rows of a frame"),
    "frames of too many rows": ("select", over(3, 10**400), {}, "frame is 1000"),
    "more ranks than names": ("eagle3", {"ranks": [25 * [0.04]]}, {}, "for up to 24 ranks"),
    "a kind that is a list": ("msd", {"kind": ["msd"]}, {}, "kind is .*, wanted one of"),
    "a compressor that is a list": ("select", {"compressor": [1]}, {}, "wanted mode, and options"),
    "ways that do not add": (
        "eagle1",
        {"compressor": {"mode": "weighted", "options": [{"kind": "prune", "size": 2}, {"kind": "resample", "size": 2}]}},
        {},
        "weighted needs branches of one ratio",
    ),
    "no row left": (
        "eagle1",
        {"compressor": {"mode": "select", "options": [{"kind": "pool", "size": 0}]}},
        {},
        "leaves no visual token",
    ),
    "too many ways": (
        "eagle1",
        {"compressor": {**NONE["compressor"], "options": 17 * [{"kind": "none", "size": 1}]}},
        {},
        "17 branches",
    ),
}


@pytest.mark.parametrize("how", CONTRADICTIONS)
def test_contradictions_and_numbers_that_are_none_are_said_in_one_line(how: str, tmp_path: Path) -> None:
    kind, own, tensors, told = CONTRADICTIONS[how]
    save_head(KINDS[kind](), tmp_path, target())
    with pytest.raises(BadCheckpoint, match=told) as error:
        load_head(changed(tmp_path, own, tensors), target())
    assert "\n" not in str(error.value)


def test_the_largest_compressor_takes_no_memory_before_its_tensors_are_found_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_head(KINDS["eagle1"](), tmp_path, target())
    made = list[Elastic]()
    monkeypatch.setattr(Elastic, "from_json", classmethod(lambda cls, width, data: made.append(real(width, data)) or made[-1]))
    ways = [{"kind": "convolve", "size": 4096}, {"kind": "resample", "size": 4096}]
    with pytest.raises(BadCheckpoint, match="missing"):
        load_head(changed(tmp_path, {"compressor": {"mode": "concat", "options": ways}}), target())
    assert {parameter.device.type for parameter in made[0].parameters()} == {"meta"}


real = Elastic.from_json


@pytest.mark.parametrize(
    ("ranks", "read"), [([], ()), ([0, 0.0], ()), ([[]], ()), ([[0.0], [1.0]], ()), ([0.5, 0.25], ((0.5, 0.25),))]
)
def test_ranks_of_all_levels_alike_and_ranks_that_say_nothing(ranks: list[Any], read: Any, tmp_path: Path) -> None:
    save_head(KINDS["ranks"](), tmp_path, target())
    assert load_head(changed(tmp_path, {"ranks": ranks}), target()).rates == read


def test_a_compressed_head_is_read_from_a_bin_as_well(tmp_path: Path) -> None:
    made, path = KINDS["select"](), tmp_path / "model.safetensors"
    save_head(made, tmp_path, target())
    torch.save(load_file(path), tmp_path / "pytorch_model.bin")
    path.unlink()
    found = load_head(tmp_path, target()).head.state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in made.head.state_dict().items())
