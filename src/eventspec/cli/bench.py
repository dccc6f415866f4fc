"""``eventspec bench``: comparisons, measurements that are published, and the pages that publish them."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from eventspec.cli import options
from eventspec.cli.bars import tracked, waiting
from eventspec.cli.drawn import Drawn
from eventspec.cli.help import App
from eventspec.cli.picture import picture
from eventspec.cli.recorded import Reading
from eventspec.cli.show import LATE_GUESS
from eventspec.errors import BadInput
from eventspec.files import check_files, check_folder, check_outputs, check_writable, write_text

if TYPE_CHECKING:
    from eventspec.recordings.qa import Check, Question

bench = App(help="Measure methods against each other, with their controls and ceilings.", no_args_is_help=True)

Controls = Annotated[
    list[str] | None,
    typer.Option(
        *("--control", "--events"),  # as it was called first: questions bring their own recordings, so no file is meant
        help="Whose events drafters see: real, blank, shuffled (of another clip), scattered (random pixels). Repeatable.",
    ),
]
Contexts = Annotated[
    list[str] | None,
    typer.Option(
        help="cold; warm: another question about the recording was asked before; live: frames were read as they came, nothing "
        "was asked. Repeat it for several."
    ),
]


@dataclass(frozen=True)
class Compared:
    """What drafts, several of a kind. With --target the first of each is what the methods draft with, as in
    `generate`; any other is one row more."""

    drafter: Annotated[
        list[str] | None,
        typer.Option(help="As for generate. One row more: another event drafter, NAME or NAME:MAPPING. Repeatable."),
    ] = None
    head: Annotated[
        list[str] | None,
        typer.Option(help="As for generate. One row more: eagle with NAME, NAME:TREE or NAME:BRANCH. Repeatable."),
    ] = None
    compress: Annotated[
        list[str] | None, typer.Option(help="As for generate. One row more: compressed-target with KIND:N. Repeatable.")
    ] = None
    adapter: Annotated[
        list[str] | None,
        typer.Option(help="As for generate. One row more: aligned or event-eagle with another adapter. Repeatable."),
    ] = None
    risk: options.Risk = None
    decide: Annotated[
        list[str] | None, typer.Option(help="As for generate. One row more: skip-encode by another rule. Repeatable.")
    ] = None

    learn: options.Learn = False

    def split(self, alone: bool) -> tuple[options.Chosen, dict[str, list[str]]]:
        """What the methods themselves draft with, of a checkpoint that answers `alone`, and what is a row of its own."""
        kinds = {name: getattr(self, name) or [] for name in ("drafter", "head", "compress", "adapter", "decide")}
        own = {name: given[0] for name, given in kinds.items() if alone and given}
        return options.Chosen(**own, risk=self.risk, learn=self.learn), {
            name: given[len(given) and alone :] for name, given in kinds.items()
        }


Folder = Annotated[list[Path] | None, options.path("Of a training or a checkpoint, for those that read some. Repeatable.")]
Results = Annotated[Path | None, options.path("The results file; what else it holds stays.")]
Quick = Annotated[bool, typer.Option("--quick", help="The smallest sizes, which show that it runs.")]

Figures = Mapping[str, Any]
Columns = Mapping[str, Callable[[Figures, int], str]]
GAP = 2
"""Letters between two columns."""
LEGEND = (
    "ceiling: total over vision and prefill, which every lossless method pays. tau: tokens a round. provisional, committed: "
    "milliseconds to the first of these tokens, means; kept: of the provisional ones. accept: accepted of drafted levels. "
    f"seen: first choices of the drafter that are right where the blind prior is wrong. {LATE_GUESS}"
)


def _interval(own: Figures) -> str:
    low, high = own.get("speedup_ci95") or (None, None)
    return "-" if low is None or low == high else f"{low:.2f} .. {high:.2f}"


def _shown(name: str, form: str) -> Callable[[Figures, int], str]:
    """A figure in a format, or a dash."""
    return lambda own, n: "-" if own.get(name) is None else form.format(own[name], n=n)


SPEEDS: Columns = {
    "speedup": _shown("speedup", "{:.2f}x"),
    "95 %": lambda own, n: _interval(own),
    "ceiling": lambda own, n: _shown("ceiling", "{:.2f}x")(own if own["lossless"] else {}, n),
    "tau": _shown("tau", "{:.2f}"),
    "identical": _shown("identical", "{} of {n}"),
    "drafts": lambda own, n: f"declined: cost, {own['declined']} of {n}" if own.get("declined") else "-",
}
TIMES: Columns = {
    "provisional": _shown("first_provisional_ms", "{:.0f}"),
    "kept": _shown("provisional_kept", "{:.0%}"),
    "committed": _shown("first_committed_ms", "{:.0f}"),
    "total": _shown("total_ms", "{:.0f}"),
    "accept": _shown("acceptance", "{:.0%}"),
    "seen": _shown("acceptance_vision", "{:.0%}"),
}


@bench.command()
def compare(
    call: typer.Context,
    questions: Annotated[Path, options.path("A qa.jsonl, as `scenes make` writes it.")],
    out: Annotated[Path, options.path("Rows go here, one JSON line a sample and method.")],
    method: Annotated[list[str], typer.Option(help="May be repeated; include autoregressive for speedups.")],
    models: options.Models,
    compared: Compared,
    reading: Reading,
    drawn: Drawn,
    control: Controls = None,
    context: Contexts = None,
    limit: Annotated[int, typer.Option(min=0, help="At most this many questions; 0 = all.")] = 0,
    held_out: Annotated[
        bool, typer.Option("--held-out", help="Only about recordings that trainings on the same questions keep back.")
    ] = False,
    resume: Annotated[bool, typer.Option(help="Go on with the rows in --out: only what is missing is measured.")] = False,
    plot: Annotated[Path | None, options.path("Draw the speedups: a .png or .svg file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object.")] = False,
) -> None:
    """The same questions with several methods, interleaved; prints the summary. Rows are kept as they are measured."""
    from eventspec.experiments.names import check_arms
    from eventspec.pairs.names import check_choices
    from eventspec.recordings.recording import whole_of

    methods, controls, contexts = (list(dict.fromkeys(given)) for given in (method, control or ["real"], context or ["cold"]))
    chosen, others = compared.split(models.target is not None)
    folders = models.check(methods, chosen, others)
    if chosen.drafter is not None:
        check_choices(methods, ["drafter"])
    check_arms(methods, controls, contexts)
    given = drawn.given(call, models)
    about = {**asdict(reading), "risk": compared.risk, "draft": models.draft, **models.about(chosen), **drawn.grammar}
    about |= {name: True for name, wanted in (("held_out", held_out), ("learn", compared.learn)) if wanted}
    suits = models.suits(methods if "real" in controls else ["autoregressive"], ("events",))
    asked = _asked(questions, limit, held_out, reading, suits)
    read = [questions, drawn.json_schema, *folders, *dict.fromkeys(whole_of(one.recording) for one in asked)]
    _check_places(out, plot, {**_settled(call, models, drawn), **about} if resume else None, read)

    with waiting("loading the models"):
        from eventspec.experiments.compare import Comparison, Interrupted, others_of
        from eventspec.experiments.compare import compare as measure
        from eventspec.pairs import warm_up

        ready = models.load(methods, chosen, fit=False)
        ready = ready if models.target is not None else warm_up(ready)
        arms = others_of(ready, others, controls[0], fit=models.target is None)
        sampling = ready.tokens.settings(None, drawn.spelled(ready, given))
        ready, arms = ready.drafting(models.draft), [replace(arm, pair=arm.pair.drafting(models.draft)) for arm in arms]
    known_by_heart = _learned_from(models, asked)
    asking = Comparison(ready, asked, methods, sampling, controls, contexts, arms, reading.open, about=about)
    try:
        with tracked() as show:
            found = measure(asking, out, lambda done, total: show("comparing", done / total, {}), resume)
    except Interrupted as cut:
        stopped = f"stopped: {out} keeps {cut.rows} of {cut.wanted} rows, --resume goes on with it"
        if cut.summary is not None:
            _print_summary({**cut.summary, **known_by_heart, "stopped": stopped}, out, plot, as_json)
        typer.echo(stopped, err=True)
        raise
    _print_summary({**found, **known_by_heart}, out, plot, as_json)


def _asked(place: Path, limit: int, held_out: bool, reading: Reading, suits: Check) -> list[Question]:
    """The questions of a file, `held_out`: those about recordings that trainings on all of them keep back; BadInput where there
    is one recording only."""
    from eventspec.recordings.qa import held_out as recordings_of
    from eventspec.recordings.qa import read_questions

    if not held_out:
        return read_questions(place, limit, reading.open, suits)
    asked = read_questions(place, 0, reading.open, suits)
    kept = recordings_of(asked)
    if not kept:
        raise BadInput(f"--held-out: {place} asks about one recording only, of which trainings keep nothing back: add another")
    return [question for question in asked if question.resolved in kept][: limit or None]


def _learned_from(models: options.Models, asked: list[Question]) -> dict[str, Any]:
    """How many questions are about recordings that parts of the pair learned from, and which parts; nothing without any."""
    from eventspec.pairs.pair_file import PairFile, folder_of

    known = {} if models.target is not None else PairFile.read(folder_of(models.name)).learned
    parts = [known[place] for question in asked if (place := str(question.resolved)) in known]
    names = dict.fromkeys(name for several in parts for name in several.split(", "))
    return {"learned_from": {"questions": len(parts), "parts": list(names)}} if parts else {}


def _settled(call: typer.Context, models: options.Models, drawn: Drawn) -> dict[str, Any]:
    """What rows say of the pair and of how answers are drawn, as far as that is known without a model."""
    file, typed = models.file(), options.given(call)
    names = ("max_new_tokens", "temperature", "seed")  # for which a checkpoint may come with settings of its own
    return {"pair": file.name, **{name: getattr(drawn, name) for name in names if file.load is None or name in typed}}


def _check_places(out: Path, plot: Path | None, resumed: Figures | None, read: list[Path | None]) -> None:
    """BadInput for rows or a picture that cannot be written, or would change what is `read`; and for rows to go on with that
    were measured with other settings than those of the comparison that is `resumed`."""
    from eventspec.experiments.rows import beside, check_place, check_same

    if plot is not None and plot.suffix not in (".png", ".svg"):
        raise BadInput(f"--plot {plot} is neither a .png nor a .svg file: give it one of these names")
    check_files({"--out": out, "--plot": plot}, read)
    check_place(out, resumed is not None)
    if resumed is not None and resumed.get("learn"):
        raise BadInput("--resume goes on with rows, and heads that learn would begin anew: leave it out, or leave --learn out")
    if resumed is not None:
        check_same(out, resumed)
    check_outputs({"--out": out, "what is found out beside --out": beside(out), "--plot": plot}, read)


def _print_summary(found: dict[str, Any], out: Path, plot: Path | None, as_json: bool) -> None:
    """The summary for people or programs, and its picture."""
    from rich.console import Console

    if plot is not None:
        from eventspec.experiments.charts import draw

        plot.parent.mkdir(parents=True, exist_ok=True)
        draw(found, plot)
    if as_json:
        options.print_found(found, True)
        return
    files = f"rows: {out}, what drafters see: {out.with_name(f'{out.stem}.vision.jsonl').name}"
    picture_at = "" if plot is None else f"; picture: {plot}"
    typer.echo("\n".join([*lines(found, Console().width), files + picture_at]))


def lines(found: Figures, width: int) -> list[str]:
    """A summary of `experiments.compare` in lines of at most `width` letters: the verdict, then small tables; a name is never
    broken, one that is longer than a line excepted."""
    from eventspec.experiments.verdict import remarks, verdict

    def wrapped(*texts: str) -> list[str]:
        return [line for text in texts for line in textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)]

    methods, n = found["methods"], found["n"]
    speeds, times = (_table(columns, methods, n, width) for columns in (SPEEDS, TIMES))
    return [*wrapped(verdict(methods, n)), "", *speeds, "", *times, "", *wrapped(*remarks(found), LEGEND)]


def _table(columns: Columns, methods: Mapping[str, Figures], n: int, width: int) -> list[str]:
    """One line a method, two where its name is too long to stand beside its figures; columns without any figure are left
    out."""
    from eventspec.experiments.verdict import grouped

    cells = {head: {name: make(own, n) for name, own in methods.items()} for head, make in columns.items()}
    cells = {head: own for head, own in cells.items() if any(cell != "-" for cell in own.values())}
    widths = {head: max(len(head), *map(len, own.values())) for head, own in cells.items()}
    taken = sum(GAP + wide for wide in widths.values())
    first = max([len("method"), *(len(name) for name in methods if len(name) + taken <= width)])

    def line(name: str, row: Iterable[str]) -> list[str]:
        figures = "".join(" " * GAP + cell.rjust(wide) for cell, wide in zip(row, widths.values(), strict=True))
        return [name.ljust(first) + figures] if len(name) <= first else [name, " " * first + figures]

    page = line("method", widths)
    for title, names in grouped(methods):
        page += ["", title] if title else []
        page += [part for name in names for part in line(name, [own[name] for own in cells.values()])]
    return [part.rstrip() for part in page]


@bench.command()
def run(
    name: Annotated[list[str] | None, typer.Argument(help="Which experiments; without any, they are listed.")] = None,
    pair: options.PairName = "nano",
    folder: Folder = None,
    work: Annotated[Path | None, options.path("Scenes and rows stay here; else rows are kept until all are measured.")] = None,
    out: Results = None,
    quick: Quick = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure again what the results file holds.")] = False,
) -> None:
    """Measure what README and docs publish. Results go into benchmarks/results of the checkout, or into --out; with --quick
    alone they are printed. `bench report` writes the pages."""
    from eventspec.experiments.measures import EXPERIMENTS, check, known
    from eventspec.experiments.measures import run as measure
    from eventspec.experiments.reports import checkout
    from eventspec.pairs.pair_file import folder_of

    if not name:
        for one, it in EXPERIMENTS.items():
            typer.echo(f"{one:16}{it.about}{f'; --folder: {it.folders}' if it.folders else ''}")
        return
    folders = tuple(folder or ())
    check(name, folders)
    if out is not None and len({EXPERIMENTS[one].results for one in name}) > 1:
        raise BadInput("these experiments have results files of their own: run one with --out, or leave it out")
    check_outputs({"--out": out, "--work": work}, [folder_of(pair), *folders])
    if work is not None:
        check_folder(work)
    places = {one: _place(EXPERIMENTS[one].results, out, quick) for one in name}
    for place in places.values():
        known(place)  # what holds no results is not replaced
    scratch = work or (None if quick else out.with_suffix(".work") if out else checkout(Path.cwd()) / "runs/bench")
    with waiting("loading"):
        from eventspec.experiments.measures.setup import Setup
    try:
        with tracked() as show:
            for one, place in places.items():
                if place is not None:
                    place.parent.mkdir(parents=True, exist_ok=True)
                progress = partial(lambda name, share: show(name, share, {}), one)
                setup = Setup(pair, quick, folders, scratch, keep=work is not None, progress=progress)
                found = measure(one, setup, place, fresh)
                typer.echo(json.dumps(found) if place is None else f"{one}: {place}")
    except KeyboardInterrupt:
        if scratch is not None:
            typer.echo(f"what was measured is kept in {scratch} and the results: the same line goes on with it", err=True)
        raise


def _place(results: str, out: Path | None, quick: bool) -> Path | None:
    """Where results go; None where they are printed. BadInput where that cannot be written."""
    from eventspec.experiments.reports import FOLDER, checkout

    if out is None and quick:
        return None
    place = out or checkout(Path.cwd()) / FOLDER / f"{results}.json"
    check_writable(place)
    return place


@bench.command()
def report(check: Annotated[bool, typer.Option("--check", help="Write nothing; exit 1 where a page differs.")] = False) -> None:
    """Write what README and docs say of benchmarks/results, in the checkout that the current folder lies in."""
    from eventspec.experiments.reports import checkout, stale, write, written

    root = checkout(Path.cwd())
    with waiting("reading results"):
        files = written(root)
        changed = stale(files) if check else write(files)
    for path in changed:
        what = "is not what the results say: eventspec bench report writes it" if check else "written"
        typer.echo(f"{path.relative_to(root)} {what}", err=check)
    if not changed:
        typer.echo(f"{len(files)} files are what the results say")
    elif check:
        raise typer.Exit(1)


@bench.command()
def gpu(
    out: Results = None,
    quick: Quick = False,
    device: Annotated[str, typer.Option(help="cuda, cuda:1, or cpu.")] = "cuda",
    dtype: Annotated[Literal["float32", "bfloat16", "float16"], typer.Option(help="Of the weights.")] = "bfloat16",
) -> None:
    """What the stages of a 7B pair with random weights take on a GPU, as JSON; --out keeps what there is after every part."""
    from eventspec.experiments.measures import known

    check_files({"--out": out})
    known(out)  # what holds no results is not replaced
    with waiting("loading"):
        from eventspec.experiments.measures.gpu import GpuSetup, measure
        from eventspec.models.loading import LoadOptions

    LoadOptions.named(dtype, device=device)  # refused here if it cannot be used
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
    found = {}
    for found in measure(GpuSetup(device, dtype, *((1, 1) if quick else (32, 20)))):
        if out is not None:
            write_text(out, json.dumps(found, indent=1) + "\n")
    typer.echo(json.dumps(found, indent=1))


bench.command()(picture)
