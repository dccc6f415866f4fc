"""Parity with the published code: the shared goldens, and folders of our own whose truth comes from transformers' modules.

Our own cover what the shared ones do not: .bin shards, special event tokens, a CLIP folder that differs from the checkpoint's
tower, and both other tensor layouts of Video-LLaVA.
"""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import CLIPVisionConfig, CLIPVisionModel, LlamaConfig, LlamaForCausalLM, VideoLlavaForConditionalGeneration

from eventspec.cli import run
from eventspec.core import BadCheckpoint, BadInput
from eventspec.experiments.parity import Parity, parity
from eventspec.models.eventgpt import eventgpt_vocabulary

if TYPE_CHECKING:  # never imported: other rooms may have a conftest of their own
    from conftest import Folders

SHARED = Path(__file__).parents[2].parent / "shared/goldens"
LIMITS = {"image": 0.0, "pixel": 1e-3, "clip": 1e-4, "features": 1e-4, "embeds": 1e-4, "aggregated": 1e-4, "logits": 1e-3}
CLIP_MEAN, CLIP_STD = np.array([0.48145466, 0.4578275, 0.40821073]), np.array([0.26862954, 0.26130258, 0.27577711])
EVENT_PARTS = ("image", "pixel", "clip", "aggregated", "embeds", "logits")
QUESTION = "is the car on the way"
NEW = 12


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    torch.set_num_threads(1)


def holds(found: Parity, *parts: str) -> None:
    assert found.greedy_identical
    assert not found.not_compared
    for part in parts:
        near = {n: t["max_abs"] for n, t in found.tensors.items() if part in n and "bfloat16" not in n}
        assert near
        assert max(near.values()) <= LIMITS[part], near


@pytest.mark.parametrize("name", ["eventgpt", "video_llava"])
def test_the_published_code_is_met(name: str) -> None:
    if not (SHARED / name).exists():
        pytest.skip("the shared goldens are not beside this checkout")
    parts = (
        ("image", "pixel", "clip", "aggregated", "embeds", "logits") if name == "eventgpt" else ("pixel", "features", "logits")
    )
    found = parity(SHARED / name)
    holds(found, *parts)
    assert found.tensors[next(n for n in found.tensors if n.endswith("input_ids"))]["exact"]


# ---------------------------------------------------------------------------------------------------------- EventGPT's truth
def events(seed: int = 0, count: int = 401) -> dict[str, np.ndarray[Any, Any]]:
    """Events that spread further with time, so that the images of upstream have different sizes."""
    rng = np.random.default_rng(seed)
    grown = np.linspace(20, 60, count)
    x, y = (rng.random(count) * grown).astype(np.uint16), (rng.random(count) * grown * 0.7).astype(np.uint16)
    return {"x": x, "y": y, "p": rng.integers(0, 2, count).astype(np.uint8), "t": np.sort(rng.integers(0, 50_000, count))}


def drawn(columns: dict[str, np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """Five images, event by event."""
    each, images = len(columns["x"]) // 5, []
    for i in range(5):
        place = slice(i * each, (i + 1) * each if i < 4 else None)
        x, y, p = (columns[name][place] for name in "xyp")
        image = np.full((y.max() + 1, x.max() + 1, 3), 255, np.uint8)
        for column, row, on in zip(x, y, p, strict=True):
            image[row, column] = (255, 0, 0) if on else (0, 0, 255)
        images.append(image)
    return images


def clip_pixels(image: np.ndarray[Any, Any], size: int) -> torch.Tensor:
    """CLIP's processing on Pillow, one plain step after the other."""
    height, width = image.shape[:2]
    scale = size / min(height, width)
    wide = (size, int(size * height / width)) if width < height else (int(size * width / height), size)
    assert scale > 0
    picture = Image.fromarray(image).resize(wide, Image.Resampling.BICUBIC)
    left, top = (wide[0] - size) // 2, (wide[1] - size) // 2
    pixels = np.asarray(picture.crop((left, top, left + size, top + size))) / 255
    return torch.from_numpy(((pixels - CLIP_MEAN) / CLIP_STD).transpose(2, 0, 1)).float()


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.bin")):
        found.update(torch.load(path, weights_only=True))
    return {name: tensor.float() for name, tensor in found.items()}


@torch.inference_mode()
def eventgpt_truth(checkpoint: Path, columns: dict[str, np.ndarray[Any, Any]]) -> tuple[list[Any], dict[str, Any]]:
    """Images, and everything a golden file holds, through transformers' CLIP and Llama."""
    config = json.loads((checkpoint / "config.json").read_text())
    clip = json.loads((checkpoint.parent / "clip/config.json").read_text())
    tensors = tensors_of(checkpoint)
    tower = CLIPVisionModel(CLIPVisionConfig(**clip)).eval()
    ours, known = "model.visual_tower.visual_tower.vision_model.", tower.state_dict()
    state = {name.removeprefix(ours): tensor for name, tensor in tensors.items() if name.startswith(ours)}
    tower.load_state_dict({name: state[name.removeprefix("vision_model.")] for name in known if "position_ids" not in name})
    language = LlamaForCausalLM(LlamaConfig(**config)).eval()
    kept = {name: tensor for name, tensor in tensors.items() if name in language.state_dict()}
    language.load_state_dict(kept)
    images = drawn(columns)
    pixels = torch.stack([clip_pixels(image, clip["image_size"]) for image in images])
    hidden = tower(pixels.bfloat16().float(), output_hidden_states=True).hidden_states[-1]
    first, second = (
        (tensors[f"model.visual_projector.{i}.weight"], tensors[f"model.visual_projector.{i}.bias"]) for i in (0, 2)
    )
    linear = torch.nn.functional.linear
    projected = linear(torch.nn.functional.gelu(linear(hidden, *first)), *second)
    adapted = linear(projected, tensors["model.feature_adaptor.weight"], tensors["model.feature_adaptor.bias"])
    aggregated = torch.cat((adapted.mean(1), adapted.mean(0)))
    before, after = event_ids(checkpoint)
    embed = language.get_input_embeddings()
    prompt = torch.cat((embed(torch.tensor(before)), aggregated, embed(torch.tensor(after))))[None]
    logits = language(inputs_embeds=prompt).logits[0]
    said = language.generate(
        inputs_embeds=prompt,
        attention_mask=torch.ones(prompt.shape[:2]),
        max_new_tokens=NEW,
        do_sample=False,
        eos_token_id=None,
    )
    return images, {
        "input_ids": np.array([[*before, -200, *after]]),
        "clip_last_hidden": hidden.numpy(),
        "aggregated": aggregated.numpy(),
        "inputs_embeds": prompt.numpy(),
        "logits": logits.numpy(),
        "generated_ids": np.array([1, *said[0].tolist()]),
        "pixels": pixels,
    }


def event_ids(checkpoint: Path) -> tuple[list[int], list[int]]:
    """As transformers' slow tokenizer splits: special tokens first, the text behind them without a space of its own."""
    sentencepiece = pytest.importorskip("sentencepiece")
    model = sentencepiece.SentencePieceProcessor(model_file=str(checkpoint / "tokenizer.model"))
    vocabulary = eventgpt_vocabulary(checkpoint)
    start, end = vocabulary.id_of("<ev_start>"), vocabulary.id_of("<ev_end>")
    assert (start, end) == (len(model), len(model) + 1)
    system = "A chat between a curious human and an artificial intelligence assistant. The assistant gives helpful, detailed, "
    before = model.encode(system + "and polite answers to the human's questions. USER: ")
    behind = model.encode(f"<unk>\n{QUESTION} ASSISTANT:")[len(model.encode("<unk>")) :]
    return [1, *before, start], [end, *behind]


@pytest.fixture
def eventgpt_goldens(folders: Folders, tmp_path: Path) -> Path:
    shutil.copytree(folders.eventgpt.parent, tmp_path, dirs_exist_ok=True)
    columns = events()
    with (tmp_path / "events_own.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|O", "fortran_order": False, "shape": ()})
        pickle.dump(np.array(columns, dtype=object), file, protocol=3)
    images, truth = eventgpt_truth(tmp_path / "checkpoint", columns)
    pixels = truth.pop("pixels")
    bits = pixels.bfloat16().view(torch.int16).numpy().view(np.uint16)
    seen = {f"image_{i}": image for i, image in enumerate(images)}
    np.savez(tmp_path / "images_own.npz", pixel_values_bf16_bits=bits, **seen)
    np.savez(tmp_path / "golden_own_float32.npz", **truth)
    (tmp_path / "meta.json").write_text(json.dumps({"cases": {"own": {"query": QUESTION}}}))
    return tmp_path


def test_bin_shards_special_event_tokens_and_another_clip_folder(eventgpt_goldens: Path) -> None:
    found = parity(eventgpt_goldens)
    holds(found, *EVENT_PARTS)
    assert found.tensors["own/input_ids"]["exact"]
    assert found.tensors["own/pixel_values_bf16_bits"]["exact"]


def test_without_a_tower_in_the_shards_the_clip_folder_is_taken(eventgpt_goldens: Path) -> None:
    checkpoint = eventgpt_goldens / "checkpoint"
    before = parity(eventgpt_goldens)
    for path in checkpoint.glob("*.bin"):
        kept = {name: t for name, t in torch.load(path, weights_only=True).items() if "visual_tower" not in name}
        torch.save(kept, path)
    after = parity(eventgpt_goldens)
    assert before.tensors["own/clip_last_hidden"]["max_abs"] < 1e-4 < after.tensors["own/clip_last_hidden"]["max_abs"]


def test_a_wrong_weight_is_seen(eventgpt_goldens: Path) -> None:
    """The negative control: parity would be worth nothing if it always held."""
    path = eventgpt_goldens / "checkpoint/pytorch_model-00001-of-00002.bin"
    tensors = torch.load(path, weights_only=True)
    name = next(name for name in tensors if "mlp" in name and "layers.0" in name and "visual" not in name)
    torch.save({**tensors, name: tensors[name] + 0.5}, path)
    found = parity(eventgpt_goldens)
    assert found.tensors["own/logits"]["max_abs"] > 1e-2
    assert found.tensors["own/aggregated"]["max_abs"] < 1e-4


# -------------------------------------------------------------------------------------------------------- Video-LLaVA's truth
def in_memory(name: str) -> str:
    """The layout that transformers 5 has in memory."""
    if name == "language_model.lm_head.weight":
        return "lm_head.weight"
    return "model." + name.replace("tower.vision_model.", "tower.").replace("language_model.model.", "language_model.")


def mixed(name: str) -> str:
    """The layout that transformers 5 writes for a model that it made itself."""
    return name.replace("tower.vision_model.", "tower.")


@pytest.fixture
def video_goldens(folders: Folders, tmp_path: Path) -> Path:
    checkpoint = Path(shutil.copytree(folders.video_llava, tmp_path / "checkpoint"))
    frames = np.random.default_rng(1).integers(0, 256, (3, 28, 28, 3), dtype=np.uint8)
    np.savez(tmp_path / "video_own.npz", frames=frames)
    model = VideoLlavaForConditionalGeneration.from_pretrained(checkpoint, dtype=torch.float32).eval()
    pixels = torch.from_numpy(((frames / 255 - CLIP_MEAN) / CLIP_STD).transpose(0, 3, 1, 2)).float()
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    ids = [1, *tokenizer.encode(f"USER: <video>\n{QUESTION} ASSISTANT:", add_special_tokens=False).ids]
    video = model.config.video_token_index if hasattr(model.config, "video_token_index") else model.config.video_token_id
    at = ids.index(video)
    ids = [*ids[:at], *[video] * 15, *ids[at + 1 :]]
    given = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
    with torch.inference_mode():
        logits = model(**given, pixel_values_videos=pixels[None]).logits[0]
        said = model.generate(**given, pixel_values_videos=pixels[None], max_new_tokens=NEW, do_sample=False, eos_token_id=None)
    ends = pixels[[0, -1]].half().numpy()
    np.savez(
        tmp_path / "golden_own.npz",
        input_ids=np.array([ids]),
        pixel_values_videos_f16_frame0_and_last=ends,
        logits_tail=logits[-8:].numpy(),
        generated_ids=said[0, len(ids) :].numpy(),
    )
    (tmp_path / "meta.json").write_text(json.dumps({"cases": {"own": {"prompt": f"USER: <video>\n{QUESTION} ASSISTANT:"}}}))
    return tmp_path


@pytest.mark.parametrize("layout", [str, in_memory, mixed], ids=["hub", "in memory", "written by 5.x"])
def test_all_three_tensor_layouts_give_transformers_answers(video_goldens: Path, layout: Any) -> None:
    path = video_goldens / "checkpoint/model.safetensors"
    save_file({layout(name): tensor for name, tensor in load_file(path).items()}, path)
    found = parity(video_goldens)
    holds(found, "pixel", "logits")
    assert found.tensors["own/input_ids"]["exact"]


# ------------------------------------------------------------------------------------------------------------- the command
def test_the_command_prints_one_json_object(video_goldens: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "parity", str(video_goldens), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["greedy_identical"] is True
    assert set(told["tensors"]["own/logits_tail"]) == {"max_abs", "exact"}
    golden = dict(np.load(video_goldens / "golden_own.npz"))
    golden["generated_ids"][3] += 1
    np.savez(video_goldens / "golden_own.npz", **golden, never_seen=np.zeros(3))
    assert run(["models", "parity", str(video_goldens), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["greedy_identical"] is False
    assert told["not_compared"] == ["own/generated_ids", "own/never_seen"]


def test_a_folder_that_holds_no_goldens_is_refused(video_goldens: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"meta\.json and checkpoint/"):
        parity(tmp_path / "nowhere")
    (video_goldens / "video_own.npz").write_bytes(b"PK")
    with pytest.raises(BadInput, match=r"video_own\.npz cannot be read"):
        parity(video_goldens)
    (video_goldens / "meta.json").write_text('{"cases": []}')
    with pytest.raises(BadInput, match="table of cases"):
        parity(video_goldens)
    (video_goldens / "meta.json").write_text('{"cases": {"own": {}}}')
    (video_goldens / "checkpoint/config.json").unlink()
    with pytest.raises(BadCheckpoint, match=r"config\.json is missing"):
        parity(video_goldens)
