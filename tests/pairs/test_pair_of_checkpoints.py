"""A pair.toml that points to checkpoint folders: what it says, what it notices, and what is missing for its methods."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eventspec.cli import options, run
from eventspec.cli.bench import _learned_from
from eventspec.core import BadInput
from eventspec.pairs.inventory import offers
from eventspec.pairs.pair_file import PairFile, fingerprint_of, folder_of
from eventspec.recordings.qa import Question
from eventspec.train.loop import changed_pair

GOLDENS = Path(__file__).parents[2].parent / "shared/goldens"
pytestmark = pytest.mark.skipif(not GOLDENS.exists(), reason="the goldens are not beside this checkout")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Both checkpoints, copied, and the working folder."""
    shutil.copytree(GOLDENS / "video_llava/checkpoint", tmp_path / "target")
    shutil.copytree(GOLDENS / "eventgpt/checkpoint", tmp_path / "drafter")
    shutil.copytree(GOLDENS / "eventgpt/clip", tmp_path / "clip")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    code = run(list(words))
    found = capsys.readouterr()
    assert code == 0, found.err
    return json.loads(found.out)


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run(list(words)) == 2
    found = capsys.readouterr().err
    assert found.count("\n") == 1, found
    return found


def made(capsys: pytest.CaptureFixture[str], *more: str) -> Path:
    told(capsys, "models", "pair", "--target", "target", "--drafter", "drafter", "--out", "mine", "--json", *more)
    return Path("mine")


ASKED = ("generate", "--recording", "example:street", "--prompt", "x", "--max-new-tokens", "4", "--json")


def test_it_says_which_parts_learned_from_a_recording(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = PairFile.of_checkpoints(place, place / "target", None, "mine", {})
    made = made.having_learned("prior", [Path("a"), Path("b/../a")]).having_learned("heads", [Path("a"), Path("b")])
    made.having_learned("prior", [Path("a")]).write()
    assert PairFile.read(place).learned == {str(place / "a"): "heads, prior", str(place / "b"): "heads"}
    asked = [Question("", Path(name), "?", "") for name in ("a", "b", "c", "sub/../a")]
    models = options.Models(pair=str(place))
    assert _learned_from(models, asked) == {"learned_from": {"questions": 3, "parts": ["heads", "prior"]}}
    assert _learned_from(models, asked[2:3]) == _learned_from(options.Models(), asked) == {}


def test_it_points_and_copies_nothing(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = made(capsys, "--name", 'a "name"', "--frames", "4", "--dtype", "bfloat16", "--vocabulary", "intersect")
    assert [path.name for path in folder.iterdir()] == ["pair.toml"]
    file = PairFile.read(folder)
    assert file.name == 'a "name"'
    assert file.load == {"vocabulary": "intersect", "dtype": "bfloat16", "frames": 4}
    assert file.place("target") == place / "target"
    found = told(capsys, *ASKED, "--pair", "mine", "--method", "cross-modal")
    assert any("intersect" in note for note in found["notes"])
    assert any("bfloat16" in note for note in found["notes"])
    assert found["devices"] == {"target": "cpu", "drafter": "cpu"}
    over = told(capsys, *ASKED, "--pair", "mine", "--method", "autoregressive", "--dtype", "float32")
    assert not any("bfloat16" in note for note in over["notes"]), "the command line counts more"


def test_the_same_pair_with_and_without_a_file_says_the_same(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(capsys)
    ways = (("--pair", "mine"), ("--target", "target", "--drafter", "drafter"))
    found = [told(capsys, *ASKED, *way, "--method", "cross-modal")["token_ids"] for way in ways]
    assert found[0] == found[1]


def test_what_moved_or_changed_is_noticed_before_anything_is_loaded(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(capsys)
    (place / "target").rename(place / "elsewhere")
    assert "is no checkpoint's folder (any more)" in refused(capsys, *ASKED, "--pair", "mine")
    (place / "elsewhere").rename(place / "target")
    config = json.loads((place / "drafter/config.json").read_text())
    (place / "drafter/config.json").write_text(json.dumps({**config, "rope_theta": 5.0}))
    assert "its drafter" in (line := refused(capsys, *ASKED, "--pair", "mine"))
    assert "is another one than it was" in line
    assert "its drafter" in refused(capsys, "models", "check", "mine")


def test_a_weight_that_changed_is_another_checkpoint(place: Path) -> None:
    before = fingerprint_of(place / "target")
    weights = next((place / "target").glob("*.safetensors"))
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert fingerprint_of(place / "target") != before


def test_a_bare_pair_says_what_makes_the_rest(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(capsys)
    listed = told(capsys, "models", "list", "--pair", "mine", "--json")
    methods = {row["name"]: row for row in listed["methods"]}
    there = {name for name, row in methods.items() if row["available"]}
    assert there == {"autoregressive", "cross-modal", "hybrid", "cascade", "compressed-target", "ngram", "auto"}
    for name, command in {
        "prior": "train prior",
        "eagle": "train heads",
        "aligned": "--output rows",
        "event-eagle": "--output features",
        "skip-encode": "--output rows",
    }.items():
        assert command in methods[name]["missing"], name
        assert "--pair mine" in methods[name]["missing"]
    assert not methods["skip-encode"]["lossless"]
    file = PairFile.read(folder_of("mine"))
    assert [offer.name for offer in offers(file) if offer.available] == [name for name in methods if name in there]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[files]\ntarget = "."\n[load]\n', "is no checkpoint's folder"),
        ('[files]\ndrafter = "."\n[load]\n', "names no target"),
        ('[files]\ntarget = "../target"\n[load]\nframes = "4"\n', "[load] holds"),
        ('[files]\ntarget = "../target"\n[load]\nspeed = 4\n', "[load] holds"),
        ('[files]\ntarget = "../target"\n[load]\n[fingerprints]\ntarget = "0"\n', "is another one than it was"),
        ('[files]\ntarget = "../target"\n[load]\ndtype = "int3"\n', "int3"),
        ('[files]\ntarget = "../target"\n[load]\ndrafter_device = "cuda:7"\n', "cuda:7"),
    ],
)
def test_a_file_that_cannot_be_is_one_line(place: Path, capsys: pytest.CaptureFixture[str], text: str, says: str) -> None:
    (place / "odd").mkdir()
    (place / "odd/pair.toml").write_text(f'format = "eventspec-pair"\nversion = 1\nname = "odd"\n{text}')
    assert says in refused(capsys, *ASKED, "--pair", "odd")


def test_models_that_make_no_pair_are_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, says in (
        (("--target", "drafter"), "sees events: give it as --drafter"),
        (("--target", "target", "--drafter", "target"), "the drafter of a pair must see events"),
        (("--target", "nowhere"), "nowhere"),
        (("--target", "target", "--drafter-device", "the other"), "device 'the other' is none"),
        (("--target", "target", "--drafter", "drafter", "--drafter-device", "nix"), "device 'nix' is of no kind that there is"),
        (("--target", "target", "--drafter-device", "cpu"), "--drafter-device is for --drafter"),
        (("--target", "target", "--out", "target/x"), "which is read: choose another place"),
        (("--target", "target", "--frames", "100000"), "the model was trained for a context of"),
        (("--target", "target", "--drafter", "drafter", "--vocabulary", "same"), "the tokenizers of drafter and target differ"),
    ):
        assert says in refused(capsys, "models", "pair", "--out", "new", *words)
        assert not Path("new").exists()
    made(capsys)
    assert "mine" in refused(capsys, "models", "pair", "--target", "target", "--out", "mine")
    shutil.rmtree("clip")
    assert "put that CLIP folder" in refused(
        capsys, "models", "pair", "--target", "target", "--drafter", "drafter", "--out", "new"
    )


def test_a_pair_that_was_moved_still_finds_its_models(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(capsys)
    Path("mine").rename("there")
    assert told(capsys, *ASKED, "--pair", "there", "--method", "ngram")["lossless"]


def test_a_training_replaces_nothing_that_its_pair_points_to(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(capsys)
    heads = place / "run/pair/heads/eagle"
    heads.mkdir(parents=True)
    PairFile.read(Path("mine")).pointed_to_from(place / "run/pair").listing("heads", "eagle", "heads/eagle").write()
    (place / "other").mkdir()
    PairFile.read(place / "run/pair").pointed_to_from(place / "other").write()
    (place / "run/linked").symlink_to(place / "run/pair")
    for pair in ("run/pair", "run/linked", "other"):
        for training in ("prior", "heads", "drafter"):
            words = ("train", training, "--pair", pair, "--questions", "qa.jsonl", "--out", "run", "--resume")
            assert "--out" in (line := refused(capsys, *words)), training
            assert "run/pair would replace" in line
    file = PairFile.read(place / "other")
    with pytest.raises(BadInput, match="would replace"), changed_pair(file, place / "run"):
        pass
    file.check_kept(place / "elsewhere/pair")
    assert heads.is_dir()
    assert not list(place.glob("**/.pair.part"))


def test_a_part_that_vanished_is_one_line_for_every_command(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(capsys)
    file = PairFile.read(Path("mine"))
    for listed, says in (
        (file.listing("heads", "eagle", "gone"), "head eagle"),
        (file.listing("adapters", "linear", "gone"), "adapter linear"),
        (file.listing("packers", "2", "gone"), "packer 2"),
        (file.listing("drafters", "small", "gone"), "drafter small"),
        (replace(file, files={**file.files, "prior": "gone"}), "prior"),
        (replace(file, files={**file.files, "mixture": "gone"}), "mixture"),
    ):
        listed.write()
        for words in (
            (*ASKED, "--pair", "mine"),
            ("models", "list", "--pair", "mine"),
            ("models", "check", "mine"),
            ("train", "prior", "--pair", "mine", "--questions", "qa.jsonl", "--out", "out"),
        ):
            assert f"its {says} mine/gone is not there (any more)" in refused(capsys, *words)


def test_parts_that_lie_elsewhere_are_in_a_pairs_fingerprint(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(capsys)
    for name in ("head", "adapter"):
        (place / name).mkdir()
        (place / name / "model.safetensors").write_bytes(b"1")
    (place / "prior.json").write_text("{}")
    bare = PairFile.read(Path("mine"))
    file = bare.listing("heads", "eagle", str(place / "head")).listing("adapters", "linear", "../adapter")
    file = replace(file, files={**file.files, "prior": "../prior.json"})
    file.write()
    before = file.fingerprint(True), file.fingerprint(False)
    (place / "adapter/model.safetensors").write_bytes(b"2")
    assert file.fingerprint(True) != before[0]
    assert file.fingerprint(False) == before[1]
    for other in ("head/model.safetensors", "prior.json"):
        was = file.fingerprint(False)
        (place / other).write_bytes(b"3")
        assert file.fingerprint(False) != was, other
