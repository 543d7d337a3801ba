"""Time and memory of every command on multilingual classes of real size with random weights, on this machine's CPU.

    python benchmarks/multilingual.py --models bloom-560m xlm-r-base mt5-small whisper-small

Whisper hears five clips per language and split, which espeak-ng speaks (apt install espeak-ng); without it, sound that
is shaped like speech. Each job runs in a process of its own. `forward` passes the same text through the model in
transformers, in float32 and with all logits, and does nothing else: other jobs are compared with it. `reload` loads
what `quantize` wrote, in transformers and in fairbits, and compares logits. Rows are kept in `--out`; a job that is
there is not run again.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import fairbits
from fairbits import Checkpoint
from fairbits.forward.batches import batches
from fairbits.forward.tokenize import open_corpus_for, tokenize_corpus
from fairbits.models.architecture.meta_model import model_class
from fairbits.models.scales.scheme import Scheme
from fairbits.models.weight_moments import weight_moments
from fairbits.text.included_texts import udhr
from fairbits.text.text_request import TextRequest
from scale import watched_memory
from speech import can_speak, whisper_tokenizer, write_speech

ROOT = Path(__file__).parents[1]
LANGUAGES, TOKENS, SEED = ("eng", "fra", "heb", "swh", "cmn"), 512, 0
CLIPS, LETTERS, SECONDS = 5, 110, (5.0, 10.0)
"""Clips of each language and split, the most letters of their transcripts, and their length if they are not spoken."""
AT_ONCE = 256
"""Positions that the baseline passes at a time; logits of 250,000 tokens then take 0.25 GB."""


@dataclass(frozen=True)
class Model:
    """A class of transformers and the sizes of a published model; `bits` are what it is quantized to."""

    cls: str
    config: str
    sizes: dict[str, Any]
    dtype: torch.dtype
    bits: int = 4
    hears: bool = False


MODELS = {
    "bloom-560m": Model(
        "BloomForCausalLM",
        "BloomConfig",
        {"hidden_size": 1024, "n_layer": 24, "n_head": 16, "vocab_size": 250_880},
        torch.float16,
    ),
    "xlm-r-base": Model(
        "XLMRobertaForMaskedLM",
        "XLMRobertaConfig",
        {"vocab_size": 250_002, "max_position_embeddings": 514, "type_vocab_size": 1},
        torch.float32,
    ),
    "mt5-small": Model("MT5ForConditionalGeneration", "MT5Config", {}, torch.float32, bits=8),
    "whisper-small": Model(
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {
            "d_model": 768,
            "encoder_layers": 12,
            "decoder_layers": 12,
            "encoder_attention_heads": 12,
            "decoder_attention_heads": 12,
            "encoder_ffn_dim": 3072,
            "decoder_ffn_dim": 3072,
        },
        torch.float32,
        hears=True,
    ),
}


@dataclass(frozen=True)
class Row:
    """What a job took: seconds, CPU seconds, and the most main memory without pages of mapped files, in bytes."""

    model: str
    job: str
    seconds: float
    cpu_seconds: float
    ram_bytes: int
    found: str = ""


def write_model(directory: Path, model: Model) -> Path:
    """Returns the directory of a random model; made if it is not there."""
    import transformers

    if (directory / "config.json").is_file():
        return directory
    if model.hears:
        tokenizer = whisper_tokenizer(16384)
        ids = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), tokenizer.eos_token_id)
        start = tokenizer.convert_tokens_to_ids("<|startoftranscript|>")
        transformers.WhisperFeatureExtractor().save_pretrained(directory)
    else:
        tokenizer = Checkpoint("embedded:tiny").tokenizer()
        tokenizer.add_special_tokens({"mask_token": "<mask>"})
        ids = {f"{each}_token_id": getattr(tokenizer, f"{each}_token_id") for each in ("bos", "eos", "pad")}
        start = ids["bos_token_id"]
    config = getattr(transformers, model.config)(**model.sizes, **ids, decoder_start_token_id=start)
    torch.manual_seed(SEED)
    made = getattr(transformers, model.cls)(config).to(model.dtype)
    made.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def speech_in(place: Path) -> Path:
    """Returns a directory of clips that say the beginnings of the declaration's sections; made if it is not there."""
    directory, spoken = place / "speech", can_speak()
    if directory.is_dir():
        return directory
    print("espeak-ng speaks" if spoken else "espeak-ng is not installed: the clips are noise shaped like speech")
    corpus = udhr(LANGUAGES)
    for split in ("calibration", "evaluation"):
        texts = {code: [_beginning(each) for each in texts[:CLIPS]] for code, texts in corpus.split(split).items()}
        write_speech(directory / split, texts, seconds=SECONDS, seed=SEED, spoken=spoken)
    return directory


def _beginning(text: str) -> str:
    """Returns the first words of a text; in Chinese, whose words are not apart and take longer, fewer letters."""
    short = text[: LETTERS if " " in text else LETTERS // 3]
    return short.rpartition(" ")[0] or short


def jobs(name: str, place: Path) -> dict[str, Callable[[], object]]:
    """Returns what is done with a model, in this order."""
    model = MODELS[name]
    path, out = place / name, place / f"{name}-quantized"
    scheme = {"bits": model.bits, "group": 64}
    text = speech_in(place) if model.hears else None
    read = {"languages": LANGUAGES, "tokens": TOKENS, "text": text}

    def quantize() -> object:
        return fairbits.quantize(path, fairbits.plan(path, policy="gptq", **scheme, **read), text=text, out=out)

    return {
        "forward": lambda: forward(path, text),
        "moments": lambda: weight_moments(Checkpoint(path)),
        "audit": lambda: fairbits.audit(path, scheme=Scheme(model.bits, 64), **read),
        "quantize": quantize,
        "reload": lambda: reload(out),
        "evaluate": lambda: fairbits.evaluate(out, reference=path, **read),
    }


@torch.no_grad()
def forward(path: Path, text_of: Path | None) -> None:
    """Passes the text of the audit through the model in transformers."""
    checkpoint = Checkpoint(path)
    corpus = open_corpus_for(checkpoint, text_of, LANGUAGES)
    text = tokenize_corpus(checkpoint, corpus, request=TextRequest("calibration", TOKENS, 512, SEED), least=1)
    model = model_class(checkpoint.config).from_pretrained(path, dtype=torch.float32).eval()
    for batch in batches(text, positions=AT_ONCE):
        model(**batch.inputs, use_cache=False)


@torch.no_grad()
def reload(out: Path) -> str:
    """Returns how far the logits of transformers are from those of fairbits."""
    ours = Checkpoint(out).load()
    inputs = sample_inputs(ours)
    found = ours(**inputs).logits
    del ours
    theirs = model_class(Checkpoint(out).config).from_pretrained(out, dtype=torch.float32).eval()
    return f"logits within {float((theirs(**inputs).logits - found).abs().max()):.1g}"


def sample_inputs(model: Any) -> dict[str, torch.Tensor]:
    """Returns what a model reads: token ids, or sound and token ids."""
    ids = torch.arange(5, 37)[None]
    if model.main_input_name == "input_features":
        sound = torch.randn(1, model.config.num_mel_bins, 2 * model.config.max_source_positions)
        return {"input_features": sound, "decoder_input_ids": ids}
    return {"input_ids": ids, **({"decoder_input_ids": ids} if model.config.is_encoder_decoder else {})}


def measure(name: str, job: str, place: Path) -> Row:
    """Returns what a job takes in this process."""
    do = jobs(name, place)[job]
    with watched_memory() as most:
        start, cpu = time.perf_counter(), time.process_time()
        found = do()
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    return Row(name, job, seconds, cpu, most[-1], found if isinstance(found, str) else "")


def print_table(rows: list[Row]) -> None:
    """Prints what was measured."""
    print("\n| model | job | seconds | CPU seconds | of `forward`, in CPU seconds | memory, GB | |")
    print("|---|---|---|---|---|---|---|")
    base = {row.model: row.cpu_seconds for row in rows if row.job == "forward"}
    for row in rows:
        ratio = f"{row.cpu_seconds / base[row.model]:.1f}" if row.model in base else ""
        cells = f"{row.seconds:.0f}", f"{row.cpu_seconds:.0f}", ratio, f"{row.ram_bytes / 1e9:.2f}", row.found
        print(f"| {row.model} | {row.job} | {' | '.join(cells)} |")


def main() -> None:
    """Runs the jobs that are not there yet, each in its own process, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--jobs", nargs="+", help="only these")
    parser.add_argument("--out", type=Path, default=ROOT / "build/multilingual", help="models and rows")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)  # in this process
    given = parser.parse_args()
    file = given.out / "rows.jsonl"
    if given.one:
        row = measure(given.models[0], given.jobs[0], given.out)
        with file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(asdict(row)) + "\n")
        return
    given.out.mkdir(parents=True, exist_ok=True)
    for name in given.models:
        write_model(given.out / name, MODELS[name])
        for job in jobs(name, given.out):
            done = any((row.model, row.job) == (name, job) for row in read_rows(file))
            if not done and (given.jobs is None or job in given.jobs):
                print(f"{name}, {job}", file=sys.stderr, flush=True)
                own = ["--one", "--models", name, "--jobs", job, "--out", str(given.out)]
                subprocess.run([sys.executable, __file__, *own], check=True)
    print_table(read_rows(file))


def read_rows(file: Path) -> list[Row]:
    """Returns the rows measured so far."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    return [Row(**json.loads(line)) for line in lines]


if __name__ == "__main__":
    main()
