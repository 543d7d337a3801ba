"""What an imatrix of many languages gains in llama.cpp: no imatrix, an English one and an equal mix, at the same bytes.

    python benchmarks/imatrix.py run --llama-quantize PATH [--models embedded:tiny …]
    python benchmarks/imatrix.py tables

For every model: writes it as GGUF in float32, measures the imatrices with `fairbits.imatrix`
on the calibration split of a text, lets llama-quantize write one file per type and imatrix, and evaluates each file
with fairbits on the evaluation split. The English imatrix reads as much text as all languages of the mix together, as
far as there is any. Scores go to --out, one file each; what is there already is not measured again.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import gguf
import numpy as np

import fairbits as fb
from fairbits.api.evaluate import checkpoint_scores
from fairbits.evaluation.reference import ReferenceModel
from fairbits.evaluation.scores import Scores
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.io.gguf_file import gguf_names
from fairbits.stats.intervals import Estimate
from fairbits.text.corpus import TextRequest
from fairbits.text.reading import open_corpus
from measured import Measured, contrast_counts, number, paired_ratios

ROOT = Path(__file__).parents[1]
OUT = ROOT / "build/imatrix"
LANGUAGES = "eng,fra,rus,ell,fin,tur,jpn,kor"
TYPES = ("Q4_K_M", "Q3_K_M", "IQ3_XXS")
NEED_IMATRIX = ("IQ3_XXS", "IQ2_M", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_M", "IQ1_S", "Q2_K_S")
ARMS = {"none": "no imatrix", "english": "English", "mix": "equal mix"}
UNIT = "bits_per_byte"
ENGLISH = "eng_Latn"


def run(options: argparse.Namespace) -> None:
    """Measures what is not measured yet."""
    for name in options.models:
        place = options.out / name.replace("/", "-")
        place.mkdir(parents=True, exist_ok=True)
        wanted = [
            (kind, arm)
            for kind, arm in product(options.types, ARMS)
            if not (place / f"{kind}-{arm}.json").exists() and (arm != "none" or kind not in NEED_IMATRIX)
        ]
        if wanted:
            measure(name, place, wanted, options)


def measure(name: str, place: Path, wanted: Sequence[tuple[str, str]], options: argparse.Namespace) -> None:
    """Quantizes and evaluates one model in all wanted ways."""
    start = time.time()
    reference = place / "reference.gguf"
    if not reference.exists():
        write_bloom(fb.Checkpoint(name), reference)
    with cache_in(place):
        before = fb.Checkpoint(reference)
        write_imatrices(before, place, options)
        print(f"{name}: imatrices, {time.time() - start:.0f} s", flush=True)
        corpus = open_corpus(options.text, options.languages)
        request = TextRequest("evaluation", options.evaluation_tokens, 512, options.seed)
        with ReferenceModel.on_corpus(before, corpus, request=request) as answers:
            for kind, arm in wanted:
                file = place / f"{kind}-{arm}.gguf"
                quantize(reference, file, kind, arm, options)
                with cache_in(place):
                    scores = checkpoint_scores(fb.Checkpoint(file), answers, reference=before)
                scores.save(place / f"{kind}-{arm}.json")
                code, worst = scores.frame(UNIT).worst()
                size = file.stat().st_size
                print(
                    f"{name} {kind} {arm}: {size:,} bytes, worst {code} {worst}, {time.time() - start:.0f} s",
                    flush=True,
                )
                file.unlink()


def write_imatrices(before: fb.Checkpoint, place: Path, options: argparse.Namespace) -> None:
    """Writes english.gguf and mix.gguf."""
    if (place / "mix.gguf").exists():
        return
    settings = {"text": options.text, "seed": options.seed}
    languages = options.languages
    fb.imatrix(before, languages=["eng"], tokens=options.tokens * len(languages), **settings).save(
        place / "english.gguf"
    )
    fb.imatrix(before, languages=languages, tokens=options.tokens, **settings).save(place / "mix.gguf")


def quantize(reference: Path, file: Path, kind: str, arm: str, options: argparse.Namespace) -> None:
    """Lets llama-quantize write a file."""
    weights = [] if arm == "none" else ["--imatrix", reference.with_name(f"{arm}.gguf")]
    command = [options.llama_quantize, *weights, reference, file, kind, str(options.threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or "did not find weights for blk." in done.stdout + done.stderr:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{(done.stdout + done.stderr)[-2000:]}")


@contextmanager
def cache_in(place: Path) -> Iterator[None]:
    """Keeps the dequantized models of fairbits in a directory that is deleted at the end: they are large."""
    before = os.environ.get("XDG_CACHE_HOME")
    directory = tempfile.mkdtemp(dir=place)
    os.environ["XDG_CACHE_HOME"] = directory
    try:
        yield
    finally:
        if before is None:
            del os.environ["XDG_CACHE_HOME"]
        else:
            os.environ["XDG_CACHE_HOME"] = before
        shutil.rmtree(directory)


def tables(out: Path) -> Iterator[str]:
    """Yields the table of all models: the worst and the mean language, and the mix as a multiple of the others."""
    heads = ("model", "type", "imatrix", "MB", "worst KL", "mean KL", "English KL", "worst, mix ÷ this")
    yield f"| {' | '.join((*heads, 'mean, mix ÷ this', 'languages lower / higher with the mix'))} |"
    yield "|---|---|---|" + "---:|" * 7
    for name in sorted(place.name for place in out.iterdir() if place.is_dir()):
        for kind in TYPES:
            files = {arm: out / name / f"{kind}-{arm}.json" for arm in ARMS}
            measurements = {arm: Measured(arm, (Scores.load(path),)) for arm, path in files.items() if path.exists()}
            for arm, measured in measurements.items():
                yield f"| {name} | {kind} | {' | '.join(row(arm, measured, measurements))} |"


def row(arm: str, measured: Measured, measurements: dict[str, Measured]) -> list[str]:
    """Returns one row, from the name of the imatrix on."""
    frame = measured.frame("divergence", UNIT)
    code, worst = frame.worst()
    cells = [ARMS[arm], f"{measured.size_bytes / 1e6:.1f}", f"{interval(worst)} {code[:3]}", interval(frame.mean())]
    cells.append(number(frame.language(ENGLISH).value))
    if arm == "mix" or "mix" not in measurements:
        return [*cells, "", "", ""]
    mix = measurements["mix"].frame("divergence", UNIT)
    ratios = paired_ratios(mix, frame)
    lower, higher = contrast_counts(mix, frame)[2:]
    return [*cells, *(interval(ratio, 2) for ratio in ratios), f"{lower} / {higher}"]


def interval(estimate: Estimate, decimals: int = 4) -> str:
    """Returns an estimate with its interval, as tables write it."""
    low, high = (number(limit, decimals) for limit in (estimate.low, estimate.high))
    return f"{number(estimate.value, decimals)} [{low}, {high}]"


def write_bloom(checkpoint: Checkpoint, path: Path) -> None:
    """Writes a BLOOM as llama.cpp's converter does: q, k and v one after the other instead of head by head."""
    config = checkpoint.config
    writer = gguf.GGUFWriter(path, "bloom")
    writer.add_context_length(512)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(4 * config.hidden_size)
    writer.add_block_count(config.n_layer)
    writer.add_head_count(config.n_head)
    writer.add_head_count_kv(config.n_head)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)
    writer.add_vocab_size(config.vocab_size)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    _add_tokenizer(writer, json.loads((checkpoint.directory / "tokenizer.json").read_text("utf-8")))
    short = {name.removeprefix("transformer."): name for name in checkpoint.tensors}
    names = gguf_names("bloom", short, blocks=config.n_layer)
    assert names.keys() == short.keys()
    for ours, theirs in names.items():
        values = checkpoint.read(short[ours]).float().numpy()
        if "query_key_value" in ours:
            by_head = values.reshape(config.n_head, 3, -1, *values.shape[1:])
            values = np.concatenate([by_head[:, i].reshape(-1, *values.shape[1:]) for i in range(3)])
        writer.add_tensor(theirs, np.ascontiguousarray(values))
    _finish(writer)


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer: dict) -> None:
    vocabulary = tokenizer["model"]["vocab"]
    special = {token["id"] for token in tokenizer["added_tokens"]}
    tokens = sorted(vocabulary, key=vocabulary.get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(
        [gguf.TokenType.CONTROL if i in special else gguf.TokenType.NORMAL for i in range(len(tokens))]
    )
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(3)
    writer.add_add_bos_token(True)


def _finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main(arguments: Sequence[str]) -> None:
    """Measures, or prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    stages = parser.add_subparsers(dest="stage", required=True)
    running, writing = stages.add_parser("run"), stages.add_parser("tables")
    for stage in (running, writing):
        stage.add_argument("--out", type=Path, default=OUT, help="where the scores are")
    running.add_argument("--llama-quantize", default="llama-quantize", help="the program, if it is not on the PATH")
    running.add_argument("--models", nargs="+", default=["embedded:tiny"], help="full-precision BLOOMs")
    running.add_argument("--types", nargs="+", default=list(TYPES))
    running.add_argument("--text", default="help")
    running.add_argument("--languages", type=lambda names: names.split(","), default=LANGUAGES.split(","))
    running.add_argument("--tokens", type=int, default=2000, help="of every language, for the imatrix of the mix")
    running.add_argument("--evaluation-tokens", type=int, default=2000, help="of every language")
    running.add_argument("--seed", type=int, default=0)
    running.add_argument("--threads", type=int, default=2, help="of llama-quantize")
    options = parser.parse_args(arguments)
    if options.stage == "run":
        run(options)
    else:
        print("\n".join(tables(options.out)))


if __name__ == "__main__":
    main(sys.argv[1:])
