"""What transformers models cannot do is measured, limited or refused in one line; what they must not say is never said."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from eventspec.ask import generate
from eventspec.cli import run
from eventspec.core import BadCheckpoint, BadInput, Media, Request, Sampling, Trace
from eventspec.models.folder import load_folder
from eventspec.models.hf_session import HfLanguage
from eventspec.models.loading import LoadOptions
from eventspec.pairs import Pair, load_folders
from eventspec.pairs.pair_file import DATA
from eventspec.recordings import Recording

PAD, BOS, EOS, IMAGE, VIDEO, BEGIN, END, STOP = range(256, 264)  # the tokenizer of the tiny checkpoints: bytes, then marks
ROWS = 270
QUESTION = "is the car on the way"


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def recording() -> Recording:
    return Recording.open(DATA / "clips/davis346_traffic_1s")


def answered(pair: Pair, recording: Recording, method: str = "autoregressive", **settings: Any) -> tuple[list[int], Trace]:
    result = generate(pair, recording, QUESTION, method, max_new_tokens=20, **settings)
    pair.workers.close()
    return result.token_ids, result.trace


def asked(recording: Recording, **sampling: Any) -> Request:
    assert recording.video is not None
    return Request(Media(frames=recording.video), QUESTION, Sampling(**sampling))


# ------------------------------------------------------------------------------------------------------- limits, measured
def test_check_says_what_a_folder_can_do(checkpoint: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    wanted = {"llava": ("trees", 1), "onevision": ("trees", 1), "qwen": ("trees", 3), "window": ("chains only", 1)}
    for kind, (drafts, rows) in wanted.items():
        assert run(["models", "check", str(checkpoint(kind)), "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["drafts"], told["sees"]["position_rows"], told["embedding_rows"]) == (drafts, rows, ROWS)
        assert IMAGE in told["placeholders"]
    assert told["cache"].startswith("sliding window")


def test_a_model_that_ignores_tree_masks_gets_chains(
    checkpoint: Callable[[str], Path], recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = HfLanguage.step
    monkeypatch.setattr(
        HfLanguage, "step", lambda self, prompt, cache, mask, keep, taps=(): step(self, prompt, cache, None, keep)
    )
    pair = load_folders(checkpoint("llava"), method="ngram")
    assert not pair.target.limits.trees
    _, trace = answered(pair, recording, "ngram")
    assert "the target does not keep the branches of a tree apart: drafts are cut to chains" in trace.notes


def test_a_cache_that_cannot_be_cut_back_is_noticed(checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eventspec.models.hf_session.keep_rows", lambda cache, rows, path: None)
    with pytest.raises(BadCheckpoint, match="its cache is cut back: it cannot be a target"):
        load_folder(checkpoint("llava"))


def test_models_with_other_states_or_inputs_are_refused(checkpoint: Callable[[str], Path]) -> None:
    with pytest.raises(BadCheckpoint, match=r"its cache \(Linear\w+\) cannot be rolled back to what was accepted"):
        load_folder(checkpoint("linear"))
    with pytest.raises(BadCheckpoint, match=r"hands its language model .*deepstack_visual_embeds.*: it cannot be a target"):
        load_folder(checkpoint("deepstack"))


@pytest.mark.parametrize("method", ["autoregressive", "ngram"])
@pytest.mark.parametrize("settings", [{}, {"temperature": 1.5, "seed": 3}], ids=str)
def test_placeholders_of_pictures_are_never_said(
    method: str, settings: dict[str, Any], checkpoint: Callable[[str], Path], recording: Recording, tmp_path: Path
) -> None:
    """The head is bent so that the placeholder wins; without the ban the answer would be nothing else."""
    folder = Path(shutil.copytree(checkpoint("llava"), tmp_path / "bent"))
    tensors = load_file(folder / "model.safetensors")
    head = next(name for name in tensors if name.endswith("lm_head.weight"))
    tensors[head][IMAGE] = 8 * tensors[head][70]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    pair = load_folders(folder, method=method, how=LoadOptions(frames=1))
    assert pair.tokens.banned_ids == (IMAGE,)
    assert not set(answered(pair, recording, method, **settings)[0]) & set(pair.tokens.banned_ids)
    parts = replace(pair.parts, tokens=replace(pair.tokens, banned_ids=(), extra_eos_ids=()))
    bare = replace(pair, parts=parts)
    assert set(answered(bare, recording)[0]) & set(pair.tokens.banned_ids)


def test_both_ends_end_an_answer(checkpoint: Callable[[str], Path]) -> None:
    pair = load_folders(checkpoint("qwen"), method="autoregressive")
    assert pair.tokens.sampling(Sampling()).stop_ids == (EOS, STOP)


# ---------------------------------------------------------------------------------------------------------------- bad input
def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    capsys.readouterr()  # what making a checkpoint printed
    code = run([str(word) for word in words])
    said = capsys.readouterr()
    assert (code, said.out, said.err.count("\n")) == (2, "", 1), said.err
    return said.err


ASK = ("generate", "--recording", DATA / "clips/davis346_traffic_1s", "--prompt", "is it", "--method", "autoregressive")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tokenizer.json", "tokenizer.json is missing, and so is tokenizer.model"),
        ("preprocessor_config.json", "transformers cannot open it"),
        ("chat_template.jinja", "no chat template"),
        ("model.safetensors", "model.safetensors is missing"),
    ],
)
def test_a_missing_file_is_one_line(
    name: str, said: str, checkpoint: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(checkpoint("llava"), tmp_path / "copy"))
    (folder / name).unlink()
    assert said in refused(capsys, "models", "check", folder)
    assert said in refused(capsys, *ASK, "--target", folder)


def test_broken_files_are_one_line(
    checkpoint: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(checkpoint("qwen"), tmp_path / "copy"))
    tensors = load_file(folder / "model.safetensors")
    lost = next(name for name in tensors if name.endswith("norm.weight"))
    save_file({k: v for k, v in tensors.items() if k != lost}, folder / "model.safetensors", metadata={"format": "pt"})
    assert "missing keys in the weights" in refused(capsys, "models", "check", folder)
    (folder / "model.safetensors").write_bytes(b"\0" * 100)
    assert "model.safetensors cannot be read" in refused(capsys, "models", "check", folder)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "preprocessor_config.json").write_text("{")
    assert "transformers cannot open it" in refused(capsys, "models", "check", folder)
    for model_type in ("llama", "qwen9"):
        (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
        assert f"model_type is '{model_type}'" in refused(capsys, "models", "check", folder)


def test_weights_and_logits_that_are_no_numbers_are_one_line(
    checkpoint: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(checkpoint("llava"), tmp_path / "copy"))
    tensors = load_file(folder / "model.safetensors")
    norm = next(name for name in tensors if name.endswith("model.norm.weight"))
    for value, said in (
        (float("nan"), "norm.weight holds NaN or infinity in float32"),
        (1e38, "logits are not finite in float32"),
    ):
        tensors[norm][:] = value
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        assert said in refused(capsys, "models", "check", folder)
    assert said in refused(capsys, *ASK, "--target", folder)


def test_without_the_extra_it_is_named(
    checkpoint: Callable[[str], Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoint("llava")
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert "model_type is 'llava'" in (said := refused(capsys, "models", "check", folder))
    assert "pip install 'eventspec[hf]'" in said


def test_what_cannot_be_asked_is_one_line(
    checkpoint: Callable[[str], Path], recording: Recording, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = checkpoint("llava")
    assert "nf4 needs a CUDA device" in refused(capsys, *ASK, "--target", folder, "--dtype", "nf4")
    assert "'--frames': Input should be greater than or equal to 1" in refused(capsys, *ASK, "--target", folder, "--frames", 0)
    said = refused(capsys, *ASK, "--target", folder, "--max-new-tokens", 500)
    assert "exceed the context of 512" in said
    drafting = (*ASK[:-1], "cross-modal", "--target", folder, "--drafter", folder)
    assert "sees frames: the drafter of method cross-modal must see events" in refused(capsys, *drafting)
    pair = load_folders(folder, method="autoregressive")
    with pytest.raises(BadInput, match="<image>, which stands for pictures"):
        generate(pair, recording, "what <image> is this", "autoregressive")
    pair.workers.close()


def test_a_template_that_drops_the_question_or_pictures_is_told(
    checkpoint: Callable[[str], Path], recording: Recording, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(checkpoint("llava"), tmp_path / "copy"))
    path = folder / "chat_template.jinja"
    usual = path.read_text()
    path.write_text(usual.replace("{{ c.text }}", ""))
    for dropped in ("", "{{ c.text[:9] }}", "{{ c.text[-9:] }}", "{{ c.text | length > 0 }}"):
        path.write_text(usual.replace("{{ c.text }}", dropped))
        with pytest.raises(BadCheckpoint, match="its chat template does not hold the question as it was asked"):
            load_folder(folder)
    for kept in ("e", "tojson", "trim | upper", "replace('?', '')", "urlencode", "title"):
        path.write_text(usual.replace("c.text", f"c.text | {kept}"))
        with load_folders(folder, method="autoregressive", how=LoadOptions(frames=1)) as pair:
            assert generate(pair, recording, 'Is "A & B" < C, O\'Neill?', "autoregressive", max_new_tokens=2).token_ids
    for broken, said in (("{% for m in", "TemplateSyntaxError"), ("{{ raise_exception('two at most') }}", "two at most")):
        path.write_text(broken)
        with pytest.raises(BadCheckpoint, match=rf"its chat template fails \(.*{said}.*\): mend it"):
            load_folder(folder)
    path.write_text(usual.replace("<image>", "").replace("answer:", "<image><image> answer:"))
    with pytest.raises(BadInput, match=r"it cannot read 1 frames of .* as many as its chat template has"):
        load_folder(folder)
    with load_folders(folder, method="autoregressive", how=LoadOptions(frames=2)) as pair:
        assert answered(pair, recording)[0]
    path.write_text(usual.replace("<image>", "").replace("answer:", "<image> answer:"))
    pair = load_folders(folder, method="autoregressive", how=LoadOptions(frames=2))
    with pytest.raises(BadInput, match=r"it cannot read 2 frames of .*: try --frames 1 .* EVENTSPEC_DEBUG=1"):
        answered(pair, recording)
    pair.workers.close()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("num_hidden_layers", 10**9, "num_hidden_layers is 1000000000, the files have"),
        ("vocab_size", 2**34, r"asks for 1\.1e\+12 weights, the files have"),
    ],
)
def test_sizes_are_compared_with_the_weights_before_memory_is_taken(
    name: str, value: int, said: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(checkpoint("llava"), tmp_path / "copy"))
    config = json.loads((folder / "config.json").read_text())
    config["text_config"][name] = value
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadCheckpoint, match=said):
        load_folder(folder)


def test_low_precision_claims_no_identity(checkpoint: Callable[[str], Path], recording: Recording) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        pair = load_folders(checkpoint("qwen"), method="autoregressive", how=LoadOptions(dtype=dtype, frames=2))
        _, trace = answered(pair, recording)
        assert f"the target runs in {str(dtype)[6:]}: identity is claimed in fp32 only" in trace.notes
    _, trace = answered(load_folders(checkpoint("qwen"), method="autoregressive"), recording)
    assert trace.notes == list(recording.notes)
