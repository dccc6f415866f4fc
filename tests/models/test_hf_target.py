"""transformers' own classes as targets: tiny random checkpoints, and transformers' own `generate` as the judge."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import Qwen2VLImageProcessorPil

from eventspec.cli import run
from eventspec.core import BadCheckpoint, BadInput, Budget, Proposal, Request, Sampling, Trace, Verdict
from eventspec.engine.tree import BadProposal
from eventspec.drafters import Chains
from eventspec.models import hf_target
from eventspec.models.folder import describe, load_folder
from eventspec.models.hf_session import HfLanguage, HfSession, HfTarget, Prompt
from eventspec.models.loading import Loading
from eventspec.pairs import Pair, generate, load_folders
from eventspec.pairs.pair import DATA
from eventspec.recordings import Recording
from eventspec.video.sampling import uniform_indices

MARKS = ("<pad>", "<s>", "</s>", "<image>", "<video>", "<|begin|>", "<|end|>", "<|stop|>")
PAD, BOS, EOS, IMAGE, VIDEO, BEGIN, END, STOP = range(256, 264)
ROWS = 270
IDS = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
MEDIA = {"image_token_id": IMAGE, "video_token_id": VIDEO}
TEXT = dict(vocab_size=ROWS, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, **IDS)
TEXT |= dict(num_key_value_heads=2, max_position_embeddings=512, rope_parameters={"rope_type": "default", "rope_theta": 1e4})
CLIP = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, image_size=28, patch_size=14)
QUESTION = "is the car on the way"
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:{% for c in m.content %}{% if c.type == 'image' %}@{% else %}{{ c.text }}{% endif %}"
    "{% endfor %}{% endfor %} answer:"
)
SHARED = Path(__file__).parents[2].parent / "shared/goldens"


# --------------------------------------------------------------------------------------------------------- tiny checkpoints
def _llava(text: Any) -> Any:
    vision = hf.CLIPVisionConfig(**CLIP)
    config = hf.LlavaConfig(vision_config=vision, text_config=text, image_token_index=IMAGE, image_seq_length=4)
    return hf.LlavaForConditionalGeneration(config)


def _onevision() -> Any:
    parts = {"vision_config": hf.SiglipVisionConfig(**CLIP), "text_config": hf.Qwen2Config(**TEXT)}
    ids = {"image_token_index": IMAGE, "video_token_index": VIDEO}
    return hf.LlavaOnevisionForConditionalGeneration(
        hf.LlavaOnevisionConfig(**parts, **ids, image_grid_pinpoints=[[28, 28], [56, 28]])
    )


def _qwen() -> Any:
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
    vision = dict(depth=2, hidden_size=32, intermediate_size=48, num_heads=2, out_hidden_size=32, patch_size=14)
    vision |= dict(window_size=56, fullatt_block_indexes=[1])
    special = {**MEDIA, "vision_start_token_id": BEGIN, "vision_end_token_id": END}
    config = hf.Qwen2_5_VLConfig(text_config={**TEXT, "rope_parameters": rope}, vision_config=vision, **special)
    return hf.Qwen2_5_VLForConditionalGeneration(config)


def _kinds() -> dict[str, tuple[Callable[[], Any], Any, dict[str, Any], str]]:
    """Model, image processor, fields of processor_config.json, and what stands for a picture in the template."""
    small = {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}}
    clip = hf.CLIPImageProcessorPil(**small)
    llava = {"processor_class": "LlavaProcessor", "patch_size": 14, "vision_feature_select_strategy": "default"}
    llava["num_additional_image_tokens"] = 1
    several = hf.LlavaOnevisionImageProcessorPil(size={"height": 28, "width": 28}, image_grid_pinpoints=[[28, 28], [56, 28]])
    one = {"processor_class": "LlavaOnevisionProcessor", "num_image_tokens": 4, "vision_feature_select_strategy": "full"}
    qwen = Qwen2VLImageProcessorPil(min_pixels=28 * 28, max_pixels=56 * 56)
    around = "<|begin|><image><|end|>"
    window = hf.MistralConfig(**TEXT, sliding_window=12)
    return {
        "llava": (lambda: _llava(hf.LlamaConfig(**TEXT)), clip, llava, "<image>"),
        "onevision": (_onevision, several, one, "<image>"),
        "qwen": (_qwen, qwen, {"processor_class": "Qwen2_5_VLProcessor"}, around),
        "window": (lambda: _llava(window), clip, llava, "<image>"),
    }


def written(folder: Path, kind: str, seed: int = 5) -> Path:
    make, pictures, settings, place = _kinds()[kind]
    model = make().eval()
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.requires_grad_(False).named_parameters():
        weight.normal_(0.0, 0.5 if "language" in name or "head" in name else 0.15, generator=generator)
        if "norm" in name and not name.endswith("bias"):
            weight.add_(1.0)
    model.generation_config = hf.GenerationConfig(**{**IDS, "eos_token_id": [EOS, STOP]})
    model.save_pretrained(folder)
    pictures.save_pretrained(folder)
    (folder / "processor_config.json").write_text(json.dumps(settings))
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in MARKS])
    marks = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "image_token": "<image>", "video_token": "<video>"}
    hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **marks).save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE.replace("@", place))
    return folder


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def get(kind: str) -> Path:
        if kind not in made:
            made[kind] = written(tmp_path_factory.mktemp(kind), kind)
        return made[kind]

    return get


@pytest.fixture(scope="module")
def recording() -> Recording:
    return Recording.open(DATA / "clips/davis346_traffic_1s")


class Hostile:
    """Random trees around the truth: right and wrong tokens, repeated siblings, deep chains."""

    name, taps, concurrent = "hostile", (), False

    def __init__(self, truth: list[int], seed: int) -> None:
        self.truth, self.rng = truth, np.random.default_rng(seed)
        self.said = 0

    def open(self, request: Request, target: object, trace: Trace) -> Hostile:
        self.said = 0
        return self

    def propose(self, budget: Budget) -> Proposal:
        tokens, parents, depth = list[int](), list[int](), list[int]()
        for node in range(int(self.rng.integers(0, min(budget.nodes, 10) + 1))):
            open_ends = [-1, *(n for n in range(node) if depth[n] + 1 < budget.levels)]
            parent = open_ends[-1] if self.rng.random() < 0.6 else int(self.rng.choice(open_ends))
            level = 0 if parent < 0 else depth[parent] + 1
            right = self.rng.random() < 0.7 and self.said + level < len(self.truth)
            tokens.append(self.truth[self.said + level] if right else int(self.rng.integers(256)))
            parents.append(parent)
            depth.append(level)
        return Proposal(np.array(tokens, np.int64), np.array(parents, np.int64), origin=self.name)

    def observe(self, verdict: Verdict, scores: object) -> None:
        self.said += len(verdict.tokens)


def answered(pair: Pair, recording: Recording, method: str = "autoregressive", **settings: Any) -> tuple[list[int], Trace]:
    result = generate(pair, recording, QUESTION, method, max_new_tokens=20, **settings)
    pair.lanes.close()
    return result.token_ids, result.trace


def asked(recording: Recording, **sampling: Any) -> Request:
    assert recording.video is not None
    return Request(QUESTION, None, recording.video, Sampling(**sampling))


# -------------------------------------------------------------------------------------------------------------- identity
KINDS = ("llava", "onevision", "qwen", "window")


@pytest.mark.parametrize("kind", KINDS)
def test_the_answer_is_that_of_transformers_generate(
    kind: str, checkpoint: Callable[[str], Path], recording: Recording
) -> None:
    pair = load_folders(checkpoint(kind), method="autoregressive", how=Loading(frames=2))
    found, trace = answered(pair, recording)
    opened = hf_target._open(checkpoint(kind), Loading())
    frames = recording.video.frames[uniform_indices(len(recording.video.frames), 2)]  # type: ignore[union-attr]
    inputs = hf_target._inputs(opened, QUESTION, frames)
    told = opened.model.generate(**inputs, max_new_tokens=20, do_sample=False, suppress_tokens=list(pair.banned))
    assert found == told[0, inputs["input_ids"].shape[1] :].tolist()
    assert len(set(found)) > 3
    assert trace.sizes["prompt"] == inputs["input_ids"].shape[1]


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.8, "seed": 1}, {"temperature": 1.5, "seed": 2}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_hostile_trees_change_nothing(
    kind: str, settings: dict[str, Any], checkpoint: Callable[[str], Path], recording: Recording
) -> None:
    pair = load_folders(checkpoint(kind), method="autoregressive", how=Loading(frames=2))
    truth, _ = answered(pair, recording, **settings)
    accepted = 0
    for seed in range(3):
        drafter: Any = Hostile(truth, seed)
        pair.drafters["ngram"] = Chains(drafter) if kind == "window" else drafter
        found, trace = answered(pair.on("one"), recording, "ngram", **settings)
        assert found == truth
        assert not any("hostile" in note for note in trace.notes)
        accepted += trace.accepted
    assert accepted > 5


# --------------------------------------------------------------------------------------------------------------- sessions
def whole(target: HfTarget, request: Request, said: list[int]) -> HfSession:
    """A session that has read the prompt and an answer in one forward of its own."""
    prompt = target.prompts(request, Trace(), "target")
    first = int(prompt.positions.max()) + 1
    places = torch.arange(first, first + len(said)).expand(len(prompt.positions), -1)
    rows = torch.cat((prompt.rows, target.language.embed(torch.tensor(said))))
    session = HfSession(target.language, target.language.new_cache(), Prompt(rows, torch.cat((prompt.positions, places), 1)), 0)
    session.read(len(rows))
    return session


@pytest.mark.parametrize("kind", ["llava", "onevision", "qwen"])
@pytest.mark.parametrize("tail", [1, 7, 1000])
@torch.inference_mode()
def test_after_a_verdict_the_cache_is_that_of_a_fresh_prefill(
    kind: str, tail: int, checkpoint: Callable[[str], Path], recording: Recording
) -> None:
    target: Any = load_folder(checkpoint(kind), Loading(frames=2)).target
    request = asked(recording)
    session = target.prefill(request, tail, Trace())
    tree = Proposal(np.array([40, 50, 60, 70, 80]), np.array([-1, -1, 1, 0, 2]))
    first = session.score(tree)
    session.score(Proposal.chain([1, 2, 3]))  # never followed by a verdict
    twin = session.fork()
    again = session.score(tree)
    torch.testing.assert_close(again.logits, first.logits, rtol=1e-4, atol=1e-4)
    head = target.language.model.get_output_embeddings()
    torch.testing.assert_close(head(again.features), again.logits)
    session.commit(Verdict(np.array([1, 2, 4]), np.array([50, 60, 80, 90])))
    fresh = whole(target, request, [50, 60, 80])
    for mine, yours in zip(session.cache.layers, fresh.cache.layers, strict=True):
        torch.testing.assert_close(mine.keys, yours.keys, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(mine.values, yours.values, rtol=1e-4, atol=1e-4)
    twin.score(Proposal.chain([50, 60, 80, 90]))
    twin.commit(Verdict(np.array([0, 1, 2]), np.array([50, 60, 80, 90])))
    torch.testing.assert_close(session.score(tree).logits, twin.score(tree).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("proposal", [Proposal.chain([ROWS]), Proposal.chain([1, 1 << 40])])
@torch.inference_mode()
def test_ids_without_a_row_are_refused(proposal: Proposal, checkpoint: Callable[[str], Path], recording: Recording) -> None:
    session = load_folder(checkpoint("llava"), Loading(frames=1)).target.prefill(asked(recording), 1, Trace())
    with pytest.raises(BadProposal):
        session.score(proposal)


@torch.inference_mode()
def test_llavas_inputs_are_those_of_its_own_processor(checkpoint: Callable[[str], Path], recording: Recording) -> None:
    from PIL import Image

    folder, frame = checkpoint("llava"), recording.video.frames[:1]  # type: ignore[union-attr]
    ours = hf_target._inputs(hf_target._open(folder, Loading()), QUESTION, frame)
    content = [{"type": "image", "image": Image.fromarray(frame[0])}, {"type": "text", "text": QUESTION}]
    theirs = hf.AutoProcessor.from_pretrained(folder).apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
    )
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
