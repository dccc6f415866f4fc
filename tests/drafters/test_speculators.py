"""EAGLE-3 heads in the layout of `speculators`: round trips, what is refused, and the package itself beside our own passes.

The package needs an environment of its own (1.5 GB; torchvision's builds break a torch without CUDA):
    python -m venv THERE && echo torch==2.13.0 > pins
    THERE/bin/pip install -c pins 'speculators>=0.9,<0.10' 'transformers<=5.19'
    THERE/bin/pip uninstall -y torchvision torchaudio
    EVENTSPEC_SPECULATORS_PYTHON=THERE/bin/python pytest tests/drafters/test_speculators.py
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from eventspec.core import BadCheckpoint, BadInput
from eventspec.drafters import (
    Eagle3Config,
    Eagle3Head,
    EagleConfig,
    EagleHead,
    TrainedHead,
    Verifier,
    export_speculators,
    load_head,
    save_head,
)
from eventspec.drafters.heads.checkpoint import exact_dtype
from eventspec.drafters.heads.eagle3 import usual_taps
from eventspec.models import weights
from eventspec.models.configuration import llama_json, pretty
from eventspec.nn import KVCache, Llama, LlamaConfig
from eventspec.nn.llama import rope_tables

SIZES = LlamaConfig(64, 32, 48, 8, 4, 2, max_position_embeddings=128)
ONE = replace(SIZES, num_hidden_layers=1)
NOWHERE = Verifier("nobody/nothing", ("LlamaForCausalLM",))
HEADS = ("plain", "normed")


def random(module: Any, seed: int) -> Any:
    """With values that fp16 holds exactly."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        centre = 1.0 if parameter.dim() == 1 else 0.0
        parameter.data = torch.randn(parameter.shape, generator=generator).mul_(0.3).add_(centre).half().float()
    return module.requires_grad_(False).eval()


@pytest.fixture(scope="module")
def target() -> Llama:
    made = random(Llama(SIZES), 0)
    assert isinstance(made, Llama)
    return made


def head_of(kind: str = "plain", drafts: int = 24) -> Eagle3Head:
    head = Eagle3Head(Eagle3Config(ONE, usual_taps(8), drafts, kind == "normed"))
    head.vocab_ids.copy_(torch.randperm(64, generator=torch.Generator().manual_seed(1))[:drafts].sort().values)
    made = random(head, HEADS.index(kind) + 1)
    assert isinstance(made, Eagle3Head)
    return made


def same(ours: Eagle3Head, theirs: Eagle3Head) -> None:
    assert theirs.config == ours.config
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    for name, tensor in ours.state_dict().items():
        assert torch.equal(tensor, theirs.state_dict()[name]), name


def loaded(folder: Path, target: Llama) -> Eagle3Head:
    head = load_head(folder, target).head
    assert isinstance(head, Eagle3Head)
    return head


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("drafts", [24, 64])
def test_an_exported_head_is_read_back_bit_by_bit(kind: str, drafts: int, target: Llama, tmp_path: Path) -> None:
    made = head_of(kind, drafts)
    export_speculators(TrainedHead(made), tmp_path, target, NOWHERE)
    same(made, loaded(tmp_path, target))
    names = load_file(tmp_path / "model.safetensors").keys()
    assert {"layers.0.hidden_norm.weight", "lm_head.weight", "norm.weight", "fc.weight"} <= names
    assert ("d2t" in names, "t2d" in names) == (drafts < 64, drafts < 64), "the package has no tables for a whole vocabulary"


def test_both_layouts_hold_the_same_head(target: Llama, tmp_path: Path) -> None:
    export_speculators(TrainedHead(head_of()), tmp_path / "one", target, NOWHERE)
    save_head(load_head(tmp_path / "one", target), tmp_path / "two", target)
    save_head(TrainedHead(head_of()), tmp_path / "three", target)
    assert (tmp_path / "two/model.safetensors").read_bytes() == (tmp_path / "three/model.safetensors").read_bytes()
    assert (tmp_path / "two/config.json").read_text() == (tmp_path / "three/config.json").read_text()


def test_what_others_take_for_granted_is_written_out(target: Llama, tmp_path: Path) -> None:
    export_speculators(TrainedHead(head_of()), tmp_path, target, NOWHERE)
    written = json.loads((tmp_path / "config.json").read_text())
    assert (written["norm_before_residual"], written["eagle_aux_hidden_state_layer_ids"]) == (False, [2, 4, 5])
    assert written["transformer_layer_config"]["vocab_size"] == 64, "the target's"
    assert written["speculators_config"]["verifier"]["name_or_path"] == "nobody/nothing"
    del written["norm_before_residual"]
    (tmp_path / "config.json").write_text(json.dumps(written))
    assert not loaded(tmp_path, target).config.norm_before_residual, "as the package reads it"


def test_a_head_is_exported_in_the_precision_that_loses_nothing(target: Llama, tmp_path: Path) -> None:
    for dtype, number in ((torch.float16, 0.1), (torch.bfloat16, 1e-9), (torch.float32, 0.1)):
        made = head_of()
        made.fc.weight.data[0, 0] = torch.tensor(number).to(dtype)
        for parameter in made.parameters():
            parameter.data = parameter.data.to(dtype).float()
        assert exact_dtype(TrainedHead(made)) == dtype
        export_speculators(TrainedHead(made), tmp_path / str(dtype), target, NOWHERE, dtype)
        same(made, loaded(tmp_path / str(dtype), target))


@pytest.mark.parametrize(
    ("part", "change", "told"),
    [
        ("", {"speculators_model_type": "peagle"}, "speculators_model_type is 'peagle', wanted 'eagle3'"),
        ("", {"speculators_model_type": "dflash"}, "speculators_model_type is 'dflash', wanted 'eagle3'"),
        ("", {"norm_before_fc": True}, "norm_before_fc is True, wanted False"),
        ("", {"fc_norm": True}, "fc_norm is True, wanted False"),
        ("", {"norm_output": True}, "norm_output is True, wanted False"),
        ("", {"norm_before_residual": 1}, "norm_before_residual is 1, wanted true or false"),
        ("", {"draft_vocab_size": 32}, "draft_vocab_size is 32, wanted 24"),
        ("", {"target_hidden_size": 48}, "target_hidden_size is 48, wanted 32"),
        ("", {"eagle_aux_hidden_state_layer_ids": [2, 4, 9]}, "wanted ascending layers of the target, 0 to 8"),
        ("", {"eagle_aux_hidden_state_layer_ids": [2, 4]}, r"fc\.weight is \[32, 96\]"),
        ("", {"transformer_layer_config": None}, "transformer_layer_config is None"),
        ("transformer_layer_config", {"model_type": "qwen3"}, "model_type is 'qwen3', wanted 'llama'"),
        ("transformer_layer_config", {"model_type": None}, "model_type is None, wanted 'llama'"),
        ("transformer_layer_config", {"layer_types": ["sliding_attention"]}, "layer_types is"),
        ("transformer_layer_config", {"vocab_size": 65}, "vocab_size is 65, wanted 64"),
        ("transformer_layer_config", {"num_hidden_layers": 2}, "num_hidden_layers is 2, wanted 1"),
        ("transformer_layer_config", {"attention_bias": True}, "attention_bias is True"),
        ("transformer_layer_config", {"head_dim": 16}, "head_dim is 16"),
    ],
)
def test_what_our_head_does_not_do_is_refused_in_one_line(
    part: str, change: dict[str, Any], told: str, target: Llama, tmp_path: Path
) -> None:
    export_speculators(TrainedHead(head_of()), tmp_path, target, NOWHERE)
    config = json.loads((tmp_path / "config.json").read_text())
    (config[part] if part else config).update(change)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadCheckpoint, match=told) as error:
        load_head(tmp_path, target)
    assert "\n" not in str(error.value)


def test_a_head_without_its_own_vocabulary_is_incomplete(target: Llama, tmp_path: Path) -> None:
    """The package would fill lm_head from the target; with us it would pass for an EAGLE-1 head."""
    export_speculators(TrainedHead(head_of()), tmp_path, target, NOWHERE)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(BadCheckpoint, match=r"draft_vocab_size is 24, wanted None: there is no lm_head\.weight"):
        load_head(tmp_path, target)


def test_what_a_layout_has_no_place_for_is_not_exported(target: Llama, tmp_path: Path) -> None:
    eagle1 = TrainedHead(random(EagleHead(EagleConfig(ONE)), 0))
    whole = head_of(drafts=64)
    whole.vocab_ids = whole.vocab_ids.flip(0)
    cases: dict[str, Callable[[], None]] = {
        "reads no EAGLE-1": lambda: export_speculators(eagle1, tmp_path / "no", target, NOWHERE),
        "another order": lambda: export_speculators(TrainedHead(whole), tmp_path / "no", target, NOWHERE),
        "norm_before_residual": lambda: save_head(TrainedHead(head_of("normed")), tmp_path / "no", target),
    }
    for told, export in cases.items():
        with pytest.raises(BadInput, match=told):
            export()
    assert not (tmp_path / "no").exists()


THEIRS = """
import sys
import torch
from safetensors.torch import load_file, save_file
from speculators import SpeculatorModel
from speculators.convert import convert_model
from speculators.models.eagle3 import Eagle3SpeculatorConfig
from speculators.models.utils import resolve_target_layer_ids
from transformers import LlamaForCausalLM

folder, out = sys.argv[1], {}
inputs = load_file(f"{folder}/inputs.safetensors")
target = LlamaForCausalLM.from_pretrained(f"{folder}/target", dtype=torch.float32)
assert resolve_target_layer_ids(None, f"{folder}/target") == inputs["taps"].tolist()
assert resolve_target_layer_ids([0, 8], f"{folder}/target") == [0, 8]

def opened(name):
    config = Eagle3SpeculatorConfig.from_pretrained(f"{folder}/{name}")
    config.transformer_layer_config._attn_implementation = "eager"
    return SpeculatorModel.from_pretrained(f"{folder}/{name}", config=config)

@torch.no_grad()
def logits(model, ids):
    seen, found = target(ids, output_hidden_states=True).hidden_states, []
    tapped = torch.cat([seen[layer] for layer in model.target_layer_ids], -1)[:, :-1]
    hook = model.lm_head.register_forward_hook(lambda module, given, made: found.append(made))
    draft, = model(tapped, ids[:, 1:], torch.zeros_like(ids[:, 1:]), ttt_steps=1)
    hook.remove()
    assert torch.equal(draft, found[0].argmax(-1))
    return tapped[0], found[0][0]

for name in ("plain", "normed"):
    model = opened(name)
    assert not any(p.isnan().any() for p in model.parameters())
    out |= {f"{name}/{key}": value.clone() for key, value in model.state_dict().items()}
    model = model.float()
    for row, ids in enumerate(inputs["ids"]):
        out[f"tapped {row}"], out[f"{name} logits {row}"] = logits(model, ids[None])
    torch.manual_seed(9)
    for key, parameter in model.named_parameters():
        if not key.startswith(("verifier", "embed")):
            parameter.data = torch.randn_like(parameter) * 0.3 + (parameter.dim() == 1)
    model.save_pretrained(f"{folder}/back {name}")
    model = opened(f"back {name}")
    for row, ids in enumerate(inputs["ids"]):
        out[f"back {name} logits {row}"] = logits(model, ids[None])[1]
convert_model(model=f"{folder}/safeailab", verifier=f"{folder}/target", algorithm="eagle3", output_path=f"{folder}/converted",
              eagle_aux_hidden_state_layer_ids=inputs["taps"].tolist())
save_file({name: tensor.contiguous() for name, tensor in out.items()}, f"{folder}/out.safetensors")
"""


def read(head: Eagle3Head, target: Llama, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Ours for a text int64 [T]: tapped outputs [T - 1, F], and logits [T - 1, draft_vocab] through the drafting pass."""
    embeds, rows = target.embed(ids), len(ids)
    tapped = torch.cat(target.tapped(embeds[None], torch.arange(rows), rows, None, head.taps)[1], -1)[0, :-1]
    normed, x = head.fuse_inputs(embeds[1:], head.features(tapped))
    cos, sin = rope_tables(head.config.language, rows)
    cache, kernel = (
        KVCache(1, ONE.num_key_value_heads, ONE.head_dim, rows, torch.float32, torch.device("cpu")),
        head.kernel(target),
    )
    found = []
    for row in range(rows - 1):  # a pass gives the last pair's feature only
        one = slice(row, row + 1)
        found.append(kernel.read(normed[one], x[one], (cos[one], sin[one]), cache))
        cache.keep(1, [])
    return tapped, head.scores(torch.cat(found), target)


@pytest.fixture(scope="module")
def theirs(target: Llama, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Tensor], Tensor]:
    """A folder where the package has read our heads and written its own, what it computed, and the texts int64 [4, 48]."""
    python = os.environ.get("EVENTSPEC_SPECULATORS_PYTHON")
    if not python:
        pytest.skip("EVENTSPEC_SPECULATORS_PYTHON names no interpreter that has speculators 0.9")
    folder = tmp_path_factory.mktemp("theirs")
    (folder / "target").mkdir()
    sources = weights.llama_sources(SIZES, "", "model.", "lm_head.weight")
    weights.save(target, folder / "target/model.safetensors", sources, dtype=torch.float32)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "float32", **llama_json(SIZES)}
    (folder / "target/config.json").write_text(pretty(config))
    for kind in HEADS:
        where = Verifier(str(folder / "target"), ("LlamaForCausalLM",))
        export_speculators(TrainedHead(head_of(kind)), folder / kind, target, where)
    save_head(TrainedHead(head_of()), folder / "safeailab", target)
    ids = torch.randint(64, (4, 48), generator=torch.Generator().manual_seed(3))
    save_file({"ids": ids, "taps": torch.tensor(usual_taps(8))}, folder / "inputs.safetensors")
    command = [python, "-c", THEIRS, str(folder)]
    environment = {**os.environ, "PYTHONPATH": "", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder, load_file(folder / "out.safetensors"), ids


Theirs = tuple[Path, dict[str, Tensor], Tensor]


@pytest.mark.parametrize("kind", HEADS)
def test_the_package_reads_our_tensors_bit_by_bit(kind: str, theirs: Theirs) -> None:
    folder, found, _ = theirs
    written = load_file(folder / kind / "model.safetensors")
    assert len(written) == 15
    for name, tensor in written.items():
        assert torch.equal(found[f"{kind}/{name}"], tensor), name


@pytest.mark.parametrize("kind", HEADS)
def test_the_package_computes_what_our_drafting_pass_computes(kind: str, theirs: Theirs, target: Llama) -> None:
    _, found, texts = theirs
    for row, ids in enumerate(texts):
        tapped, logits = read(head_of(kind), target, ids)
        assert torch.allclose(tapped, found[f"tapped {row}"], atol=1e-4), "a layer is counted as transformers counts it"
        wanted = found[f"{kind} logits {row}"]
        assert torch.allclose(logits, wanted, atol=1e-3, rtol=1e-4)
        assert torch.equal(logits.argmax(-1), wanted.argmax(-1))
        other = read(head_of(HEADS[1 - HEADS.index(kind)]), target, ids)[1]
        assert not torch.allclose(other, wanted, atol=0.1), "the other head is seen to be another"


@pytest.mark.parametrize("kind", HEADS)
def test_we_compute_what_the_package_computes_with_a_head_it_wrote(kind: str, theirs: Theirs, target: Llama) -> None:
    folder, found, texts = theirs
    head = loaded(folder / f"back {kind}", target)
    assert (head.config.norm_before_residual, head.taps) == (kind == "normed", usual_taps(8))
    switched = Eagle3Head(replace(head.config, norm_before_residual=kind != "normed"))
    switched.load_state_dict(head.state_dict())
    for row, ids in enumerate(texts):
        wanted = found[f"back {kind} logits {row}"]
        logits = read(head, target, ids)[1]
        assert torch.allclose(logits, wanted, atol=1e-3, rtol=1e-4)
        assert torch.equal(logits.argmax(-1), wanted.argmax(-1))
        assert not torch.allclose(read(switched, target, ids)[1], wanted, atol=0.1), "the residual's norm is seen"


def test_the_package_converts_our_safeailab_folder_to_our_own_export(theirs: Theirs, target: Llama) -> None:
    folder, _, _ = theirs
    same(head_of(), loaded(folder / "converted", target))
