"""GGUF types language by language, computed by llama.cpp and by fairbits, without and with an imatrix.

    python benchmarks/llama_cpp.py measure MODEL --gguf FILE --llama-bin DIR [--types Q4_K_M …]
    python benchmarks/llama_cpp.py table

MODEL is a directory in bfloat16, FILE a GGUF file of this model in any type: all but the weights is taken from it.
`measure` writes MODEL as GGUF in bfloat16, an imatrix of an equal mix of the languages (`fairbits.imatrix`), and by
llama-quantize a file of every type without and with it. Each is evaluated on the same chunks of text by
llama-perplexity and by fairbits, which dequantizes the weights; so is the file in bfloat16, for what kernels change.
Models go to --files; scores go to --out, one file each, and what is there already is not measured again. A predicted
token takes 2 bytes per token of the vocabulary on disk, one language at a time, in the directory that TMPDIR names.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import gguf
import numpy as np

import fairbits as fb
from fairbits.api.evaluate import checkpoint_scores
from fairbits.core.table import NumberFormat, Table
from fairbits.evaluation.reference import ReferenceModel
from fairbits.evaluation.scores import Scores
from fairbits.evaluation.setting import EvaluationSetting, Identity
from fairbits.forward.chunks import chunk_corpus
from fairbits.forward.tokenize import open_corpus_for
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.device import resolve_device
from fairbits.models.io.gguf_file import gguf_names
from fairbits.text.corpus import TextRequest
from imatrix import cache_in
from measured import Measured, paired_ratios

PLAIN, ARMS = "BF16", {"none": "no imatrix", "mix": "imatrix of the mix"}
ENGINES = {"llama": "llama.cpp", "here": "fairbits"}
REFUSAL = "requires an importance matrix"
SHIFTED = ("gemma", "gemma2", "gemma3", "gemma3_text")  # whose norms are kept as 1 + w
TURNED = ("llama", "mistral")  # whose rows of q and k are kept in another order
SAME = 1e-5  # nats per token: the file in bfloat16 must be the model
UNIT = "bits_per_byte"


def measure(options: argparse.Namespace) -> None:
    """Measures what is not measured yet."""
    os.environ["LLAMA_ARG_THREADS"] = str(options.threads)
    options.files.mkdir(parents=True, exist_ok=True)
    before = Checkpoint(options.model)
    write_reference(before, options)
    wanted = [(PLAIN, "none"), *product(options.types, ARMS)]
    written = [
        pair for pair in wanted if (options.files / f"{name_of(*pair)}.gguf").exists() or quantize(*pair, options)
    ]
    if "fairbits" in options.engines:
        evaluate_here(before, written, options)
    if "llama.cpp" in options.engines:
        evaluate_there(written, options)


def name_of(kind: str, arm: str) -> str:
    """Returns how the files of one type are named."""
    return f"{kind}-{arm}"


def text_of(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the text that every file is evaluated on."""
    names = ("languages", "text", "tokens", "sequence", "seed", "device")
    return {name: getattr(options, name) for name in names}


def tell(scores: Scores, out: Path, began: float) -> None:
    """Prints what was measured."""
    code, worst = scores.frame(UNIT).worst()
    print(f"{out.name}: worst {code} {worst}, {time.monotonic() - began:.0f} s", flush=True)


def write_reference(before: Checkpoint, options: argparse.Namespace) -> None:
    """Writes the model in bfloat16 and the imatrix."""
    file, matrix = options.files / f"{name_of(PLAIN, 'none')}.gguf", options.files / "mix.gguf"
    if not file.exists():
        draft = file.with_suffix(".draft")
        write_gguf(before, options.gguf, draft)
        draft.rename(file)
    if not matrix.exists():
        began = time.monotonic()
        asked: dict[str, Any] = {
            "languages": options.languages,
            "text": options.text,
            "seed": options.seed,
            "device": options.device,
        }
        fb.imatrix(before, tokens=options.calibration_tokens, sequence=options.sequence, **asked).save(matrix)
        print(f"imatrix: {time.monotonic() - began:.0f} s", flush=True)


def write_gguf(checkpoint: Checkpoint, source: Path, out: Path) -> None:
    """Writes a model in bfloat16, its vectors in float32; all but the weights is that of another file of this model."""
    reader, config = gguf.GGUFReader(source), checkpoint.config.get_text_config()
    family = config.model_type
    names = gguf_names(family, checkpoint.tensors, blocks=config.num_hidden_layers)
    shapes = {theirs: tuple(checkpoint.tensors[mine].shape) for mine, theirs in names.items()}
    if shapes != {tensor.name: tuple(tensor.shape[::-1].tolist()) for tensor in reader.tensors}:
        sys.exit(f"{source} has other tensors than {checkpoint.target}; give a file of this model")
    writer = gguf.GGUFWriter(out, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key not in ("general.architecture", "general.file_type"):
            of = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), field.types[0], of)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    for mine, theirs in names.items():
        values = checkpoint.read(mine).float().numpy()
        if family in SHIFTED and theirs.endswith("norm.weight"):
            values = values + 1
        if family in TURNED and (heads := heads_of(theirs, config)):
            values = values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
        values = np.ascontiguousarray(values)
        half = gguf.GGMLQuantizationType.BF16
        if values.ndim == 1:
            writer.add_tensor(theirs, values)
        else:
            writer.add_tensor(theirs, gguf.quants.quantize(values, half), raw_dtype=half)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def heads_of(name: str, config: Any) -> int:
    """Returns the number of heads in a layer that makes queries or keys, else 0."""
    kinds = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}
    layer = name.split(".")[-2]
    return getattr(config, kinds[layer]) if layer in kinds else 0


def quantize(kind: str, arm: str, options: argparse.Namespace) -> bool:
    """Lets llama-quantize write a file; returns False if it refuses to without an imatrix."""
    file, source = (options.files / f"{name_of(*pair)}.gguf" for pair in ((kind, arm), (PLAIN, "none")))
    draft = file.with_suffix(".draft")
    weights = ["--imatrix", options.files / "mix.gguf"] if arm == "mix" else []
    command = [options.llama_bin / "llama-quantize", *weights, source, draft, kind, str(options.threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    printed = done.stdout + done.stderr
    if arm == "none" and REFUSAL in printed:
        draft.unlink(missing_ok=True)
        (options.out / f"{name_of(kind, arm)}.refused").write_text(
            f"llama-quantize: {kind} {REFUSAL}", encoding="utf-8"
        )
        return False
    if done.returncode or "did not find weights for blk." in printed:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{printed[-2000:]}")
    draft.rename(file)
    return True


def evaluate_here(before: Checkpoint, pairs: Sequence[tuple[str, str]], options: argparse.Namespace) -> None:
    """Evaluates files by fairbits on the chunks that llama-perplexity reads, and notes the types of their weights."""
    missing = [pair for pair in pairs if not (options.out / f"{name_of(*pair)}.here.json").exists()]
    if not missing:
        return
    corpus = open_corpus_for(before, options.text, options.languages)
    request = TextRequest("evaluation", options.tokens, options.sequence, options.seed)
    text = chunk_corpus(before, corpus, request=request)
    setting = replace(EvaluationSetting.of(before, corpus, request), parallel=False)
    with ReferenceModel.on_text(before, text, device=options.device) as answers:
        answers = replace(answers, setting=setting, identity=Identity.of(before))
        for pair in missing:
            began, file = time.monotonic(), options.files / f"{name_of(*pair)}.gguf"
            with cache_in(options.files):
                scores = checkpoint_scores(Checkpoint(file), answers, reference=before, device=options.device)
            if pair[0] == PLAIN and scores.frame("nats_per_token").worst()[1].value > SAME:
                sys.exit(f"{file} is not {before.target}: KL {scores.frame('nats_per_token').worst()}")
            types: Counter[str] = Counter()
            for tensor in gguf.GGUFReader(file).tensors:
                if len(tensor.shape) > 1:
                    types[tensor.tensor_type.name] += int(tensor.n_elements)
            (options.out / f"{name_of(*pair)}.types").write_text(
                json.dumps(dict(types.most_common())), encoding="utf-8"
            )
            out = options.out / f"{name_of(*pair)}.here.json"
            scores.save(out)
            tell(scores, out, began)


def evaluate_there(pairs: Sequence[tuple[str, str]], options: argparse.Namespace) -> None:
    """Evaluates files by llama.cpp."""
    for pair in pairs:
        out = options.out / f"{name_of(*pair)}.llama.json"
        if not out.exists():
            began = time.monotonic()
            scores = fb.evaluate(
                options.files / f"{name_of(*pair)}.gguf",
                reference=options.model,
                engine="llama.cpp",
                llama_perplexity=options.llama_bin / "llama-perplexity",
                progress=None,
                **text_of(options),
            )
            scores.save(out)
            tell(scores, out, began)


def tables(options: argparse.Namespace) -> Iterator[str]:
    """Yields a table of all files, and one of every type."""
    both = {
        pair: {key: Scores.load(options.out / f"{name_of(*pair)}.{key}.json") for key in ENGINES}
        for pair in [(PLAIN, "none"), *product(options.types, ARMS)]
        if all((options.out / f"{name_of(*pair)}.{key}.json").exists() for key in ENGINES)
    }
    if not both:
        return
    yield summary(both, options).markdown()
    for kind in dict.fromkeys(kind for kind, _ in both):
        yield by_language(kind, {arm: scores for (of, arm), scores in both.items() if of == kind}).markdown()


def summary(both: dict[tuple[str, str], dict[str, Scores]], options: argparse.Namespace) -> Table:
    """Returns the table of all files: the mean over languages and the worst language, by both."""
    rows = []
    for (kind, arm), scores in both.items():
        types = json.loads((options.out / f"{name_of(kind, arm)}.types").read_text("utf-8"))
        frames = [Measured(kind, (scores[key],)).frame("divergence", UNIT) for key in ENGINES]
        worst = [frame.worst() for frame in frames]
        kl, ratio = (NumberFormat(1.0, factor=1.0, decimals=n) for n in (4, 3))
        rows.append(
            (
                kind,
                ARMS[arm],
                f"{scores['llama'].quantized.size_bytes / 1e6:.1f}",
                ", ".join(f"{name} {count / sum(types.values()):.0%}" for name, count in types.items()),
                *(kl.estimate(frame.mean()) for frame in frames),
                "" if kind == PLAIN else ratio.estimate(paired_ratios(*frames)[1]),
                *([*kl.estimate(estimate), f" {code[:3]}"] for code, estimate in worst),
            )
        )
    refusals = sorted(path.read_text("utf-8") for path in options.out.glob("*.refused"))
    first = next(iter(both.values()))
    measurement, languages = first["llama"].measurement, len(first["llama"].languages)
    assert measurement is not None
    chunks = min(estimate.n for estimate in first["llama"].flips.values())
    return Table(
        "KL in bits per byte, mean over languages and worst language",
        (
            *("type", "imatrix", "MB", "types of the weights", "mean, llama.cpp", "mean, fairbits"),
            *("llama.cpp ÷ fairbits", "worst, llama.cpp", "worst, fairbits"),
        ),
        tuple(rows),
        below=(
            f"{measurement.engine}; {languages} languages, at least {chunks} chunks of "
            f"{first['llama'].setting.sequence} tokens each; 95 % intervals over chunks",
            *refusals,
        ),
        left=(0, 1, 3),
    )


def by_language(kind: str, arms: dict[str, dict[str, Scores]]) -> Table:
    """Returns KL and changed tokens of every language by both, without and with the imatrix."""
    columns = [(arm, key) for arm in arms for key in ENGINES]
    frames = {(arm, key): arms[arm][key].frame(UNIT).by_language() for arm, key in columns}
    kl, changed = NumberFormat(1.0, factor=1.0, decimals=4), NumberFormat(1.0, factor=100.0, decimals=1)
    codes = next(iter(arms.values()))["llama"].languages
    return Table(
        kind,
        (
            "language",
            *(
                f"{what}, {ARMS[arm]}, {ENGINES[key]}"
                for what in ("KL, bits/byte", "changed, of 100")
                for arm, key in columns
            ),
        ),
        tuple(
            (
                code,
                *(kl.estimate(frames[column][code]) for column in columns),
                *(changed.estimate(arms[arm][key].flips[code]) for arm, key in columns),
            )
            for code in codes
        ),
        left=(0,),
    )


def main(arguments: Sequence[str]) -> None:
    """Measures, or prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    stages = parser.add_subparsers(dest="stage", required=True)
    running, writing = stages.add_parser("measure"), stages.add_parser("table")
    for stage in (running, writing):
        stage.add_argument("--out", type=Path, default=Path("build/llama_cpp"), help="where the scores are")
        stage.add_argument("--types", nargs="+", default=["Q4_K_M", "Q3_K_M", "IQ3_XXS"])
    running.add_argument("model")
    running.add_argument("--gguf", type=Path, required=True, help="a GGUF file of the model")
    running.add_argument("--files", type=Path, default=Path("build/llama_cpp/files"), help="where the models are")
    running.add_argument("--llama-bin", type=Path, required=True, help="where llama-quantize and llama-perplexity are")
    running.add_argument("--engines", nargs="+", choices=list(ENGINES.values()), default=list(ENGINES.values()))
    running.add_argument("--languages", nargs="+", default=None)
    running.add_argument("--text", default="help")
    running.add_argument("--tokens", type=int, default=4096, help="predicted, of every language")
    running.add_argument("--calibration-tokens", type=int, default=4096, help="of every language, for the imatrix")
    running.add_argument("--sequence", type=int, default=512)
    running.add_argument("--seed", type=int, default=0)
    running.add_argument("--device", default="auto")
    running.add_argument("--threads", type=int, default=12, help="of llama.cpp")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.stage == "measure":
        options.device = resolve_device(options.device)
        measure(options)
    else:
        print("\n".join(tables(options)))


if __name__ == "__main__":
    main(sys.argv[1:])
