"""Verbs that measure what quantization costs: evaluate, gate, compare, sweep."""

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from fairbits.cli import completion
from fairbits.cli.options import (
    Device,
    Embeddings,
    EvaluationTokens,
    GroupOf,
    Json,
    Languages,
    Model,
    Revision,
    Seed,
    Sequence,
    TextFrom,
    Tokens,
    Trust,
    Unit,
    check_out,
    embeddings_of,
    names_of,
    plan_group_of,
    seeds_of,
    widths_of,
    write_out,
)
from fairbits.cli.terminal import out, print_json, print_notes, stages
from fairbits.errors import printable


def evaluate(
    quantized: Annotated[
        str,
        typer.Argument(
            help="The quantized model: a directory, or an id on the Hub.",
            metavar="QUANTIZED",
            autocompletion=completion.model,
        ),
    ],
    reference: Annotated[
        str,
        typer.Option(help="The model that it was made from.", metavar="MODEL", autocompletion=completion.model),
    ],
    languages: Languages = None,
    text: TextFrom = None,
    tokens: EvaluationTokens = 8192,
    sequence: Sequence = 512,
    seed: Seed = 0,
    device: Device = "cpu",
    out_file: Annotated[Path | None, typer.Option("--out", help="Where to write it.", metavar="SCORES.json")] = None,
    revision: Annotated[
        str | None, typer.Option(help="Branch, tag or commit of the reference on the Hub.", metavar="NAME")
    ] = None,
    trust_remote_code: Trust = False,
    as_json: Json = False,
) -> None:
    """Measure what quantization cost every language: loss, perplexity, divergence, flips, and how unequal it is.

    Examples:
      fairbits evaluate tiny-w4 --reference embedded:tiny --out scores.json
      fairbits evaluate ./w4 --reference ./model --text texts --tokens 20000
    """
    from fairbits.cli.tables.evaluate import evaluate_table
    from fairbits.cli.tables.languages import taken  # heavy: only when the verb runs
    from fairbits.model import Checkpoint
    from fairbits.verbs.evaluate import evaluate as evaluated

    check_out(out_file, "scores.json")  # before anything that takes time
    names = names_of(languages)
    print_notes(taken(names or ()))
    with stages("opening the models") as show:
        found = evaluated(
            Checkpoint(quantized, trust_remote_code=trust_remote_code),
            reference=Checkpoint(reference, trust_remote_code=trust_remote_code, revision=revision),
            languages=names,
            text=text,
            tokens=tokens,
            sequence=sequence,
            seed=seed,
            device=device,
            progress=show,
        )
    write_out(out_file, found.save)
    if as_json:
        print_json(found.summary())
    else:
        out.print(evaluate_table(found))


def gate(
    scores: Annotated[Path, typer.Argument(help="What fairbits evaluate --out has written.", metavar="SCORES.json")],
    max_worst: Annotated[
        float | None, typer.Option(help="The most that the worst language may lose, in --unit.")
    ] = None,
    max_mean: Annotated[
        float | None, typer.Option(help="The most that languages may lose on average, in --unit.")
    ] = None,
    max_gap: Annotated[float | None, typer.Option(help="The most between worst and best language, in --unit.")] = None,
    against: Annotated[
        Path | None, typer.Option(help="Scores that no language may be proven worse than.", metavar="BASELINE.json")
    ] = None,
    max_worse: Annotated[
        float | None, typer.Option(help="The most by which a language may be worse than --against, in --unit.")
    ] = None,
    unit: Unit = "bits_per_byte",
    junit_file: Annotated[
        Path | None, typer.Option("--junit", help="Where to write the verdict for a CI system.", metavar="FILE")
    ] = None,
    as_json: Json = False,
) -> None:
    """Decide on a release: exit code 0 if every limit is kept beyond doubt, 1 if one is not or the text is too little.

    Examples:
      fairbits gate scores.json --max-worst 0.02 --max-gap 0.01
      fairbits gate scores.json --against baseline.json --max-worse 0.005
      fairbits gate scores.json --max-mean 0.01 --junit gate.xml --json
    """
    from fairbits.artifacts import write_files
    from fairbits.verbs.gate import gate as gated  # heavy: only when the verb runs
    from fairbits.verbs.gate import junit

    check_out(junit_file, "gate.xml")
    verdict = gated(
        scores,
        max_worst=max_worst,
        max_mean=max_mean,
        max_gap=max_gap,
        unit=unit,
        against=against,
        max_worse=max_worse,
    )
    write_out(junit_file, lambda path: write_files({path.resolve(): junit(verdict)}))
    print_notes(verdict.notes)
    if as_json:
        print_json(verdict.as_data())
    else:
        out.print(Text(printable(verdict.reason)), soft_wrap=True)
    raise typer.Exit(verdict.exit_code)


def compare(
    model: Model,
    policies: Annotated[
        str,
        typer.Option(
            help="Parted by commas, options by colons: rtn,gptq:mix=english,gptq:mix=eng=2+fra=1.",
            metavar="LIST",
            autocompletion=completion.some_of(*completion.POLICIES),
        ),
    ],
    bits: Annotated[str, typer.Option(help="Widths such as 4,3 or 2..8.", metavar="LIST")] = "4",
    group: GroupOf = "128",
    embeddings: Embeddings = None,
    languages: Languages = None,
    text: TextFrom = None,
    tokens: Tokens = 4096,
    evaluation_tokens: EvaluationTokens = 8192,
    sequence: Sequence = 512,
    seeds: Annotated[str, typer.Option(help="Each draws calibration text of its own: 0,1,2.", metavar="LIST")] = "0",
    baseline: Annotated[
        str | None,
        typer.Option(
            help="The policy that others are held to; else the first.",
            metavar="POLICY",
            autocompletion=completion.one_of(*completion.POLICIES),
        ),
    ] = None,
    unit: Unit = "bits_per_byte",
    device: Device = "cpu",
    out_file: Annotated[Path | None, typer.Option("--out", help="Where to write it.", metavar="COMPARE.json")] = None,
    revision: Revision = None,
    trust_remote_code: Trust = False,
    as_json: Json = False,
) -> None:
    """Try policies on one model and the same text: worst language, mean, gap, bytes, and who differs for sure.

    Examples:
      fairbits compare embedded:tiny --policies rtn,mse,gptq --bits 4,3
      fairbits compare ./model --policies gptq,gptq:mix=english --text texts
    """
    from fairbits.cli.tables.compare import compare_table
    from fairbits.cli.tables.languages import taken  # heavy: only when the verb runs
    from fairbits.model import Checkpoint
    from fairbits.verbs.compare import compare as compared

    check_out(out_file, "compare.json")  # before anything that takes time
    names = names_of(languages)
    print_notes(taken(names or ()))
    with stages("opening the model") as show:
        found = compared(
            Checkpoint(model, trust_remote_code=trust_remote_code, revision=revision),
            policies=[each.strip() for each in policies.split(",")],
            bits=widths_of(bits),
            group=plan_group_of(group),
            embeddings=embeddings_of(embeddings or "keep"),
            languages=names,
            text=text,
            tokens=tokens,
            evaluation_tokens=evaluation_tokens,
            sequence=sequence,
            seeds=seeds_of(seeds),
            baseline=baseline,
            unit=unit,
            device=device,
            progress=show,
        )
    write_out(out_file, found.save)
    if as_json:
        print_json(found.as_data())
    else:
        out.print(compare_table(found))


def sweep(
    model: Model,
    bits: Annotated[str, typer.Option(help="Widths such as 2..8 or 8,4,3.", metavar="LIST")] = "2..8",
    policy: Annotated[
        str,
        typer.Option(
            help="With options if need be: gptq:mix=english.",
            metavar="NAME",
            autocompletion=completion.one_of(*completion.POLICIES),
        ),
    ] = "gptq",
    group: GroupOf = "128",
    languages: Languages = None,
    text: TextFrom = None,
    tokens: Tokens = 4096,
    evaluation_tokens: EvaluationTokens = 8192,
    sequence: Sequence = 512,
    seed: Seed = 0,
    threshold: Annotated[
        float | None, typer.Option(help="Damage that is too much; else 0.01 bits per byte, 0.03 nats per token.")
    ] = None,
    unit: Unit = "bits_per_byte",
    device: Device = "cpu",
    out_file: Annotated[Path | None, typer.Option("--out", help="Where to write it.", metavar="SWEEP.json")] = None,
    revision: Revision = None,
    trust_remote_code: Trust = False,
    as_json: Json = False,
) -> None:
    """Measure every language at every width, and the width at which it loses too much.

    Examples:
      fairbits sweep embedded:tiny --bits 2..8
      fairbits sweep ./model --policy rtn --text texts --threshold 0.02
    """
    from fairbits.cli.tables.languages import taken  # heavy: only when the verb runs
    from fairbits.cli.tables.sweep import sweep_table
    from fairbits.model import Checkpoint
    from fairbits.verbs.sweep import sweep as swept

    check_out(out_file, "sweep.json")  # before anything that takes time
    names = names_of(languages)
    print_notes(taken(names or ()))
    with stages("opening the model") as show:
        found = swept(
            Checkpoint(model, trust_remote_code=trust_remote_code, revision=revision),
            bits=widths_of(bits),
            policy=policy,
            group=plan_group_of(group),
            languages=names,
            text=text,
            tokens=tokens,
            evaluation_tokens=evaluation_tokens,
            sequence=sequence,
            seed=seed,
            threshold=threshold,
            unit=unit,
            device=device,
            progress=show,
        )
    write_out(out_file, found.save)
    if as_json:
        print_json(found.as_data())
    else:
        out.print(sweep_table(found))
