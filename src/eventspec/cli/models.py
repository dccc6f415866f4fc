"""``eventspec models``: what is bundled, what a folder is and lacks, and heads in the layouts of others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from eventspec.cli import options
from eventspec.cli.help import App
from eventspec.errors import BadCheckpoint, BadInput
from eventspec.files import check_empty, check_outputs, read_json
from eventspec.models.shards import check_files

models = App(help="Bundled pairs and checkpoints.", no_args_is_help=True)


@models.command("list")
def list_pairs(
    pair: Annotated[str | None, typer.Option(help="Which methods this pair has, and what the others lack.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Pairs that ship with the package, and which one `embedded` is; of one pair its methods."""
    from eventspec.pairs import METHODS, bundled
    from eventspec.pairs.pair_file import by_name

    if pair is not None:
        _offers(pair, as_json)
        return
    methods = dict(METHODS)
    found: dict[str, dict[str, Any]] = {}
    for name, path in bundled().items():
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        found[name] = {"path": str(path), "bytes": size, **parts_of(path)}
    usual = by_name("embedded")
    chosen = None if usual is None else usual.name
    if as_json:
        options.print_found({"pairs": found, "embedded": chosen, "methods": methods}, True)
        return
    for name, facts in found.items():
        typer.echo(f"{name}  {facts['bytes'] / 1e6:.1f} MB{', which is also called embedded' if name == chosen else ''}")
        flags = {"--head": facts["heads"], "--drafter": facts["drafters"], "--adapter": facts["adapters"]}
        flags["--compress"] = [f"packer:{scale}" for scale in facts["packers"]]
        _print([(f"  {option}", ", ".join(names)) for option, names in flags.items() if names])
    typer.echo("methods")
    _print([(f"  --method {name}", what) for name, what in methods.items()])


def _offers(pair: str, as_json: bool) -> None:
    from eventspec.pairs.inventory import offers
    from eventspec.pairs.pair_file import PairFile, folder_of

    file = PairFile.read(folder_of(pair))
    file.check_models()
    found = offers(file)
    rows = [{"name": one.name, "available": one.available, "lossless": one.lossless, "missing": one.missing} for one in found]
    if as_json:
        options.print_found({"pair": file.name, "folder": str(file.folder), "methods": rows}, True)
        return
    says = ("yes", "yes, LOSSY")
    _print([(one.name, f"lacks {one.missing}" if one.missing else says[not one.lossless]) for one in found])


@models.command("pair")
def make_pair(
    target: Annotated[Path, options.path("The checkpoint folder that answers.")],
    out: Annotated[Path, options.path("The folder to write: a new one, or an empty one.")],
    drafter: Annotated[Path | None, options.path("The checkpoint folder that drafts from events.")] = None,
    name: Annotated[str | None, typer.Option(help="What the pair is called; default: the target's folder.")] = None,
    vocabulary: options.Vocabulary = "auto",
    dtype: options.Dtype = None,
    device: options.Device = None,
    drafter_device: options.DrafterDevice = None,
    frames: Annotated[int | None, typer.Option(min=1, help="Frames that the target sees; default: as its config says.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Write a pair.toml that points to two checkpoint folders where they lie: every command takes it as --pair."""
    from eventspec.machine import DEVICES, SPREAD
    from eventspec.models.shards import OURS, check_files, check_ours, modality_of

    check_empty(out)
    check_outputs({"--out": out}, [target, drafter])
    options.check_devices(device, drafter_device)
    for one in (device, drafter_device):  # it may be one of the machine that the pair is for
        if one not in (None, SPREAD) and one.partition(":")[0] not in DEVICES:
            raise BadInput(f"device '{one}' is of no kind that there is: choose one of {', '.join(DEVICES)}, or {SPREAD}")
    if drafter is None and drafter_device is not None:
        raise BadInput("--drafter-device is for --drafter, a checkpoint folder: leave it out, or give both")
    for folder in (target, drafter):
        if folder is not None:
            if not folder.is_dir():
                raise BadInput(f"{folder} is no folder: give the folder of a checkpoint, with its config.json")
            check_files(folder)

    from eventspec.models.folder import check_weights
    from eventspec.pairs.fitting import check_same_ids
    from eventspec.pairs.pair_file import PairFile

    check_weights(target, frames)
    if drafter is not None:
        check_weights(drafter)
    if modality_of(target) == "events":
        raise BadInput(f"{target} sees events: give it as --drafter, and a model that sees frames as --target")
    if drafter is not None and modality_of(drafter) != "events":
        raise BadInput(f"{drafter} sees frames: the drafter of a pair must see events")
    if read_json(target / "config.json").get("model_type") in OURS:
        check_ours(dtype, device)
    how = {"dtype": dtype, "device": device, "drafter_device": drafter_device, "frames": frames}
    load = {option: value for option, value in how.items() if value is not None}
    load |= {} if vocabulary == "auto" else {"vocabulary": vocabulary}
    file = PairFile.of_checkpoints(out, target, drafter, name or target.resolve().name, load)
    if drafter is not None and vocabulary == "same":
        check_same_ids(drafter.name, drafter, file)
    out.mkdir(parents=True, exist_ok=True)
    file.write()
    about = {"folder": str(out), "name": file.name, **file.files, "load": load, "fingerprints": dict(file.fingerprints)}
    options.print_found(about, as_json, f"the pair {file.name} is in {out}: use it with --pair {out}")


@models.command()
def check(
    folder: Annotated[
        str, typer.Argument(help="Of a checkpoint, head, packer, adapter or pair.toml; or the name of a bundled pair.")
    ],
    as_json: options.AsJson = False,
) -> None:
    """Say what a folder is; exit 2 names the first thing it lacks."""
    from eventspec.pairs.pair_file import two_meanings

    about = described(folder)
    options.print_notes(two_meanings(folder))
    fits = f"target {about['target']}" if about.get("target") else "a target that its config does not name"
    if as_json:
        options.print_found(about, True)
    elif "packer" in about:
        squares = f"{about['packer']} x {about['packer']} patches"
        typer.echo(f"{folder}: a packer of {squares} for {fits}: the table [packers] of a pair.toml takes it")
    elif "adapter" in about:
        between = f"between event model {about['drafter']} and {fits}"
        typer.echo(f"{folder}: an adapter ({about['adapter']}, to {about['output']}) {between}: generate --adapter takes it")
    elif "head" in about:
        kind = f"{about['head']}, {about['mode']}" if "mode" in about else about["head"]
        typer.echo(f"{folder}: a head ({kind}) of width {about['hidden_size']} for {fits}: generate --head takes it")
    else:
        _print(rows(about))


@models.command()
def parity(
    folder: Annotated[Path, options.path_argument("A folder of goldens: checkpoint/, meta.json and the tensors.")],
    as_json: options.AsJson = False,
) -> None:
    """Compare our model with tensors of the published code; exit 1 when a greedy answer differs."""
    if not (folder / "meta.json").is_file() or not (folder / "checkpoint").is_dir():
        raise BadInput(f"{folder} is no folder of goldens: it needs meta.json and checkpoint/")

    from eventspec.experiments.parity import parity as measure

    found = measure(folder)
    apart = [f"{name:<56} {'exact' if one['exact'] else format(one['max_abs'], '.2e')}" for name, one in found.tensors.items()]
    answers = f"greedy answers identical: {'yes' if found.greedy_identical else 'no'}"
    options.print_found(vars(found), as_json, *apart, answers)
    if not found.greedy_identical:
        raise typer.Exit(1)


@models.command("export-head")
def export_head(
    head: Annotated[str, typer.Argument(help="A head's folder, or the name of one of --pair's.")],
    layout: Annotated[Literal["safeailab", "speculators"], typer.Option(help="Whose code is to read it.")],
    out: Annotated[Path, options.path("The folder to write: a new one, or an empty one.")],
    pair: Annotated[
        str | None, typer.Option(help="Whose target the head is for: a bundled pair (nano), or the folder of a pair.toml.")
    ] = None,
    target: Annotated[Path | None, options.path("Its checkpoint folder, instead of a pair.")] = None,
    verifier: Annotated[
        str | None,
        typer.Option(help="For speculators: where others find the target, a hub name or folder; default: its folder."),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Write a head as SafeAILab's code or `speculators` and vLLM read it, in the precision it is stored in."""
    from eventspec.pairs.fitting import check_exported

    if layout != "speculators" and verifier is not None:
        raise BadInput(f"--verifier is for --layout speculators: leave it out for {layout}")
    check_empty(out)
    models = options.Models(pair=pair, target=target)
    read = models.check(["eagle"], options.Chosen(head=head))
    check_outputs({"--out": out}, read)
    check_exported(folder := read[-1], layout)

    from eventspec.drafters import Verifier, export_speculators, load_head, save_head
    from eventspec.drafters.heads.checkpoint import exact_dtype, recognised
    from eventspec.drafters.heads.head import HeadFolder
    from eventspec.models import configuration as fields
    from eventspec.pairs import load_folders, load_pair
    from eventspec.recordings.native import written_whole

    with fields.of_folder(folder):
        family = recognised(HeadFolder.open(folder))
    if not family.published:  # in either layout it would be taken for EAGLE's, and draft nonsense
        whose = "no SafeAILab code" if layout == "safeailab" else "no code of speculators"
        raise BadInput(f"{whose} loads a head of {family.title}: it is for eventspec alone, copy its folder")
    loaded = load_pair(models.name) if target is None else load_folders(target, method="eagle")
    language = loaded.parts.ends
    trained = load_head(folder, language)
    dtype = exact_dtype(trained)
    with written_whole(out) as partial:
        if layout == "safeailab":
            save_head(trained, partial, language, dtype)
        else:
            assert loaded.checkpoint is not None  # both ways to load one set it
            named = fields.read_json(loaded.checkpoint / "config.json").get("architectures") or []
            where = Verifier(verifier or str(loaded.checkpoint.resolve()), tuple(named))
            export_speculators(trained, partial, language, where, dtype)
    name, stored = type(trained.head).__name__, str(dtype).removeprefix("torch.")
    about = {"folder": str(out), "layout": layout, "head": name, "taps": list(trained.head.taps), "dtype": stored}
    options.print_found(about, as_json, f"{name} in {stored}, layout {layout}: {out}")


def _print(lines: list[tuple[str, str]]) -> None:
    """Two columns, the second one wrapped where the terminal ends."""
    from rich.console import Console
    from rich.table import Table

    made = Table.grid(padding=(0, 2))
    made.add_column(no_wrap=True)
    made.add_column(overflow="fold")
    for name, words in lines:
        made.add_row(name, words)
    Console(highlight=False, markup=False).print(made)


def described(given: str) -> dict[str, Any]:
    """What a folder is, or the bundled pair of a bare name. Key `head`, `packer` or `adapter` says that it is
    one; BadInput or BadCheckpoint, one line, for the first thing that is wrong."""
    from eventspec.pairs.pair_file import bundled_names, by_name

    folder = options.given_path(given)
    if by_name(given) is not None or (folder / "pair.toml").is_file():
        return _pair(given)
    if not folder.exists():
        raise BadInput(f"{given}: no such folder: check the path, or name a bundled pair: {bundled_names()}")
    if folder.is_file():
        raise BadInput(f"{folder} is a file: give the folder of a checkpoint, a head or a pair")
    if not (folder / "config.json").is_file():
        raise BadInput(f"{folder} has neither config.json nor pair.toml: give the folder of a checkpoint or of a pair")

    path = folder / "config.json"
    data = read_json(path)
    # Parts of a pair have no tokenizer: what else is damaged or missing is said before torch is imported.
    alone = data.get("model_type") in (None, "packer", "adapter") or ("hidden_size" in data and not _sees(data))
    check_files(folder, tokenizer=not alone and "eventspec" not in data)

    from eventspec.models import configuration as fields
    from eventspec.models.folder import describe

    try:
        return _part(folder, data) or describe(folder)
    except fields.BadField as error:
        raise BadCheckpoint(f"{path}: {error}") from None


def _part(folder: Path, data: dict[str, Any]) -> dict[str, Any] | None:
    """What a packer, an adapter or a head is, as far as its own folder says; None for what is none of them."""
    from eventspec.drafters.heads import family_of
    from eventspec.drafters.heads.checkpoint import inspect_head
    from eventspec.pairs.trained import inspect_adapter, inspect_packer

    about: dict[str, Any]
    target: str | None
    if data.get("model_type") == "packer":
        packer, checkpoint, target = inspect_packer(folder)
        about = {"packer": packer.scale, "layers": list(packer.layers), "target": target}
    elif data.get("model_type") == "adapter":
        adapter, checkpoint, between = inspect_adapter(folder)
        about = {"adapter": adapter.kind, "output": adapter.output, "layers": list(adapter.layers), **between}
    elif _is_head(folder, data):
        made, checkpoint, target = inspect_head(folder)
        width = made.head.config.language.hidden_size
        about = {**family_of(made.head).about(made.head), "target": target, "hidden_size": width}
    else:
        return None
    return {**about, **checkpoint.numbers}


def _is_head(folder: Path, data: dict[str, Any]) -> bool:
    """Only heads begin with an `fc`, have the layout of speculators, or were written here."""
    from eventspec.drafters.heads import speculators
    from eventspec.models.checkpoint import Checkpoint

    if speculators.KIND in data or isinstance(data.get("eventspec"), dict):
        return True
    if "hidden_size" not in data or _sees(data):
        return False
    try:
        return "fc.weight" in Checkpoint(folder, lambda name: name.removeprefix("model.")).at
    except BadCheckpoint:
        return False  # `describe` knows better what it lacks


def _sees(data: dict[str, Any]) -> bool:
    return any(name.startswith(("vision", "mm_")) for name in data)


def parts_of(folder: Path) -> dict[str, list[str]]:
    """Names of what a pair has beside its target and its drafter: heads, packers, further event drafters, adapters."""
    from eventspec.pairs import PairFile

    tables = PairFile.read(folder).tables
    return {name: sorted(tables[name]) for name in ("heads", "packers", "drafters", "adapters")}


def rows(about: dict[str, Any]) -> list[tuple[str, str]]:
    """The same for people: a name and its words a line. Of tables in tables only the names are given."""

    def words(value: Any) -> str:
        if isinstance(value, dict):
            return ", ".join(
                f"{key} {', '.join(map(str, inner)) if isinstance(inner, dict) else inner}" for key, inner in value.items()
            )
        if isinstance(value, list | tuple):
            return ", ".join(map(str, value)) or "-"
        return {True: "yes", False: "no", None: "-"}[value] if value is None or isinstance(value, bool) else str(value)

    return [(name.replace("_", " "), words(value)) for name, value in about.items()]


def _pair(given: str) -> dict[str, Any]:
    from eventspec.models import configuration as fields
    from eventspec.models.session import LanguageTarget
    from eventspec.models.weights import fingerprint
    from eventspec.pairs import load_pair
    from eventspec.pairs.trained import load_adapter

    pair = load_pair(given, fit=False)
    assert pair.folder is not None  # it comes from the file of one
    about: dict[str, Any] = {
        "name": pair.name,
        "folder": str(pair.folder),
        "methods": list(pair.methods),
        **parts_of(pair.folder),
        "vocabulary": pair.vocabulary.size,
        "vocabulary_fingerprint": pair.vocabulary.fingerprint(),
        "lossless": pair.target.lossless,
    }
    if (packers := pair.parts.packers) is not None:
        for scale, packer in packers.folders.items():
            packers.load(packer, scale)
    if (adapters := pair.parts.adapters) is not None:
        for folder in adapters.folders.values():
            load_adapter(folder, adapters.drafter, adapters.target)
    if isinstance(pair.target, LanguageTarget):
        about["target"] = fingerprint(pair.target.language)
    provenance = pair.folder / "provenance.json"
    if provenance.is_file():
        about["provenance"] = fields.read_json(provenance)
    return about
