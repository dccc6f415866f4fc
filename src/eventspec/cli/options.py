"""Options and arguments that several commands have, as groups where they go together: what is asked about, who answers, and
what drafts. What can be checked without a model is checked before one is loaded."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from eventspec.errors import BadInput, check_risk
from eventspec.files import check_empty, check_writable
from eventspec.machine import NO_SPREAD, SPREAD

if TYPE_CHECKING:
    from eventspec.pairs import Pair
    from eventspec.pairs.pair_file import PairFile
    from eventspec.recordings.qa import Check


def given_path(given: str | Path) -> Path:
    """Reads every option and argument of type Path. typer.BadParameter for an empty name: ``--out "$UNSET"`` must not become
    the working folder, which is what Path makes of it."""
    if isinstance(given, str) and not given.strip():
        raise typer.BadParameter("the path is empty: name a file or a folder")
    return Path(given)


def typed(name: str) -> str:
    """An option as it is typed."""
    return f"--{name.replace('_', '-')}"


def path(help: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, parser=given_path, help=help, **more)


def path_argument(help: str, **more: Any) -> Any:
    return typer.Argument(parser=given_path, help=help, show_default=False, **more)


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
PairName = Annotated[str, typer.Option(help="A bundled pair (nano, also called embedded), or the folder of a pair.toml.")]
PairOrNone = Annotated[
    str | None,
    typer.Option(help="A bundled pair (nano, also called embedded), or the folder of a pair.toml; without --target: nano."),
]
Method = Annotated[str, typer.Option(help="Who drafts; `eventspec models list` lists them.")]
Draft = Annotated[
    Literal["auto", "always"],
    typer.Option("--draft", help="auto: what is worth its cost as measured here; always: all that --method may draft."),
]
DevicePlan = Annotated[
    Literal["auto", "one", "two"], typer.Option(help="one: shared by the models; two: one each, on a CPU a core; auto.")
]
Risk = Annotated[float | None, typer.Option(help="For method skip-encode: the share of answers that may differ, as 0.05.")]
Decide = Annotated[
    str | None,
    typer.Option(
        help="For method skip-encode: the rule that lets an answer from events stand, predictor (the default), entropy or "
        "events, also by kind or scene as predictor:kind; cosine:T, kl:X, score, score:kl, which encode the frames; "
        "score:predictor."
    ),
]
Target = Annotated[Path | None, path("A checkpoint folder that answers, instead of a pair.")]
Precision = Literal["float32", "bfloat16", "float16", "auto", "nf4", "int8"]
Dtype = Annotated[
    Precision | None,
    typer.Option(
        help="Of checkpoints; auto: as stored; nf4, int8: of the target, on CUDA. [default: float32, or as the pair.toml says]"
    ),
]
IgnoreGenerationConfig = Annotated[
    bool, typer.Option("--ignore-generation-config", help="Take no settings from the generation_config.json of --target.")
]
Device = Annotated[
    str | None,
    typer.Option(
        help="Where checkpoints run: cpu, cuda, cuda:1, ...; auto: a target of transformers over all CUDA devices. "
        "[default: cpu, or as the pair.toml says]"
    ),
]
DrafterDevice = Annotated[
    str | None,
    typer.Option(help="Where the drafter of checkpoints runs, if not on --device: --device-plan two is two devices."),
]


SPECIALS = 1 << 10
"""Ids that a tokenizer may have beyond those that its model has rows for."""
Drafter = Annotated[
    str | None, typer.Option(help="The checkpoint folder that drafts for --target, or another event drafter for --pair.")
]
Head = Annotated[
    str | None,
    typer.Option(
        help="Another head, NAME[:TREE][:BRANCH]: a folder or one of --pair's; dynamic, static, published, chain or eagle2 (of "
        "massv: pruned). BRANCH forces what specvlm's gate chooses: prune, pool, max, convolve, resample or none."
    ),
]
Adapter = Annotated[
    str | None, typer.Option(help="For aligned, event-eagle, skip-encode or hybrid: an adapter of --pair, or a folder.")
]
Compress = Annotated[
    str | None,
    typer.Option(
        help="For method compressed-target (by itself pool:3), one visual row of N: prune:N, pool:N, attention:N, fastv:N; one "
        "of each N x N patches: grid:N, max:N, packer:N."
    ),
]
Learn = Annotated[
    bool, typer.Option("--learn", help="Let the head learn from the target's verdicts while it drafts; answers stay the same.")
]
Vocabulary = Annotated[
    Literal["auto", "same", "retokenize", "intersect"], typer.Option(help="How drafter and target share ids.")
]


@dataclass(frozen=True)
class Chosen:
    """What drafts, beside a method."""

    drafter: Drafter = None
    head: Head = None
    compress: Compress = None
    adapter: Adapter = None
    risk: Risk = None
    decide: Decide = None
    learn: Learn = False
    learned: Annotated[Path | None, path("With --learn: write the head there in the end, for --head FOLDER.")] = None

    @property
    def given(self) -> dict[str, Any]:
        """What was chosen, by the option's name; where what was learned is written is no choice."""
        return {name: value for name, value in asdict(self).items() if value not in (None, False) and name != "learned"}

    def check(self) -> None:
        """BadInput for a place where what is learned cannot be written."""
        if self.learned is not None:
            if not self.learn:
                raise BadInput(f"--learned {self.learned}: nothing learns without --learn: give it as well")
            check_empty(self.learned.resolve())

    def keep(self, pair: Pair) -> None:
        """Write what was learned, where that was asked for."""
        if self.learned is not None:
            typer.echo(f"note: {pair.save_learned(self.learned.resolve())}", err=True)

    @contextmanager
    def keeping(self, pair: Pair) -> Iterator[None]:
        """As `keep` behind what runs in here, also where that is interrupted or fails; then a note says what is not kept."""
        try:
            yield
        except BaseException:
            try:
                self.keep(pair)
            except BadInput as error:
                typer.echo(f"note: what was learned is not kept: {error}", err=True)
            raise
        self.keep(pair)


@dataclass(frozen=True)
class Models:
    """Who answers."""

    pair: PairOrNone = None
    target: Target = None
    vocabulary: Vocabulary = "auto"
    frames: Annotated[int | None, typer.Option(min=1, help="Frames that --target sees; default: what its config says.")] = None
    allow_extrapolation: Annotated[
        bool, typer.Option(help="Allow more frames than the context holds: times only, no quality.")
    ] = False
    compat: Annotated[bool, typer.Option(help="EventGPT exactly as its own code draws events, odd image sizes included.")] = (
        False
    )
    dtype: Dtype = None
    device: Device = None
    drafter_device: DrafterDevice = None
    ignore_generation_config: IgnoreGenerationConfig = False
    device_plan: DevicePlan = "auto"
    draft: Draft = "auto"

    def check(self, methods: Sequence[str], chosen: Chosen, also: Mapping[str, Iterable[str]] | None = None) -> list[Path]:
        """BadInput, before minutes of loading, for methods, models and parts that there are not, or that do not go together;
        the folders that are read. `also`: more parts of a kind, as a comparison has them."""
        from eventspec.pairs.fitting import check_decisions, check_learning, check_loading, check_parts
        from eventspec.pairs.inventory import check_offered
        from eventspec.pairs.names import CHOICES, DRAFTLESS, SKIP, check_choices, check_decision, check_method

        chosen.check()
        for method in methods:
            check_method(method)
        # Beside --target, --drafter is no choice but the other half of the pair: its baseline is run with the same line.
        check_choices(methods, [name for name in chosen.given if self.target is None or name != "drafter"])
        check_devices(self.device, self.drafter_device)
        if chosen.risk is not None:
            check_risk(chosen.risk)
        decisions = [check_decision(rule, None) for rule in (also or {}).get("decide", ())]
        for kind, values in {**(also or {}), "decide": list(map(str, decisions))}.items():
            if twice := [value for value, count in Counter(values).items() if count > 1]:
                raise BadInput(f"--{kind} {twice[0]} is there twice: each is a row of its own, give it once")
        if chosen.decide is not None:
            decisions.append(check_decision(chosen.decide, chosen.risk))
        if self.vocabulary != "auto" and not (chosen.drafter or (also or {}).get("drafter")):
            raise BadInput("--vocabulary says how the ids of a drafter become the target's: give --drafter as well")
        if self.draft == "always" and set(methods) <= set(DRAFTLESS) and not any((also or {}).values()):
            raise BadInput(f"--draft always: nothing drafts in method {' or '.join(methods)}: leave it out, or choose another")
        if self.target is not None:
            self._check_of_target(methods, chosen.given)
        file = self.file(chosen)
        if self.target is None:
            file.check_models()
            if file.load is None and (alone := [typed(name) for name in self._how]):
                whose = "is for a checkpoint folder" if len(alone) == 1 else "are for checkpoint folders"
                raise BadInput(f"{' and '.join(alone)} {whose}: give --target FOLDER as well")
            check_offered([one for one in methods if not any(one in CHOICES[name] for name in chosen.given)], file)
        if file.load is not None:
            how = {**file.load, **self._how}
            check_loading(file.place("target"), how.get("dtype"), how.get("device"), how.get("drafter_device"))
        which, mapping = self._drafting(chosen)
        parts = {name: [] if (own := getattr(chosen, name)) is None else [own] for name in ("head", "compress", "adapter")}
        parts["drafter"] = [] if which is None else [f"{which}:{mapping}"]
        given = {name: [*own, *(also or {}).get(name, ())] for name, own in parts.items()}
        reads = None if chosen.adapter is None else next((one for one in methods if one in CHOICES["adapter"]), None)
        check_decisions(decisions, file, chosen.adapter)
        found = [file.folder, *check_parts(given, file, None if reads == SKIP and chosen.decide else reads)]
        if chosen.learn:
            check_learning(given["head"], file)
        return found

    def file(self, chosen: Chosen | None = None) -> PairFile:
        """Who answers, as a pair's file: that of --pair, or one of --target and what drafts for it."""
        from eventspec.pairs.pair_file import PairFile, folder_of

        if self.target is None:
            return PairFile.read(folder_of(self.name, or_target=True))
        which = None if chosen is None else self._drafting(chosen)[0]
        files = {"target": str(self.target.resolve())} | ({} if which is None else {"drafter": str(Path(which).resolve())})
        return PairFile(self.target, self.target.resolve().name, files, load={})

    def suits(self, methods: Sequence[str], may_be_empty: Collection[str] = ()) -> Check:
        """As `fitting.suits`: which recordings can be asked about is known before a model is loaded."""
        from eventspec.pairs.fitting import suits

        return suits(self.file(), methods, may_be_empty)

    def _check_of_target(self, methods: Sequence[str], given: Mapping[str, Any]) -> None:
        from eventspec.models.shards import check_files
        from eventspec.pairs.names import WANTED

        if self.pair is not None:
            raise BadInput(f"--pair {self.pair} and --target {self.target} both say who answers: give one of them")
        assert self.target is not None  # who calls this looked
        if not (self.target / "config.json").is_file() and (self.target / "pair.toml").is_file():
            raise BadInput(f"{self.target} is the folder of a pair, and no checkpoint: give it as --pair {self.target}")
        if not self.target.is_dir():
            raise BadInput(f"{self.target} is no folder: give the folder of a checkpoint, with its config.json")
        for method in methods:
            wanted = WANTED.get(method)
            if wanted == ():
                raise BadInput(f"there is no drafter for method {method} with a checkpoint: it is for a pair (--pair FOLDER)")
            if wanted is not None and not set(wanted) & given.keys():
                lacks = f"method {method} needs more than the checkpoint {self.target}"
                ways = " or ".join("--compress pool:3" if name == "compress" else f"--{name} FOLDER" for name in wanted)
                raise BadInput(f"{lacks}: add {ways}, or give a pair (--pair FOLDER)")
        check_files(self.target)

    def check_room(self, longest: int, last_id: int) -> None:
        """BadInput for an answer or an id that the target cannot have, as far as its folder says so without being loaded."""
        from eventspec.pairs.fitting import language_of

        folder = self.file().place("target")
        data = language_of(folder)
        context, ids = data.get("max_position_embeddings"), data.get("vocab_size")
        if type(context) is int and longest >= context and not self.allow_extrapolation:
            raise BadInput(f"max_new_tokens {longest} exceeds the context of {context} tokens, prompt included: ask for fewer")
        if type(ids) is int and last_id >= ids + SPECIALS:
            raise BadInput(f"logit_bias id {last_id} is not in the vocabulary: {folder} has {ids} ids")

    @property
    def name(self) -> str:
        """Who answers: a folder, or the name of a bundled pair, of which `embedded` is another name."""
        from eventspec.pairs.pair_file import by_name

        if self.target is not None:
            return str(self.target)
        named = "embedded" if self.pair is None else self.pair
        return named if (bundled := by_name(named)) is None else bundled.name

    @property
    def _how(self) -> dict[str, Any]:
        """How checkpoint folders are loaded, as far as it was given."""
        names = ("dtype", "device", "drafter_device", "frames", "allow_extrapolation", "compat", "ignore_generation_config")
        return {name: value for name in names if (value := getattr(self, name)) not in (None, False)}

    def _drafting(self, chosen: Chosen) -> tuple[str | None, str]:
        """Which drafter was chosen, and how its ids become the target's."""
        from eventspec.pairs.names import name_and_choice

        return (None, self.vocabulary) if chosen.drafter is None else name_and_choice(chosen.drafter, self.vocabulary)

    def about(self, chosen: Chosen) -> dict[str, Any]:
        """What figures depend on, of a checkpoint that answers, and where that is otherwise than its pair.toml says."""
        if self.target is None:
            from eventspec.pairs.pair_file import PairFile, folder_of

            load = PairFile.read(folder_of(self.name)).load or {}
            how = self._how if self.vocabulary == "auto" else {**self._how, "vocabulary": self.vocabulary}
            return {name: value for name, value in how.items() if value != load.get(name)}
        which, mapping = self._drafting(chosen)
        drafter = None if which is None else str(Path(which).resolve())
        where = {"target": str(self.target.resolve()), "drafter": drafter, "dtype": self.dtype or "float32"}
        more = {"frames": self.frames, "head": chosen.head, "compress": chosen.compress}
        more |= {"ignore_generation_config": self.ignore_generation_config or None}
        given = {name: value for name, value in more.items() if value is not None}
        return {**where, "vocabulary": mapping, "device": self.device or "cpu", **given}

    def load(self, methods: Sequence[str], chosen: Chosen, fit: bool = True) -> Pair:
        """The pair of --pair or --target, with what else was chosen."""
        from eventspec.models.loading import LoadOptions
        from eventspec.pairs import load_folders, load_pair
        from eventspec.pairs.names import CHOICES, SEEING_EVENTS

        which, mapping = self._drafting(chosen)
        method = next((one for one in methods if one in SEEING_EVENTS), methods[0])
        if self.target is not None:
            how = LoadOptions.named(**self._how)
            drafter = None if which is None else Path(which)
            more: dict[str, Any] = {"vocabulary": mapping, "how": how, "device_plan": self.device_plan}
            loaded = load_folders(self.target, drafter, method=method, **more)
        else:
            loaded = load_pair(self.name, self.device_plan, fit, method=method, **self._how)
            loaded = loaded if which is None else loaded.with_event_drafter(which, mapping)
        loaded = loaded if chosen.head is None else loaded.with_head(chosen.head)
        loaded = loaded if chosen.compress is None else loaded.with_compression(chosen.compress)
        if chosen.adapter is not None:
            reads = None if chosen.decide else next((one for one in methods if one in CHOICES["adapter"]), None)
            loaded = loaded.with_adapter(chosen.adapter, reads)
        loaded = loaded if chosen.decide is None else loaded.with_decision(chosen.decide, chosen.adapter)
        loaded = loaded if chosen.risk is None else loaded.with_risk(chosen.risk, chosen.adapter)
        loaded = loaded.drafting(self.draft)
        return loaded.with_learning(methods) if chosen.learn else loaded


def check_devices(target: str | None, drafter: str | None) -> None:
    """BadInput for what is no name of a device; whether it is there is known once torch is loaded."""
    if drafter == SPREAD:
        raise BadInput(NO_SPREAD)
    for device in (target, drafter):
        if device is not None and not re.fullmatch(r"[a-z]+(:\d+)?", device):
            raise BadInput(f"device '{device}' is none: choose cpu, cuda, cuda:1, ..., as `eventspec doctor` finds them")


def given(context: typer.Context) -> dict[str, Any]:
    """The options that stand on the command line."""
    sources = ((name, context.get_parameter_source(name)) for name in context.params)
    return {name: context.params[name] for name, source in sources if source is not None and source.name != "DEFAULT"}


def check_in_folder(path: Path, option: str) -> None:
    """BadInput for a file that could not be written at the end of long work: its folder is missing or closed, or it is one."""
    if not path.parent.is_dir():
        raise BadInput(f"{option} {path} cannot be written, its folder is missing: choose another place")
    check_writable(path)


def print_found(found: object, as_json: bool, *lines: str) -> None:
    """One JSON object for programs, or lines for people."""
    typer.echo(json.dumps(found) if as_json else "\n".join(lines))


def print_notes(notes: Iterable[str]) -> None:
    """On standard error, so that standard output stays one JSON object or one answer."""
    for note in notes:
        typer.echo(f"note: {note}", err=True)
