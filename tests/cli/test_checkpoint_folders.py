"""Checkpoint folders on the command line: generate, models check, and refusals of one line."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from eventspec.cli import run
from eventspec.pairs.pair_file import DATA

if TYPE_CHECKING:  # never imported: other rooms may have a conftest of their own
    from conftest import Folders

REAL = str(DATA / "clips/davis346_traffic_1s")
ASK = ["generate", "--recording", REAL, "--prompt", "is the car on the way", "--max-new-tokens", "12"]


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    torch.set_num_threads(1)


def told(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, object]:
    assert run([str(word) for word in (*words, "--json")]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    code = run([str(word) for word in words])
    said = capsys.readouterr()
    assert (code, said.out, said.err.count("\n")) == (2, "", 1), said.err
    return said.err


def test_a_drafter_folder_changes_no_token_of_a_target_folder(capsys: pytest.CaptureFixture[str], folders: Folders) -> None:
    alone = (*ASK, "--target", folders.other, "--frames", 4)
    pair = (*alone, "--drafter", folders.eventgpt)
    plain = told(capsys, *alone, "--method", "autoregressive")
    known = {"visual_tokens": 20, "drafter_rows": None, "completion_tokens": 12}
    assert plain["usage"] == {"prompt_tokens": plain["usage"]["prompt_tokens"], **known}  # type: ignore[index]
    assert told(capsys, *pair, "--method", "autoregressive")["token_ids"] == plain["token_ids"], "the baseline of the same line"
    for way in ("auto", "retokenize", "intersect"):
        drafted = told(capsys, *pair, "--method", "cross-modal", "--vocabulary", way)
        assert drafted["token_ids"] == plain["token_ids"]
        assert "vocabulary: " in str(drafted["notes"])
    said = refused(capsys, *pair, "--method", "cross-modal", "--vocabulary", "same")
    assert "id 260 is 't' for the drafter and 'e' for the target" in said


@pytest.mark.parametrize("which", ["fine", "folder"])
@pytest.mark.parametrize("way", ["auto", *(pytest.param(way, marks=pytest.mark.long) for way in ("retokenize", "intersect"))])
def test_another_event_drafter_changes_no_token_of_a_pair(
    capsys: pytest.CaptureFixture[str], folders: Folders, which: str, way: str
) -> None:
    plain = told(capsys, *ASK, "--method", "autoregressive")
    drafter = folders.eventgpt if which == "folder" else which
    events = (*ASK, "--method", "cross-modal", "--drafter", drafter, "--vocabulary")
    drafted = told(capsys, *events, way)
    assert drafted["token_ids"] == plain["token_ids"]
    assert "vocabulary: " in str(drafted["notes"])
    assert "differ: id" in refused(capsys, *events, "same")


def test_what_a_method_passes_over_is_refused(capsys: pytest.CaptureFixture[str], folders: Folders) -> None:
    """And so is a target folder without what the method needs, before it is loaded."""
    eagle, lossy, events = ("--method", "eagle"), ("--method", "compressed-target"), ("--method", "cross-modal")
    assert "--head is not used by method cross-modal: it is for --method specvlm or eagle" in refused(
        capsys, *ASK, *events, "--head", "eagle"
    )
    assert "--drafter is not used by method eagle: it is for --method cross-modal" in refused(
        capsys, *ASK, *eagle, "--drafter", "fine"
    )
    assert "--compress is not used by method eagle: it is for --method compressed-target" in refused(
        capsys, *ASK, *eagle, "--compress", "pool:3"
    )
    assert "add --head FOLDER, or give a pair (--pair FOLDER)" in refused(capsys, *ASK, *eagle, "--target", folders.video_llava)
    assert "add --compress pool:3" in refused(capsys, *ASK, *lossy, "--target", folders.video_llava)


def test_notes_say_which_head_drafted(capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, *ASK, "--method", "eagle", "--head", "specvlm")
    assert "drafter: head specvlm, dynamic" in found["notes"]


def test_a_target_folder_may_be_compressed(capsys: pytest.CaptureFixture[str], folders: Folders) -> None:
    alone = (*ASK, "--target", folders.video_llava, "--frames", 4)
    plain = told(capsys, *alone, "--method", "autoregressive")
    whole, half = (told(capsys, *alone, "--method", "compressed-target", "--compress", f"pool:{n}") for n in (1, 2))
    assert (whole["token_ids"], whole["lossless"]) == (plain["token_ids"], False)
    assert [found["usage"]["visual_tokens"] for found in (whole, half)] == [20, 10]  # type: ignore[index]


def test_low_precision_and_stored_precision_run(capsys: pytest.CaptureFixture[str], folders: Folders) -> None:
    for dtype in ("auto", "bfloat16"):
        found = told(capsys, *ASK, "--target", folders.video_llava, "--method", "autoregressive", "--dtype", dtype)
        assert found["finish_reason"] in ("length", "stop")


def test_check_tells_both_layouts(capsys: pytest.CaptureFixture[str], folders: Folders) -> None:
    found = told(capsys, "models", "check", folders.eventgpt)
    assert (found["architecture"], found["vocabulary"], found["banned_ids"]) == ("EventGPT", 284, 0)
    found = told(capsys, "models", "check", folders.video_llava)
    assert (found["architecture"], found["vocabulary"], found["embedding_rows"]) == ("Video-LLaVA", 285, 295)
    assert run(["models", "check", str(folders.video_llava)]) == 0
    assert "image_tower skipped" in capsys.readouterr().out


@pytest.mark.parametrize("layout", ["safeailab", "speculators"])
def test_an_exported_head_drafts_as_before(capsys: pytest.CaptureFixture[str], tmp_path: Path, layout: str) -> None:
    said = told(capsys, "models", "export-head", "eagle3", "--layout", layout, "--out", tmp_path / "head")
    assert (said["head"], said["taps"], said["dtype"]) == ("Eagle3Head", [2, 4, 5], "float16")
    before = told(capsys, *ASK, "--method", "eagle", "--head", "eagle3")
    after = told(capsys, *ASK, "--method", "eagle", "--head", tmp_path / "head")
    assert after["token_ids"] == before["token_ids"]
    config = json.loads((tmp_path / "head/config.json").read_text())
    if layout == "speculators":
        named = {"name_or_path": str(DATA / "pairs/nano/target"), "architectures": ["VideoLlavaForConditionalGeneration"]}
        assert config["speculators_config"]["verifier"] == named
    else:
        written = (tmp_path / "head/model.safetensors").read_bytes()
        assert written == (DATA / "pairs/nano/heads/eagle3/model.safetensors").read_bytes()


def test_a_head_that_cannot_be_exported_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], folders: Folders, tmp_path: Path
) -> None:
    export, out = ("models", "export-head"), ("--out", tmp_path / "out")
    assert "reads no EAGLE-1" in refused(capsys, *export, "eagle1", "--layout", "speculators", *out)
    assert "no head 'eagle4'" in refused(capsys, *export, "eagle4", "--layout", "safeailab", *out)
    assert "'safeailab', 'speculators'" in refused(capsys, *export, "eagle3", "--layout", "vllm", *out)
    nano = DATA / "pairs/nano/heads/eagle3"
    said = refused(capsys, *export, nano, "--target", folders.video_llava, "--layout", "speculators", *out)
    assert "trained for target" in said
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").mkdir()
    (tmp_path / "out/notes").touch()
    assert "not an empty folder" in refused(capsys, *export, "eagle3", "--layout", "safeailab", *out)


def test_check_says_that_a_head_is_one_and_for_which_target(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    nano = DATA / "pairs/nano"
    target = told(capsys, "models", "check", nano)["target"]
    for name, kind in (("eagle", "EAGLE"), ("eagle3", "EAGLE-3"), ("specvlm", "SpecVLM")):
        found = told(capsys, "models", "check", nano / "heads" / name)
        assert (found["head"], found["target"], found["hidden_size"]) == (kind, target, 192)
    copy = Path(shutil.copytree(nano / "heads/eagle", tmp_path / "copy"))
    assert run(["models", "check", str(copy)]) == 0
    line = capsys.readouterr().out
    assert line == f"{copy}: a head (EAGLE) of width 192 for target {target}: generate --head takes it\n"
    config = json.loads((copy / "config.json").read_text())
    del config["eventspec"]
    (copy / "config.json").write_text(json.dumps(config))
    assert told(capsys, "models", "check", copy)["target"] is None
    tensors = load_file(copy / "model.safetensors")
    tensors["fc.weight"][3, 4] = float("nan")
    save_file(tensors, copy / "model.safetensors")
    assert "NaN" in refused(capsys, "models", "check", copy)
    (copy / "model.safetensors").write_bytes(b"")
    refused(capsys, "models", "check", copy)


def test_check_knows_packers_and_layouts_of_others(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    nano = DATA / "pairs/nano"
    packer = Path(shutil.copytree(nano / "packers/2", tmp_path / "packer"))
    assert told(capsys, "models", "check", packer)["packer"] == 2
    assert run(["models", "check", str(packer)]) == 0
    assert ": a packer of 2 x 2 patches for target " in capsys.readouterr().out
    target = told(capsys, "models", "check", nano)["target"]
    for layout in ("safeailab", "speculators"):
        told(capsys, "models", "export-head", "eagle3", "--layout", layout, "--out", tmp_path / layout)
        found = told(capsys, "models", "check", tmp_path / layout)
        assert (found["head"], found["target"], found["hidden_size"]) == ("EAGLE-3", target, 192)
    config = json.loads((packer / "config.json").read_text())
    (packer / "config.json").write_text(json.dumps({**config, "scale": "two"}))
    assert "scale is 'two', wanted a whole number" in refused(capsys, "models", "check", packer)
    (packer / "config.json").write_text(json.dumps(config))
    for cut in (packer, tmp_path / "speculators"):
        with (cut / "model.safetensors").open("r+b") as file:
            file.truncate(100_000)
        assert "cannot be read as safetensors" in refused(capsys, "models", "check", cut)


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("eagle", {"eventspec": {"kind": "vispec"}}, "imadpt.q is missing"),
        ("massv", {"eventspec": {"kind": "dream"}}, "config.json"),
        ("dream", {"eventspec": {"kind": "msd"}}, "is missing|missing:"),
        ("specvlm", {"eventspec": {"kind": "msd", "compressor": {}}}, "only SpecVLM's head has one"),
        ("eagle", {"hidden_size": "x"}, "hidden_size is 'x'"),
        ("eagle", {"hidden_size": None}, "hidden_size is None"),
        ("eagle", {"eventspec": {"target": 5}}, "target is 5"),
        ("packers/2", {"layers": "x"}, "layers is 'x'"),
        ("packers/2", {"layers": [1, 2]}, "wanted 4 layers"),
        ("packers/2", {"layers": [1, 1, 2, 3]}, "wanted ascending layers"),
        ("packers/2", {"scale": 10**400}, "scale is "),
        ("packers/2", {"eventspec": {}}, "target is None"),
    ],
)
def test_check_refuses_what_could_not_be_loaded(
    name: str, changes: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    nano = DATA / "pairs/nano"
    copy = Path(shutil.copytree(nano / name if "/" in name else nano / "heads" / name, tmp_path / "copy"))
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, **changes}))
    assert re.search(said, refused(capsys, "models", "check", copy))
    (copy / "config.json").write_text('{"hidden_size": 1%s}' % ("0" * 5000))
    assert "is not valid JSON" in refused(capsys, "models", "check", copy)


OURS = {
    "msd": ("MSD", "a head of MSD"),
    "vispec": ("ViSpec", "a head of ViSpec"),
    "dream": ("DREAM", "a head of DREAM"),
    "massv": ("MASSV", "a head of MASSV"),
    "hivis": ("HiViS", "a head of HiViS"),
    "specvlm": ("SpecVLM, select", "a head of SpecVLM"),
    "weighted": ("SpecVLM, weighted", "a head of SpecVLM"),
}


QUICK = ("msd", "massv", "specvlm")


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.long) for name in OURS if name not in QUICK)])
def test_check_names_heads_that_are_our_own_and_export_refuses_them(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A layout of others has EAGLE's tensors under EAGLE's names: their code would run such a head as EAGLE's."""
    from eventspec.drafters import TrainedHead, save_head
    from eventspec.drafters.heads import TargetSizes
    from eventspec.models.video_llava import load_video_llava
    from eventspec.train.heads import new_heads

    language = load_video_llava(DATA / "pairs/nano/target").language
    head = new_heads([name], TargetSizes(language.config, tuple(range(100))))[name]
    save_head(TrainedHead(head), tmp_path / name, language)
    shown, why = OURS[name]
    assert run(["models", "check", str(tmp_path / name)]) == 0
    assert f": a head ({shown}) of width " in capsys.readouterr().out
    for layout, whose in (("safeailab", "no SafeAILab code"), ("speculators", "no code of speculators")):
        words = ("models", "export-head", tmp_path / name, "--layout", layout, "--out", tmp_path / "out")
        assert f"{whose} loads {why}" in refused(capsys, *words)
    assert not (tmp_path / "out").exists()
    config = json.loads((tmp_path / name / "config.json").read_text())
    (tmp_path / name / "config.json").write_text(json.dumps({**config, "eventspec": {"kind": "medusa"}}))
    assert "kind is 'medusa', wanted one of msd" in refused(capsys, "models", "check", tmp_path / name)


def test_generate_takes_a_head_with_its_way(capsys: pytest.CaptureFixture[str]) -> None:
    for spec, note in (("eagle:chain", "eagle, chain"), (DATA / "pairs/nano/heads/eagle1", "eagle1, dynamic")):
        assert run([*map(str, (*ASK, "--method", "eagle", "--head", spec))]) == 0
        assert f"{note}\n" in capsys.readouterr().err
    assert "tree policy 'oak' is unknown for head eagle" in refused(capsys, *ASK, "--method", "eagle", "--head", "eagle:oak")


def test_what_cannot_be_used_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], folders: Folders, tmp_path: Path
) -> None:
    assert "neither config.json nor pair.toml" in refused(capsys, "models", "check", tmp_path)
    assert "no drafter 'fin'" in refused(capsys, *ASK, "--drafter", "fin")
    assert "must see events" in refused(capsys, *ASK, "--drafter", folders.video_llava)
    assert "give --drafter as well" in refused(capsys, *ASK, "--vocabulary", "retokenize")
    assert "--target" in refused(capsys, *ASK, "--frames", 4)
    assert "'int4' is not one of 'float32'" in refused(capsys, *ASK, "--target", folders.video_llava, "--dtype", "int4")
    for dtype in ("nf4", "int8"):
        said = refused(capsys, *ASK, "--target", folders.video_llava, "--dtype", dtype)
        assert f"dtype {dtype} is for checkpoints that transformers opens" in said
    alone = (*ASK, "--method", "autoregressive", "--target")
    assert "at most 102 frames" in refused(capsys, *alone, folders.video_llava, "--frames", 200)
    copy = Path(shutil.copytree(folders.video_llava, tmp_path / "copy"))
    (copy / "model.safetensors").write_bytes(b"\0" * 100)
    assert "model.safetensors" in refused(capsys, *alone, copy)
    assert "model.safetensors" in refused(capsys, "models", "check", copy)
    shutil.copy(folders.video_llava / "model.safetensors", copy)
    (copy / "config.json").write_text('{"model_type": "qwen9"}')
    assert "model_type is 'qwen9'" in refused(capsys, "models", "check", copy)
    (copy / "config.json").write_text('{"model_type": "llava_onevision"}')
    assert "the folder is not a complete checkpoint" in refused(capsys, "models", "check", copy)
    assert "no drafter for method prior" in refused(capsys, *ASK, "--target", folders.video_llava, "--method", "prior")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('2 = "nowhere"', "nowhere"),
        ('x = "packers/2"', "lists it as a packer of scale x"),
        ('2 = "heads/eagle"', "model_type is 'llama', wanted packer"),
    ],
)
def test_check_looks_at_the_packers_of_a_pair(line: str, said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    copy = Path(shutil.copytree(DATA / "pairs/nano", tmp_path / "pair"))
    text = (copy / "pair.toml").read_text()
    (copy / "pair.toml").write_text(text.replace('2 = "packers/2"', line))
    assert said in refused(capsys, "models", "check", copy)
