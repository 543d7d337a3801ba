"""The command line: one function per verb, no logic."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress
from rich.text import Text

from fairbits import __version__
from fairbits.errors import FairbitsError, InputError
from fairbits.terminal import err, out, print_json, print_notes, stages

app = typer.Typer(no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False)

Model = Annotated[str, typer.Argument(help="A directory, a .gguf file, an id on the Hub, or embedded:tiny.")]
Languages = Annotated[str | None, typer.Option(help="Such as eng,fra,he; all of the text if not given.")]
TextFrom = Annotated[Path | None, typer.Option(help="Directory or JSONL file; else the embedded declaration.")]
Bits = Annotated[int, typer.Option(help="Bits per weight, 2 to 8.")]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of a model on the Hub.")]
Trust = Annotated[bool, typer.Option("--trust-remote-code", help="Run the model's own Python code.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def _version(show: bool) -> None:
    if show:
        typer.echo(f"fairbits {__version__}")
        raise typer.Exit


@app.callback()
def fairbits(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Quantize multilingual language models so that no language is left behind, and prove it."""


@app.command()
def theory(
    claim: Annotated[str | None, typer.Option(help="Explain one claim, such as 004-13.", metavar="ID")] = None,
    as_json: Json = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the page docs/theory.md.")] = False,
) -> None:
    """Recompute the verdict on every claim of the founding documents.

    Examples: `fairbits theory`, `fairbits theory --claim 000-07`, `fairbits theory --json > claims.json`.
    """
    from fairbits.claims import all_claims, find_claim, render  # heavy: only when the verb runs

    if as_json and markdown:
        raise InputError("--json and --markdown were both given; choose one")
    claims = all_claims() if claim is None else [find_claim(claim)]
    with Progress(console=err, transient=True, disable=not err.is_terminal) as progress:
        results = {each: each.check() for each in progress.track(claims, description="recomputing claims")}
    if as_json:
        print_json(render.as_data(results))
    elif markdown:
        typer.echo(render.as_markdown(results), nl=False)
    elif claim is None:
        out.print(render.as_table(results))
    else:
        out.print(render.as_panel(claims[0], results[claims[0]]))


@app.command()
def mix(
    model: Model,
    out_file: Annotated[Path, typer.Option("--out", help="Where to write the samples.", metavar="CALIB.jsonl")],
    languages: Languages = None,
    text: TextFrom = None,
    weights: Annotated[str, typer.Option(help="equal, proportional, or numbers: eng=2,fra=1.")] = "equal",
    tokens: Annotated[int | None, typer.Option(help="Budget in tokens; else as many as the text allows.")] = None,
    sequence: Annotated[int, typer.Option(help="Tokens per sample.")] = 512,
    seed: Annotated[int, typer.Option(help="Decides what is drawn and its order.")] = 0,
    repeat: Annotated[bool, typer.Option("--repeat", help="Use text again where there is not enough.")] = False,
    revision: Revision = None,
    trust_remote_code: Trust = False,
    as_json: Json = False,
) -> None:
    """Write calibration samples with a fixed share of tokens per language, for any quantization tool.

    Example: `fairbits mix embedded:tiny --languages eng,fra,heb --out calib.jsonl`.
    """
    from fairbits.language import read_corpus, udhr  # heavy: only when the verb runs
    from fairbits.language.mix import build_mix, parse_weights
    from fairbits.language.mix_file import check_target
    from fairbits.language.render import mix_table, taken
    from fairbits.model import Checkpoint

    check_target(out_file)  # before anything that takes time
    names = _names(languages)
    with stages("reading text and tokenizer") as show:
        corpus = udhr(names) if text is None else read_corpus(text, languages=names)
        checkpoint = Checkpoint(model, trust_remote_code=trust_remote_code, revision=revision)
        result = build_mix(
            corpus,
            checkpoint.tokenizer(),
            weights=parse_weights(weights),
            tokens=tokens,
            sequence=sequence,
            seed=seed,
            repeat=repeat,
            model=checkpoint.target,
            notes=checkpoint.notes,
            progress=lambda done, total: show("cutting samples", done, total),
        )
    result.save(out_file)
    print_notes((*taken(names or ()), *result.notes))
    if as_json:
        print_json(result.manifest)
    else:
        out.print(mix_table(result))


@app.command()
def inspect(
    model: Model,
    tensors: Annotated[bool, typer.Option("--tensors", help="One row per tensor instead of one per block.")] = False,
    revision: Revision = None,
    trust_remote_code: Trust = False,
    as_json: Json = False,
) -> None:
    """Show a model's blocks and the moments of their weights, in one pass over the files.

    Examples: `fairbits inspect embedded:tiny`, `fairbits inspect ./model --tensors`,
    `fairbits inspect "embedded:tiny?outliers=5:125" --json`.
    """
    from fairbits.model import Checkpoint, weight_moments  # heavy: only when the verb runs
    from fairbits.model.inspection import inspection_data, inspection_table

    checkpoint = Checkpoint(model, trust_remote_code=trust_remote_code, revision=revision)
    with stages("reading weights") as show:
        moments = weight_moments(checkpoint, progress=lambda done, total: show("reading weights", done, total))
    if as_json:
        print_json(inspection_data(checkpoint, moments))
    else:
        out.print(inspection_table(checkpoint, moments, tensors=tensors))


@app.command()
def audit(
    model: Model,
    languages: Languages = None,
    text: TextFrom = None,
    bits: Bits = 4,
    group: Annotated[str, typer.Option(help="Weights that share a step, or channel.", metavar="N|channel")] = "128",
    clip: Annotated[str, typer.Option(help="absmax, or exact: the step of least squared error.")] = "absmax",
    tokens: Annotated[int, typer.Option(help="Budget in tokens per language.")] = 4096,
    sequence: Annotated[int, typer.Option(help="The longest piece of text, in tokens.")] = 512,
    second_moments: Annotated[bool, typer.Option("--second-moments", help="Keep E(x xᵀ) of every input.")] = False,
    seed: Annotated[int, typer.Option(help="Decides what text is taken.")] = 0,
    out_file: Annotated[Path | None, typer.Option("--out", help="Where to write it.", metavar="AUDIT.json")] = None,
    details: Annotated[bool, typer.Option("--details", help="Show every measure of languages and blocks.")] = False,
    revision: Revision = None,
    trust_remote_code: Trust = False,
    as_json: Json = False,
) -> None:
    """Predict which languages quantization will hurt, and why, before anything is quantized.

    Examples: `fairbits audit embedded:tiny`, `fairbits audit ./model --languages eng,fra,heb --out audit.json`,
    `fairbits audit ./model --text texts --bits 3 --group channel --clip exact --details`.
    """
    from fairbits.language.render import taken  # heavy: only when the verb runs
    from fairbits.model import Checkpoint
    from fairbits.model.scheme import Scheme
    from fairbits.risk.audit import check_audit_target, rounded
    from fairbits.steps.audit import audit as audited
    from fairbits.steps.audit_details import audit_details
    from fairbits.steps.audit_table import audit_table

    if out_file is not None:
        check_audit_target(out_file)  # before anything that takes time
    scheme = Scheme(bits, _group(group), clip)  # type: ignore[arg-type]  # which checks it
    names = _names(languages)
    print_notes(taken(names or ()))
    with stages("opening the model") as show:
        found = audited(
            Checkpoint(model, trust_remote_code=trust_remote_code, revision=revision),
            languages=names,
            text=text,
            scheme=scheme,
            tokens=tokens,
            sequence=sequence,
            second_moments=second_moments,
            seed=seed,
            progress=show,
        )
    if out_file is not None:
        found.save(out_file)
    if as_json:
        print_json(rounded(found.as_data()) if out_file is None else json.loads(out_file.read_text("utf-8")))
        return
    out.print(audit_table(found))
    if details:
        out.print(audit_details(found))


@app.command()
def screen(
    models: Annotated[list[str], typer.Argument(help="Directories, .gguf files, ids on the Hub, embedded:tiny.")],
    languages: Annotated[str | None, typer.Option(help="Measure C2 and D̂ too, in these languages.")] = None,
    text: Annotated[Path | None, typer.Option(help="Measure C2 and D̂ too, on this text.")] = None,
    bits: Bits = 4,
    trust_remote_code: Trust = False,
    as_json: Json = False,
) -> None:
    """Compare models, one row each: outlier blocks, the founding documents' class, and with text predicted damage.

    Examples: `fairbits screen embedded:tiny "embedded:tiny?outliers=3:125"`,
    `fairbits screen ./model ./other --languages eng,heb`.
    """
    from fairbits.language.render import taken  # heavy: only when the verb runs
    from fairbits.steps.audit import corpus_of
    from fairbits.steps.screen import screen as screened
    from fairbits.steps.screen import screen_table

    names = _names(languages)
    print_notes(taken(names or ()))
    corpus = None if names is None and text is None else corpus_of(text, names)
    with stages("opening the models") as show:
        found = screened(models, corpus=corpus, bits=bits, trust_remote_code=trust_remote_code, progress=show)
    if as_json:
        print_json(found.as_data())
    else:
        out.print(screen_table(found))
    if not found.complete:
        raise typer.Exit(2)


@app.command()
def diff(
    a: Model,
    b: Annotated[str, typer.Argument(help="The other model.")],
    trust_remote_code: Trust = False,
    as_json: Json = False,
) -> None:
    """Show two models side by side: how they are built, and the weights of their blocks.

    Example: `fairbits diff embedded:tiny "embedded:tiny?outliers=3:125"`.
    """
    from fairbits.model import Checkpoint  # heavy: only when the verb runs
    from fairbits.steps.diff import diff as compared
    from fairbits.steps.diff import diff_table

    both = [Checkpoint(model, trust_remote_code=trust_remote_code) for model in (a, b)]
    with stages("reading weights") as show:
        found = compared(*both, progress=lambda done, total: show("reading weights", done, total))
    if as_json:
        print_json(found.as_data())
    else:
        out.print(diff_table(found))


@app.command()
def languages(
    names: Annotated[
        list[str] | None, typer.Argument(help="Codes or names, such as he, heb, Hebrew; else all.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List languages: code, names, script, family, and for which of them fairbits brings text and detection.

    Examples: `fairbits languages`, `fairbits languages he zh swahili`.
    """
    from fairbits.language import catalog, find_languages
    from fairbits.language.render import language_data, language_table, taken

    found = find_languages(names) if names else catalog()
    print_notes(taken(names or ()))
    if as_json:
        print_json(language_data(found))
    else:
        out.print(language_table(found))


def main() -> None:
    """Runs the command line; an error the user can act on ends with exit code 2 and no traceback."""
    try:
        app()
    except FairbitsError as error:
        err.print(Text.assemble(("error: ", "bold red"), str(error)), soft_wrap=True)
        sys.exit(2)


def _names(languages: str | None) -> list[str] | None:
    return None if languages is None else [name.strip() for name in languages.split(",")]


def _group(given: str) -> int | None:
    if given == "channel":
        return None
    if not given.isdecimal():
        raise InputError(f"--group is {given!r:.40}; it must be a number of weights, such as 128, or channel")
    return int(given)
