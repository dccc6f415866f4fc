"""The options that commands share: the same everywhere, checked before torch is loaded, and no output on an input."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
from tests.support.probe import check_refused_early
from typer.main import get_command

from eventspec import cli
from eventspec.cli import options
from eventspec.cli.drawn import Drawn
from eventspec.cli.generate import _questions
from eventspec.cli.recorded import Recorded
from eventspec.cli.train import _taus
from eventspec.errors import BadInput, several
from eventspec.files import check_outputs

COMMANDS: dict[str, Any] = dict(get_command(cli.app).commands)  # type: ignore[attr-defined]
ANSWERS = options.Models.__dataclass_fields__.keys()
SEES = Recorded.__dataclass_fields__.keys()
DRAFTS = options.Chosen.__dataclass_fields__.keys()


def names(command: Any) -> set[str]:
    return {param.name for param in command.params}


def test_what_answers_and_what_drafts_is_named_alike_everywhere() -> None:
    compare = COMMANDS["bench"].commands["compare"]
    for command in (COMMANDS["generate"], COMMANDS["chat"], COMMANDS["live"], COMMANDS["plan"], compare):
        kept = {"learned"} if command is compare else set()  # its arms learn apart: none of their heads is the one to keep
        assert names(command) >= (ANSWERS | DRAFTS) - kept, command.name
    for name in ("generate", "chat", "live"):
        assert names(COMMANDS[name]) >= SEES, name
    for command in (COMMANDS["generate"], COMMANDS["chat"], COMMANDS["live"], compare):
        assert names(command) >= {"method", "sensor", "monotonic", *Drawn.__dataclass_fields__}, command.name


def test_an_option_means_the_same_wherever_it_is() -> None:
    compare = COMMANDS["bench"].commands["compare"]
    commands = (COMMANDS["generate"], COMMANDS["chat"], COMMANDS["live"], COMMANDS["plan"], compare)
    several = {"method", "drafter", "head", "compress", "adapter", "decide"}  # of which a comparison has any number
    helps: dict[str, set[str]] = {}
    for command in commands:
        for param in command.params:
            if param.name not in {*several, "as_json", "questions"} and (param.name != "limit" or command is compare):
                helps.setdefault(param.name, set()).add(str(getattr(param, "help", None)))
    assert {name for name, texts in helps.items() if len(texts) > 1} == set()
    assert "events" not in names(compare), "a file of events, wherever it is an option"


ASK = ("generate", "--prompt", "x", "--recording", "example:street")
COMPARE = ("bench", "compare", "--out", "rows.jsonl", "--questions", "none.jsonl", "--method")
REFUSED: tuple[tuple[Sequence[str], str], ...] = (
    (("generate", "--prompt", "x", "--recording", "nowhere.aedat4"), "nowhere.aedat4: no such file"),
    (("chat", "nowhere.aedat4"), "nowhere.aedat4: no such file"),
    (("live", "--prompt", "x", "--recording", "nowhere.aedat4"), "nowhere.aedat4: no such file"),
    (("generate", "--prompt", " ", "--recording", "example:street"), "the prompt is empty"),
    (("live", "--prompt", " ", "--recording", "example:street"), "the prompt is empty"),
    (("generate", "--prompt", "x", "--video", "."), "--video . alone: for one file give --recording ."),
    (("chat", "example:street", "--method", "warp"), "unknown method 'warp'"),
    ((*ASK, "--method", "eagle", "--head", "oak"), "no head 'oak'"),
    ((*ASK, "--method", "eagle", "--head", "eagle:oak"), "tree policy 'oak' is unknown for head eagle"),
    ((*ASK, "--method", "eagle", "--head", "eagle:pool"), "head eagle has no branch pool: it has no compressor that chooses"),
    ((*ASK, "--method", "eagle", "--head", "frugal:max"), "head frugal has no branch max: it has prune, pool, convolve"),
    ((*ASK, "--method", "eagle", "--head", "eagle:"), "--head eagle: has an empty part"),
    ((*ASK, "--method", "eagle", "--head", "specvlm:oak:pool"), "tree policy 'oak' is unknown for head specvlm"),
    ((*ASK, "--drafter", "fin"), "no drafter 'fin'"),
    ((*ASK, "--method", "aligned", "--adapter", "oak"), "no adapter 'oak'"),
    ((*ASK, "--method", "compressed-target", "--compress", "melt:3"), "unknown compression 'melt'"),
    ((*ASK, "--method", "compressed-target", "--compress", "pool:0"), "compression 'pool:0' leaves no visual token"),
    ((*ASK, "--method", "skip-encode", "--risk", "3"), "a risk of 3.0"),
    ((*ASK, "--decide", "cosine:0.8"), "--decide is not used by method auto"),
    ((*ASK, "--method", "skip-encode", "--decide", "cosine"), "rule 'cosine' cannot be read: give cosine:T"),
    ((*ASK, "--method", "skip-encode", "--decide", "magic"), "unknown rule 'magic'"),
    ((*ASK, "--method", "skip-encode", "--decide", "kl:1", "--risk", "0.1"), "--risk is not used by rule kl:1"),
    ((*ASK, "--method", "skip-encode", "--decide", "score", "--adapter", "features-linear"), "is for method event-eagle"),
    ((*ASK, "--max-new-tokens", "-3"), "--max-new-tokens is -3"),
    ((*ASK, "--window", "5"), "--window 5 cannot be read"),
    ((*ASK, "--window", "9s:"), "outside the recording"),
    ((*ASK, "--window", "1e300s:"), "--window 1e300s: cannot be read"),
    ((*ASK, "--window", ":nans"), "--window :nans cannot be read"),
    (("events", "simulate", "example:street", "--out", "new", "--subframes", f"{10**9}"), "'--subframes'"),
    (("events", "simulate", "example:street", "--out", "new", "--seed", "-1"), "'--seed'"),
    (("events", "simulate", "example:street", "--out", "new", "--refractory-us", f"{10**20}"), "--refractory-us is 1000"),
    (("scenes", "make", "--out", "new", "--clips", "0"), "--clips is 0: it must be at least 1"),
    ((*ASK, "--sensor", "wide"), "sensor 'wide' is unknown"),
    ((*ASK, "--device", "a b"), "device 'a b' is none"),
    ((*ASK, "--pair", "."), "no pair '.'"),
    ((*ASK, "--target", "nowhere"), "nowhere is no folder"),
    ((*ASK, "--trace", "no/where.json"), "its folder is missing"),
    ((*COMPARE, "warp"), "unknown method 'warp'"),
    ((*COMPARE, "prior", "--control", "warp"), "unknown control 'warp'"),
    ((*COMPARE, "prior"), "none.jsonl does not exist"),
    ((*COMPARE, "prior", "--head", "oak"), "no head 'oak'"),
    ((*COMPARE, "prior", "--decide", "cosine:2"), "rule 'cosine:2' cannot be read"),
    (("plan", "--tokens", "9", "--questions", "none.jsonl"), "none.jsonl does not exist"),
    (("models", "check", "nowhere"), "nowhere: no such folder"),
    (("models", "export-head", "oak", "--layout", "safeailab", "--out", "new"), "no head 'oak'"),
    (
        ("models", "export-head", "eagle", "--layout", "safeailab", "--out", "new", "--verifier", "x"),
        "--verifier is for --layout",
    ),
    (
        ("models", "export-head", "eagle", "--layout", "safeailab", "--out", "new", "--pair", "nano", "--target", "."),
        "both say",
    ),
    (("demo", "--html", "no/where.html"), "its folder is missing"),
    (("bench", "run", "warp"), "unknown experiment 'warp'"),
    (("bench", "run", "losses"), "losses reads folders"),
    (("bench", "run", "reuse", "--out", "."), ". is a folder"),
    (("bench", "report"), "is in no checkout of eventspec"),
    (("bench", "gpu", "--out", "."), ". is a folder"),
    (("scenes", "make", "--out", "new", "--split", "warp"), "split 'warp' does not exist"),
    (("train", "heads", "--out", "new", "--head", "oak"), "unknown head 'oak'"),
    ((*ASK, "--max-new-tokens", f"{10**21}"), "--max-new-tokens is 1000000000000000000000: it must be from 1 to 2147483647"),
    ((*ASK, "--max-new-tokens", "5000"), "--max-new-tokens 5000 exceeds the context of 1024"),
    ((*ASK, "--logit-bias", f"{10**9}=1"), "--logit-bias id 1000000000 is not in the vocabulary"),
    ((*ASK, "--logit-bias", "-3=1"), "--logit-bias -3=1: give an id from 0 on"),
    ((*ASK, "--stop", ""), "--stop is '': it must be texts that are not empty"),
    ((*ASK, "--json-schema", "nope.json"), "nope.json: no such file"),
    ((*ASK, "--device", "cuda"), "--device is for a checkpoint folder: give --target FOLDER"),
    ((*ASK, "--frames", "3", "--compat"), "--frames and --compat are for checkpoint folders"),
    ((*ASK, "--vocabulary", "same"), "--vocabulary says how the ids of a drafter become the target's: give --drafter"),
    ((*ASK, "--draft", "always", "--method", "autoregressive"), "nothing drafts in method autoregressive"),
    ((*COMPARE, "compressed-target", "--compress", "pool:3", "--sensor", "wide"), "sensor 'wide' is unknown"),
    ((*COMPARE, "autoregressive", "--draft", "always"), "nothing drafts in method autoregressive"),
    (("live", "--prompt", "x", "--recording", "example:street", "--logit-bias", f"{10**9}=1"), "is not in the vocabulary"),
    (("live", "--prompt", "x", "--recording", "example:street", "--hop-us", f"{10**21}"), "'--hop-us'"),
    (("chat", "example:street"), "no question came"),
    (("chat", "example:street", "--stop", ""), "--stop is ''"),
    (("chat", "example:street", "--store", "/dev/null"), "/dev/null is no folder"),
    (("chat", "example:street", "--store", "/dev/null/new"), "/dev/null/new cannot be written"),
    (("plan", "--tokens", "9", "--sensor", "wide"), "sensor 'wide' is unknown"),
    (("plan", "--tokens", "9", "--profile", "h200-7b", "--sensor", "9x9", "--draft", "always"), "--sensor and --draft"),
    (("train", "adapter", "--out", "/dev/null/new"), "/dev/null/new cannot be written"),
    (("live", "--prompt", "x", "--recording", "example:street", "--seconds", "1e20"), "at most 1e+07"),
    (("train", "embedded", "--out", "/dev/null/new"), "/dev/null/new cannot be written"),
    (("train", "mixture", "--out", "/dev/null/new"), "/dev/null/new cannot be written"),
    (("scenes", "make", "--out", "/dev/null/new"), "/dev/null/new cannot be written"),
    (("events", "convert", "example:street", "/dev/null/new"), "/dev/null/new cannot be written"),
    (("models", "export-head", "eagle", "--layout", "safeailab", "--out", "/dev/null/new"), "/dev/null/new cannot be written"),
    (("train", "adapter", "--out", "new", "--kind", "oak"), "unknown adapter to rows 'oak'"),
    (("train", "mixture", "--out", "new", "--questions", "none.jsonl"), "none.jsonl does not exist"),
)


def test_a_mistake_is_named_before_torch_is_loaded(tmp_path: Path) -> None:
    check_refused_early(REFUSED, tmp_path)
    assert not list(tmp_path.iterdir())


def test_damaged_folders_are_named_before_torch_is_loaded(tmp_path: Path) -> None:
    from eventspec.pairs.pair_file import DATA

    def folder(name: str, **files: str) -> str:
        (tmp_path / name).mkdir()
        for file, text in {"config": '{"model_type": "video_llava"}', **files}.items():
            (tmp_path / name / f"{file}.json").write_text(text)
        return name

    (tmp_path / "rows.txt").write_text("not a row\n")
    (tmp_path / "qa.jsonl").write_text(
        json.dumps({"recording": str(DATA / "clips/street_scene"), "question": "What?", "answer": "?"})
    )
    (tmp_path / "link").symlink_to("nowhere")
    cut = folder("cut", tokenizer="{}")
    (tmp_path / "cut/model.safetensors").write_bytes(b"\xff" * 9)
    index = {"model.safetensors.index": '{"weight_map": {"a": "gone.safetensors"}}'}
    lines = (
        (folder("odd", config="{"), "odd/config.json is not valid JSON"),
        (folder("mute"), "mute/tokenizer.json is missing, and so is tokenizer.model"),
        (folder("torn", tokenizer="{"), "torn/tokenizer.json is not valid JSON"),
        (folder("empty", tokenizer="{}"), "empty/model.safetensors is missing"),
        (folder("part", tokenizer="{}", **index), "part/gone.safetensors is missing"),
        (cut, "cut/model.safetensors cannot be read as safetensors"),
    )
    compare = ("bench", "compare", "--questions", "qa.jsonl", "--method", "prior", "--out", "rows.txt")
    words = [["models", "check", name] for name, _ in lines] + [[*ASK, "--target", name] for name, _ in lines]
    words += [[*ASK, "--method", "eagle", "--head", name] for name in ("odd", "part")]
    words += [list(compare), [*compare, "--resume"], ["events", "render", "example:street", "--out", "link"]]
    said = [says for _, says in lines] * 2 + ["odd/config.json is not valid JSON", "part/gone.safetensors is missing"]
    words += [["demo", "--out", "link"]]
    said += ["rows.txt holds no rows of a comparison"] * 2 + ["link: exists already", "link is a link that leads nowhere"]
    check_refused_early(zip(words, said, strict=True), tmp_path)


def test_a_checkpoint_and_a_pair_are_told_apart(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert cli.run([*ASK, "--pair", str(tmp_path)]) == 2
    assert f"give it as the target (--target {tmp_path})" in capsys.readouterr().err
    for method, wants in (("eagle", "--head FOLDER"), ("cross-modal", "--drafter FOLDER"), ("prior", "--pair FOLDER")):
        assert cli.run([*ASK, "--target", str(tmp_path), "--method", method]) == 2
        assert wants in capsys.readouterr().err
    (tmp_path / "config.json").rename(tmp_path / "pair.toml")
    assert cli.run([*ASK, "--target", str(tmp_path)]) == 2
    assert f"give it as --pair {tmp_path}" in capsys.readouterr().err


def test_an_output_is_no_input_and_no_other_output(tmp_path: Path) -> None:
    (tmp_path / "clip").mkdir()
    seen, beside = tmp_path / "clip/000.png", tmp_path / "rows.json"
    seen.write_text("x")
    (tmp_path / "way").symlink_to(tmp_path / "clip", target_is_directory=True)
    (tmp_path / "link").symlink_to(seen)
    os.link(seen, tmp_path / "hard")
    inputs = [tmp_path / "clip", None, tmp_path / "not there"]
    for place in ("clip/000.png", "clip/new.json", "way/new.json", "clip", "link", "hard", "clip/../clip/new.json"):
        with pytest.raises(BadInput, match="would change"):
            check_outputs({"--trace": tmp_path / place}, inputs)
    for place in ("clip/000.png", "link", "hard"):
        with pytest.raises(BadInput, match="would change"):
            check_outputs({"--trace": tmp_path / place}, [seen])
    check_outputs({"--trace": beside, "--plot": tmp_path / "clip.json", "--out": None}, inputs)
    for other in (beside, tmp_path / "clip/../rows.json"):
        with pytest.raises(BadInput, match=r"--out .* and --plot .* are one file"):
            check_outputs({"--out": beside, "--plot": other}, inputs)
    with pytest.raises(BadInput, match="are one file"):
        check_outputs({"--out": seen, "--plot": tmp_path / "hard"})


def test_outputs_of_commands_are_checked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    (tmp_path / "qa.jsonl").write_text(json.dumps({"recording": "pictures", "question": "What?", "answer": "?"}))
    bench = ("bench", "compare", "--method", "prior", "--questions", str(tmp_path / "qa.jsonl"), "--out")
    ask = ("generate", "--prompt", "x", "--recording", str(pictures), "--trace")
    lines: tuple[tuple[str, ...], ...] = (
        (*ask, str(pictures / "trace.json")),
        ("chat", str(pictures), "--store", str(pictures / "kept")),
        (*bench, str(pictures / "rows.jsonl")),
        (*bench, str(tmp_path / "qa.jsonl")),
        (*bench, str(tmp_path / "p.svg"), "--plot", str(tmp_path / "p.svg")),
        ("events", "convert", str(pictures), str(pictures / "new.npz")),
        ("bench", "picture", "--recording", str(pictures), "--out", str(pictures / "a.svg")),
        ("train", "mixture", "--out", str(pictures), "--questions", str(tmp_path / "qa.jsonl")),
        ("bench", "run", "losses", "--folder", str(pictures), "--out", str(pictures / "losses.json")),
        ("bench", "run", "losses", "--folder", str(pictures), "--work", str(pictures)),
        ("bench", "gpu", "--out", str(tmp_path / "qa.jsonl")),
        ("demo", "--out", str(tmp_path), "--html", str(tmp_path / "trace.json")),
        ("demo", "--out", str(tmp_path / "new"), "--html", str(tmp_path / "new")),
        ("scenes", "make", "--out", str(tmp_path)),
    )
    for words in lines:
        assert cli.run(list(words)) == 2, words
        assert capsys.readouterr().err.count("\n") == 1
    assert [path.name for path in tmp_path.rglob("*")] == ["pictures", "qa.jsonl"] or not list(pictures.iterdir())


def test_names_are_those_of_what_is_built() -> None:
    from eventspec.align import adapters
    from eventspec.compress import lossy
    from eventspec.drafters.heads import RECIPES, massv
    from eventspec.drafters.heads.families import family_of
    from eventspec.drafters.heads.massv import SmallVlm
    from eventspec.drafters.heads.trees import TREE_POLICIES
    from eventspec.drafters.retokenized import MAPPINGS
    from eventspec.experiments.names import SEES_EVENTS
    from eventspec.pairs import methods
    from eventspec.pairs import names as pairs
    from eventspec.train import adapters as adapting
    from eventspec.train import embedded, heads, lora, mixture, packer
    from eventspec.train import names as train
    from eventspec.train.adapting import LOSSES

    assert tuple(methods.BUILDERS) == tuple(pairs.METHODS) and set(SEES_EVENTS) < set(pairs.METHODS)
    assert ("auto", "same", *MAPPINGS) == pairs.VOCABULARY_MAPPINGS
    assert (*lossy.KINDS, "fastv", "packer") == pairs.COMPRESSIONS
    assert (TREE_POLICIES, SmallVlm.tree_policies) == (pairs.TREES, pairs.SMALL_VLM_TREES)
    assert massv.FAMILY.kind == pairs.SMALL_VLM and massv.FAMILY.head is SmallVlm
    recipes = {"embedded": embedded, "heads": heads, "adapters": adapting, "lora": lora, "mixture": mixture, "packer": packer}
    for name, module in recipes.items():
        assert set(train.PRESETS[name]) == set(module.PRESETS), name
    assert set(train.HEADS) == set(RECIPES) and train.HEADS[:4] == heads.NAMES
    kinds = {output: set(adapters.kinds_to(output)) for output in adapting.TRAININGS}
    assert {output: set(names) for output, names in train.KINDS.items()} == kinds and tuple(LOSSES) == train.LOSSES
    assert tuple(adapting.SHARES) == (*train.PHASES, *train.FURTHER_PHASES) and get_args(adapters.Reads) == train.READS
    stranger: Any = type("Stranger", (), {"family": "medusa"})()
    with pytest.raises(BadInput, match="Stranger is of family 'medusa', which is none of"):
        family_of(stranger)


def test_an_empty_line_ends_what_is_typed_and_nothing_of_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    for interactive, found in ((False, ["one", "two"]), (True, ["one"])):
        monkeypatch.setattr(sys, "stdin", io.StringIO("one\n  \n\ntwo"))
        assert list(_questions(interactive)) == found


def test_a_bare_call_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([]) == 0
    assert "Commands:" in capsys.readouterr().out


def test_chat_takes_the_settings_of_generate_and_prints_an_object_a_question(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("What is ahead?\n\nDescribe the scene.\n"))
    words = ["chat", "example:street", "--json", "--method", "autoregressive", "--regex", "We .*", "--top-k", "1"]
    assert cli.run([*words, "--max-new-tokens", "6"]) == 0
    told = capsys.readouterr()
    found = [json.loads(line) for line in told.out.splitlines()]
    assert [answer["question"] for answer in found] == ["What is ahead?", "Describe the scene."]
    assert all(answer["text"].startswith("We ") and answer["recording"] == "street_scene" for answer in found)
    assert told.err == "note: --top-k without effect: at temperature 0 the likeliest token is taken\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n"))
    assert cli.run(["chat", "example:street"]) == 2
    assert "no question came" in capsys.readouterr().err


def test_asking_without_a_pause_says_what_it_costs(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["live", "--recording", "example:street", "--prompt", "What is ahead?", "--seconds", "1", "--max-new-tokens", "4"]
    assert cli.run([*words, "--method", "autoregressive", "--every", "1e-9", "--json"]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert sum("longer than --every 1e-09: there was hardly any time" in note for note in notes) == 1


def test_the_figures_of_a_training_are_those_of_its_heads() -> None:
    both, one = ({"calibration": {"tau": tau}} for tau in ({"eagle": 2.5, "hivis": 2.0}, {"eagle": 2.5}))
    assert _taus(both, ["eagle"], "calibration clips") == [
        "eagle    tau of a chain of 8 on calibration clips: 2.50",
        "not trained now: hivis",
    ]
    assert len(_taus(one, ["eagle"], "calibration clips")) == 1


def test_one_of_a_thing_is_no_plural() -> None:
    assert (several(0, "clip"), several(1, "clip"), several(2, "clip")) == ("0 clips", "1 clip", "2 clips")
    assert several(1, "frame is", "frames are") + several(3, "frame is", "frames are") == "1 frame is3 frames are"
