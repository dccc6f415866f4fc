"""Bad input: exit 2, one line that names file, field and remedy, nothing written, nothing executed."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

from eventspec.cli import commands, run
from eventspec.errors import BadCheckpoint, BadInput, BadSetting
from eventspec.events.stream import EventStream
from eventspec.pairs.pair_file import DATA
from eventspec.recordings import Recording, write_native
from eventspec.video.clip import VideoClip

REAL = DATA / "clips/davis346_traffic_1s"
SHARED = Path(__file__).parents[2].parent / "shared"
ASK = ["generate", "--prompt", "How many road users are visible?", "--recording"]


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """Run a command that must be refused; its one line."""
    code = run([str(word) for word in words])
    told = capsys.readouterr()
    lines = told.err.strip().splitlines()
    assert code == 2, told.err
    assert len(lines) == 1, told.err
    assert "Traceback" not in told.err
    assert told.out == ""
    return lines[0]


def npz(path: Path, **changes: object) -> Path:
    columns: dict[str, object] = {"x": [1, 2, 3], "y": [1, 2, 3], "t": [10, 20, 30], "p": [0, 1, 1], "width": 32, "height": 32}
    np.savez(path, **{name: np.asarray(value) for name, value in {**columns, **changes}.items()})
    return path


def test_a_missing_recording(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "nowhere.aedat4" in refused(capsys, *ASK, tmp_path / "nowhere.aedat4")


def test_an_empty_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "empty.npz").write_bytes(b"")
    assert "empty" in refused(capsys, *ASK, tmp_path / "empty.npz")


def test_events_without_frames(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    line = refused(capsys, *ASK, npz(tmp_path / "events.npz"), "--method", "cross-modal")
    assert "no RGB frames" in line and "--video FILE" in line and "EventGPT" in line


def test_a_compression_by_more_rows_than_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    for kind in ("pool", "prune", "attention"):
        line = refused(capsys, *ASK, REAL, "--method", "compressed-target", "--compress", f"{kind}:9999")
        assert f"{kind}:9999 is more than the" in line


def test_frames_without_events(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    video = VideoClip(np.zeros((8, 32, 32, 3), np.uint8), np.arange(8, dtype=np.int64) * 1000)
    write_native(tmp_path / "deaf", Recording("deaf", None, video))
    line = refused(capsys, *ASK, tmp_path / "deaf", "--method", "cross-modal")
    assert "no events" in line and "--method eagle" in line and "--events FILE" in line
    write_native(tmp_path / "quiet", Recording("quiet", EventStream.empty(32, 32), video))
    assert "no events" in refused(capsys, *ASK, tmp_path / "quiet", "--method", "cross-modal")


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"x": [1, 99, 3]}, "x"),
        ({"t": [10, 5, 30]}, "t"),
        ({"t": [10.0, float("nan"), 30.0]}, "t"),
        ({"p": [0, 7, 1]}, "p"),
        ({"y": [1, 2]}, "y"),
    ],
)
def test_columns_that_cannot_be_events(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, changes: dict[str, object], word: str
) -> None:
    path = npz(tmp_path / "bad.npz", **changes)
    line = refused(capsys, "events", "info", path)
    assert "bad.npz" in line
    assert word in line


def test_a_malicious_pickle_is_refused_and_not_executed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (tmp_path / "executed",))

    head = b"\x93NUMPY\x01\x00\x76\x00{'descr': '|O', 'fortran_order': False, 'shape': (), }".ljust(127) + b"\n"
    (tmp_path / "bomb.npy").write_bytes(head + pickle.dumps(Bomb()))
    refused(capsys, "events", "info", tmp_path / "bomb.npy")
    refused(capsys, *ASK, tmp_path / "bomb.npy")
    assert not (tmp_path / "executed").exists()


def test_a_truncated_aedat4_keeps_what_was_readable(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    whole = SHARED / "recordings/aedat4/davis346_traffic_clip.aedat4"
    if not whole.exists():
        pytest.skip("the shared recordings are not beside this checkout")
    data = whole.read_bytes()
    (tmp_path / "cut.aedat4").write_bytes(data[: len(data) // 2])
    assert run(["events", "info", str(tmp_path / "cut.aedat4"), "--json"]) == 0
    told = capsys.readouterr()
    assert 0 < json.loads(told.out)["events"] < 6676
    assert "lost" in told.err or "cut" in told.err or "truncated" in told.err
    (tmp_path / "stub.aedat4").write_bytes(data[:600])
    refused(capsys, "events", "info", tmp_path / "stub.aedat4")


def test_a_window_outside_the_recording(capsys: pytest.CaptureFixture[str]) -> None:
    assert "outside the recording" in refused(capsys, *ASK, REAL, "--window", "5:10")


def test_an_empty_window(capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, *ASK, REAL, "--window", "10:5")
    assert "ends before it begins: the recording spans [" in line


def test_a_prompt_over_the_context(capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, "generate", "--recording", REAL, "--prompt", "What is that thing over there? " * 200)
    assert "context" in line


def test_an_empty_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    assert "prompt" in refused(capsys, "generate", "--recording", REAL, "--prompt", " ")


def test_an_unknown_method_lists_the_valid_ones(capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, *ASK, REAL, "--method", "warp")
    assert "autoregressive" in line
    assert "cross-modal" in line


@pytest.mark.parametrize(
    ("option", "value"),
    [("--temperature", -1), ("--top-p", 0), ("--max-new-tokens", 0), ("--device-plan", "three"), ("--pair", "nothing-here")],
)
def test_settings_out_of_range(capsys: pytest.CaptureFixture[str], option: str, value: object) -> None:
    refused(capsys, *ASK, REAL, option, value)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--frequency-penalty", 3), "--frequency-penalty is 3.0"),
        (("--presence-penalty", -3), "--presence-penalty is -3.0"),
        (("--min-new-tokens", 257), "--min-new-tokens is 257"),
        (("--logit-bias", "car"), "ID=VALUE"),
        (("--logit-bias", "3=x"), "ID=VALUE"),
        (("--logit-bias", "3=nan"), "--logit-bias"),
        (("--logit-bias", "99999=1"), "not in the vocabulary"),
        (("--bad-word", ""), "or an empty one"),
        (("--json-schema", "nowhere.json"), "nowhere.json: no such file"),
        (("--json-schema", "x", "--regex", "y"), "exclude each other"),
    ],
    ids=str,
)
def test_sampling_that_cannot_be(capsys: pytest.CaptureFixture[str], words: tuple[object, ...], says: str) -> None:
    assert says in refused(capsys, *ASK, REAL, "--method", "autoregressive", *words)


def test_grammars_that_cannot_be(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("llguidance")
    (tmp_path / "schema.json").write_text('{"type": "what"}')
    line = refused(capsys, *ASK, REAL, "--json-schema", tmp_path / "schema.json")
    assert "schema.json" in line
    assert "what" in line
    (tmp_path / "schema.json").write_bytes(b"\xff\xfe")
    assert "cannot be read" in refused(capsys, *ASK, REAL, "--json-schema", tmp_path / "schema.json")
    assert "unclosed group" in refused(capsys, *ASK, REAL, "--regex", "(")


def test_grammars_without_the_extra(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    assert "pip install 'eventspec[grammar]'" in refused(capsys, *ASK, REAL, "--regex", "Yes|No")


def test_questions_that_are_no_questions(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    compare = ["bench", "compare", "--method", "prior", "--out", tmp_path / "rows.jsonl", "--questions"]
    assert "does not exist" in refused(capsys, *compare, tmp_path / "qa.jsonl")
    (tmp_path / "qa.jsonl").write_text('{"recording": "a", "question": "b"}\n')
    assert "line 1" in refused(capsys, *compare, tmp_path / "qa.jsonl")
    assert "--risk is not used by method prior" in refused(capsys, *compare, tmp_path / "qa.jsonl", "--risk", "0.05")
    assert not (tmp_path / "rows.jsonl").exists()


def test_a_trace_that_cannot_be_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "cannot be written" in refused(capsys, *ASK, REAL, "--trace", tmp_path / "no" / "such" / "trace.json")


def test_training_into_a_folder_in_use(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "kept.txt").write_text("mine")
    assert "--resume" in refused(capsys, "train", "embedded", "--out", tmp_path)
    assert "unknown" in refused(capsys, "train", "embedded", "--out", tmp_path / "new", "--preset", "huge")
    assert "holds no run" in refused(capsys, "train", "embedded", "--out", tmp_path / "new", "--resume")
    assert [p.name for p in tmp_path.iterdir()] == ["kept.txt"]


@pytest.mark.parametrize("option", [("--device", "cpu"), ("--dtype", "float32"), ("--max-new-tokens", "9")])
def test_options_that_only_a_target_of_ones_own_heeds(
    option: tuple[str, str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert option[0] in refused(capsys, "train", "heads", "--out", tmp_path / "new", *option)
    assert not (tmp_path / "new").exists()


def test_a_run_of_another_preset_is_not_gone_on_with(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"recipe": "embedded", "preset": "cpu"}))
    assert "preset cpu, not smoke" in refused(capsys, "train", "embedded", "--out", tmp_path, "--resume", "--preset", "smoke")
    assert "target" in refused(capsys, "train", "heads", "--out", tmp_path, "--resume", "--preset", "smoke")
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]


def test_places_that_cannot_be_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "qa.jsonl").write_text(json.dumps({"recording": str(REAL), "question": "What?", "answer": "?"}))
    bench = ("bench", "compare", "--method", "prior", "--questions", tmp_path / "qa.jsonl", "--out")
    assert "is a folder" in refused(capsys, *bench, tmp_path / "folder")
    assert "file" in refused(capsys, *bench, tmp_path / "file/rows.jsonl")
    assert "file" in refused(capsys, *ASK, REAL, "--trace", tmp_path / "file/trace.json")
    assert "file" in refused(capsys, "demo", "--out", tmp_path / "file")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder", "qa.jsonl"]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"\xa4\xff", "is no text"),
        (b"", "holds no questions"),
        (b"[1]", "line 1"),
        (b'{"recording": 3, "question": "a", "answer": "b"}', "line 1"),
        (b'{"recording": "a", "question": "", "answer": "b"}', "line 1"),
    ],
)
def test_question_files_that_are_none(content: bytes, told: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "qa.jsonl").write_bytes(content)
    words = ("bench", "compare", "--method", "prior", "--questions", tmp_path / "qa.jsonl", "--out", tmp_path / "rows.jsonl")
    assert told in refused(capsys, *words)
    assert not (tmp_path / "rows.jsonl").exists()


@pytest.mark.parametrize("words", [("--temperature", "inf"), ("--temperature", "nan"), ("--repetition-penalty", "inf")])
def test_sampling_that_is_no_number(words: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert f"{words[0]} is {words[1]}: it must be" in refused(capsys, *ASK, REAL, *words)


def test_two_drafters_on_events(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--method", "hybrid", "--drafter", "fine", "--adapter", "bottleneck")
    assert "--drafter and --adapter exclude each other" in refused(capsys, *ASK, REAL, *words)


def test_a_prompt_that_is_no_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert "UTF-8" in refused(capsys, "generate", "--recording", REAL, "--prompt", "\udcff\udcfe")


def test_a_negative_limit(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ("bench", "compare", "--method", "prior", "--questions", "qa.jsonl", "--out", tmp_path / "r", "--limit", -3)
    assert "--limit" in refused(capsys, *words)


@pytest.mark.parametrize("recipe", ["heads", "packer", "adapter"])
def test_training_for_a_pair_that_is_none(capsys: pytest.CaptureFixture[str], tmp_path: Path, recipe: str) -> None:
    assert "no pair 'nope'" in refused(capsys, "train", recipe, "--pair", "nope", "--out", tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--kind", "magic"), "unknown adapter to rows 'magic'"),
        (("--output", "features", "--kind", "causal"), "unknown adapter to features 'causal'"),
        (("--output", "words"), "unknown output 'words'"),
        (("--phase", "last"), "unknown phase 'last'"),
        (("--preset", "huge"), "unknown preset 'huge'"),
        (
            ("--phase", "calibration", "--kind", "linear"),
            "unknown adapter to rows of this pair 'linear': choose from attention",
        ),
        (("--phase", "calibration", "--kind", "features-linear"), "of this pair 'features-linear': choose from attention"),
        (("--phase", "calibration", "--output", "features"), "which reads adapters to rows: leave --output out"),
        (
            ("--phase", "calibration", "--loss", "cosine"),
            "which are left out: leave it out",
        ),
        (("--free-running",), "it is for --output features"),
        (("--free-running", "--output", "features", "--phase", "acceptance"), "have phase alignment only"),
    ],
)
def test_adapters_that_cannot_be_trained(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: tuple[str, ...], says: str
) -> None:
    assert says in refused(capsys, "train", "adapter", "--out", tmp_path / "new", *words)
    assert not (tmp_path / "new").exists()


def test_growing_text_and_one_object_are_two_things(capsys: pytest.CaptureFixture[str]) -> None:
    assert "give one of them" in refused(capsys, *ASK, "example:street", "--provisional", "--json")


def test_only_a_folder_keeps_a_source(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    said = refused(capsys, "events", "convert", REAL, tmp_path / "e.npz", "--source", "my car")
    assert "--source" in said and not list(tmp_path.iterdir())


def test_a_demo_that_cannot_be_written_is_refused_at_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "missing" in refused(capsys, "demo", "--out", tmp_path / "a/b", "--html", tmp_path / "c/demo.html")
    (tmp_path / "file").write_text("")
    refused(capsys, "demo", "--out", tmp_path / "file")
    refused(capsys, "demo", "--out", tmp_path / "file/in")
    assert "device-plan" in refused(capsys, "demo", "--out", tmp_path / "new", "--device-plan", "three")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (BadSetting("window_us", "is 0: wrong"), "--window-us is 0: wrong"),
        (BadSetting("min_new_tokens", "is 9: from 0 to max_new_tokens"), "--min-new-tokens is 9: from 0 to --max-new-tokens"),
        (BadSetting("stop_strings", "is wrong"), "--stop is wrong"),
        (BadInput("give sensor_size=(640, 480)"), "give --sensor 640x480"),
        (BadInput('monotonic="clamp", drop_outside=True'), "--monotonic clamp, --drop-outside"),
        (BadInput("cut it, or lower noise_hz"), "cut it, or lower --noise-hz"),
        (BadInput("a/window_us/top_k.npz, top_k.npz: not_an_option"), "a/window_us/top_k.npz, top_k.npz: not_an_option"),
        (BadCheckpoint("a/generation_config.json: top_k is wrong"), "a/generation_config.json: top_k is wrong"),
    ],
)
def test_settings_are_named_as_they_are_typed(error: Exception, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands._explain(error) == 2
    assert capsys.readouterr().err == f"eventspec: {says}\n"
