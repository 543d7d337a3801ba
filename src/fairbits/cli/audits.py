"""Verbs that tell what quantization would do: audit, screen, diff."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fairbits.cli import completion
from fairbits.cli.options import (
    Bits,
    GroupOrChannel,
    Json,
    Languages,
    Model,
    Revision,
    Seed,
    Sequence,
    TextFrom,
    Tokens,
    Trust,
    flag,
    group_of,
    names_of,
    write_out,
)
from fairbits.cli.terminal import out, print_json, print_notes, stages


def audit(
    model: Model,
    languages: Languages = None,
    text: TextFrom = None,
    bits: Bits = 4,
    group: GroupOrChannel = "128",
    clip: Annotated[
        str,
        typer.Option(
            help="absmax, or exact: the step of least squared error.",
            metavar="absmax|exact",
            autocompletion=completion.one_of("absmax", "exact"),
        ),
    ] = "absmax",
    tokens: Tokens = 4096,
    sequence: Sequence = 512,
    second_moments: Annotated[bool, flag("--second-moments", help="Keep E(x xᵀ) of every input.")] = False,
    seed: Seed = 0,
    out_file: Annotated[Path | None, typer.Option("--out", help="Where to write it.", metavar="AUDIT.json")] = None,
    details: Annotated[bool, flag("--details", help="Show every measure of languages and blocks.")] = False,
    revision: Revision = None,
    trust_remote_code: Trust = False,
    as_json: Json = False,
) -> None:
    """Predict which languages quantization will hurt, and why, before anything is quantized.

    Examples:
      fairbits audit embedded:tiny
      fairbits audit ./model --languages eng,fra,heb --out audit.json
      fairbits audit ./model --text texts --bits 3 --group channel --details
    """
    from fairbits.cli.tables.audit import audit_table
    from fairbits.cli.tables.audit_details import audit_details
    from fairbits.cli.tables.languages import taken  # heavy: only when the verb runs
    from fairbits.measure.audit.audit import check_audit_target, rounded
    from fairbits.model import Checkpoint
    from fairbits.model.scheme import Scheme
    from fairbits.verbs.audit import audit as audited

    if out_file is not None:
        check_audit_target(out_file)  # before anything that takes time
    scheme = Scheme(bits, group_of(group), clip)  # type: ignore[arg-type]  # which checks it
    names = names_of(languages)
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
    write_out(out_file, found.save)
    if as_json:
        print_json(rounded(found.as_data()) if out_file is None else json.loads(out_file.read_text("utf-8")))
        return
    out.print(audit_table(found))
    if details:
        out.print(audit_details(found))


def screen(
    models: Annotated[
        list[str],
        typer.Argument(
            help="Directories, .gguf files, ids on the Hub, embedded:tiny.",
            metavar="MODEL...",
            autocompletion=completion.model,
        ),
    ],
    languages: Annotated[
        str | None,
        typer.Option(
            help="Measure C2 and D̂ too, in these languages.",
            metavar="CODES",
            autocompletion=completion.languages,
        ),
    ] = None,
    text: Annotated[Path | None, typer.Option(help="Measure C2 and D̂ too, on this text.", metavar="PATH")] = None,
    bits: Bits = 4,
    trust_remote_code: Trust = False,
    as_json: Json = False,
) -> None:
    """Compare models, one row each: outlier blocks, the founding documents' class, and with text predicted damage.

    Examples:
      fairbits screen embedded:tiny "embedded:tiny?outliers=3:125"
      fairbits screen ./model ./other --languages eng,heb
    """
    from fairbits.cli.tables.languages import taken  # heavy: only when the verb runs
    from fairbits.cli.tables.screen import screen_table
    from fairbits.language.reading import open_corpus
    from fairbits.verbs.screen import screen as screened

    names = names_of(languages)
    print_notes(taken(names or ()))
    corpus = None if names is None and text is None else open_corpus(text, names)
    with stages("opening the models") as show:
        found = screened(models, corpus=corpus, bits=bits, trust_remote_code=trust_remote_code, progress=show)
    if as_json:
        print_json(found.as_data())
    else:
        out.print(screen_table(found))
    if not found.complete:
        raise typer.Exit(2)


def diff(
    a: Model,
    b: Annotated[str, typer.Argument(help="The other model.", metavar="OTHER", autocompletion=completion.model)],
    trust_remote_code: Trust = False,
    as_json: Json = False,
) -> None:
    """Show two models side by side: how they are built, and the weights of their blocks.

    Examples:
      fairbits diff embedded:tiny "embedded:tiny?outliers=3:125"
      fairbits diff ./model ./other --json
    """
    from fairbits.cli.tables.diff import diff_table
    from fairbits.model import Checkpoint  # heavy: only when the verb runs
    from fairbits.verbs.diff import diff as compared

    both = [Checkpoint(model, trust_remote_code=trust_remote_code) for model in (a, b)]
    with stages("reading weights") as show:
        found = compared(*both, progress=show)
    if as_json:
        print_json(found.as_data())
    else:
        out.print(diff_table(found))
