"""What it costs a language that the scales of inputs come from English text alone.

    python benchmarks/input_ranges.py [--model embedded:tiny] [--languages CODES] [--text PATH] [--tokens 1024]

Weights are rounded to nearest, so that text decides nothing but the scales of inputs: static ones (FP8), or the scale
of the whole tensor above the scales of groups (NVFP4). They are set by the largest input, once of English, with as many
tokens as all languages have together, and once of all languages. KL on the evaluation text, nats per token. p: of the
difference between the two, paired by document, corrected over languages (Holm).
"""

import argparse
import tempfile
from pathlib import Path

import fairbits as fb
from real_groups import table

ENGLISH = "eng_Latn"


def main() -> None:
    """Prints a table for each format."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded:tiny")
    parser.add_argument("--languages", default="eng,fin,heb,kor,hin,arb,ell,jpn")
    parser.add_argument("--text")
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--evaluate", type=int, default=8192, help="tokens of each language to evaluate on")
    parser.add_argument("--schemes", default="FP8,NVFP4")
    options = parser.parse_args()
    languages = options.languages.split(",")
    text = {} if options.text is None else {"text": options.text}
    for scheme in options.schemes.split(","):
        scores, ranges = {}, []
        for name, read, tokens in (
            ("English", ["eng"], options.tokens * len(languages)),
            ("all", languages, options.tokens),
        ):
            with tempfile.TemporaryDirectory() as home:
                plan = fb.plan(options.model, policy="rtn", scheme=scheme, languages=read, tokens=tokens, **text)
                done = fb.quantize(options.model, plan, out=Path(home, "out"), **text)
                ranges = [result.largest_input for result in done.results if result.largest_input]
                how = {"reference": options.model, "languages": languages, "tokens": options.evaluate, **text}
                scores[name] = fb.evaluate(Path(home, "out"), **how)
        print(f"\n{scheme}, {options.model}, {options.tokens} tokens of each language, rounding to nearest, seed 0\n")
        print(
            "\n".join(
                table(("language", "English", "all", "ratio", "p", "layers beyond English"), rows(scores, ranges))
            )
        )


def rows(scores: dict[str, fb.Scores], ranges: list[dict[str, float]]) -> list[list[str]]:
    """Returns KL by both, and how many layers have larger inputs in a language than in English."""
    lines, contrast = [], scores["English"].contrast(scores["all"], unit="nats_per_token")
    for code in scores["all"].kl:
        english, every = (scores[name].kl[code] for name in ("English", "all"))
        beyond = sum(sizes[code] > sizes[ENGLISH] for sizes in ranges)
        cells = [f"{estimate.value:.4f} ({estimate.low:.4f}–{estimate.high:.4f})" for estimate in (english, every)]
        p = contrast.p_holm[code]
        lines.append([code, *cells, f"{english.value / every.value:.2f}", f"{p:.3f}", f"{beyond} of {len(ranges)}"])
    return lines


if __name__ == "__main__":
    main()
