"""Small models that can read, what a run leaves, the command line in this process, and work that is counted."""

import faulthandler
import gc
import json
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as t
from speech import whisper_tokenizer, write_speech

from fairbits.api.audit import audit
from fairbits.api.evaluate import evaluate
from fairbits.api.make_plan import plan
from fairbits.api.quantize import quantize
from fairbits.api.sweep import sweep
from fairbits.cli import main
from fairbits.core.version import versions
from fairbits.models import embedded
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.scales.grid import Grid
from fairbits.models.scales.groups import round_to_nearest
from fairbits.models.scales.scheme import Scheme
from fairbits.serve.overlays.overlay_files import Overlay, Overlays, Patch
from random_models import smaller_tokenizer

DATA = Path(__file__).parent / "data"
TOKENS = {"vocab_size": 1024, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3}
SIZE = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 48, **TOKENS}
GROUPED = {**SIZE, "num_key_value_heads": 2}
MT5_SIZE = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4, **TOKENS}
WIDE = {**GROUPED, "hidden_size": 128, "intermediate_size": 256}
LLAMA4_SIZE = {**GROUPED, "head_dim": 8, "intermediate_size_mlp": 48, "num_local_experts": 3, "num_experts_per_tok": 2}
M2M100_SIZE = {
    **TOKENS,
    "d_model": 32,
    "max_position_embeddings": 128,
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 48),
}
OPT_SIZE = {**TOKENS, "num_attention_heads": 4, "num_hidden_layers": 2, "ffn_dim": 48}
OPT_SIZE |= dict.fromkeys(("hidden_size", "word_embed_proj_dim"), 32)
NO_START = {"bos_token": None}
MASK = {"mask_token": "<unk>"}

READING: dict[str, tuple[Any, Callable[[], Any], dict[str, Any]]] = {
    "llama": (t.LlamaForCausalLM, lambda: t.LlamaConfig(**GROUPED), {}),
    "wide_llama": (lambda config: t.LlamaForCausalLM(config).bfloat16(), lambda: t.LlamaConfig(**WIDE), {}),
    "qwen2": (t.Qwen2ForCausalLM, lambda: t.Qwen2Config(**GROUPED), NO_START),
    "gemma3": (t.Gemma3ForCausalLM, lambda: t.Gemma3TextConfig(**GROUPED, head_dim=16, sliding_window=8), {}),
    "gpt2": (t.GPT2LMHeadModel, lambda: t.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=64, **TOKENS), {}),
    "opt": (t.OPTForCausalLM, lambda: t.OPTConfig(**OPT_SIZE, max_position_embeddings=64), {}),
    "mt5": (t.MT5ForConditionalGeneration, lambda: t.MT5Config(**MT5_SIZE, decoder_start_token_id=3), {}),
    "m2m100": (t.M2M100ForConditionalGeneration, lambda: t.M2M100Config(**M2M100_SIZE, decoder_start_token_id=3), {}),
    "xlmr": (t.XLMRobertaForMaskedLM, lambda: t.XLMRobertaConfig(**SIZE, max_position_embeddings=68), MASK),
    "mixtral": (t.MixtralForCausalLM, lambda: t.MixtralConfig(**GROUPED, num_local_experts=3), {}),
    "llama4": (t.Llama4ForCausalLM, lambda: t.Llama4TextConfig(**LLAMA4_SIZE, interleave_moe_layer_step=1), {}),
}
"""Class, configuration and what its tokenizer has beside (or without) the embedded one's."""

collect_ignore = ["unit/bad_input"]
"""Tables that test_bad_input.py runs: to look for doctests in them would run them again."""


def pytest_collection_finish() -> None:
    """Takes all that collection imported out of garbage collection, most of whose time it would be."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> None:
    """Lets Ctrl-C reach tests and the processes that they start, also where it is ignored, as under nohup."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def reading_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Checkpoint]:
    """Returns the function that gives a small random model of a family."""
    checkpoints: dict[str, Checkpoint] = {}

    def reading_model(family: str) -> Checkpoint:
        if family not in checkpoints:
            cls, config, tokenizer = READING[family]
            directory = tmp_path_factory.mktemp(family)
            with torch.random.fork_rng():
                torch.manual_seed(0)  # the same weights every time
                save_with_tokenizer(cls(config()), directory, **tokenizer)
            checkpoints[family] = Checkpoint(directory)
        return checkpoints[family]

    t.logging.disable_progress_bar()
    return reading_model


@pytest.fixture(scope="session")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random Whisper with its tokenizer and feature extractor, for clips of up to 10 seconds."""
    directory = tmp_path_factory.mktemp("whisper")
    tokenizer = whisper_tokenizer(1024)
    stack = {"layers": 2, "attention_heads": 2, "ffn_dim": 48}
    sizes = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in stack.items()}
    start = tokenizer.convert_tokens_to_ids("<|startoftranscript|>")
    end = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), tokenizer.eos_token_id)
    config = t.WhisperConfig(
        d_model=32,
        vocab_size=len(tokenizer),
        num_mel_bins=8,
        max_source_positions=50,
        max_target_positions=64,
        decoder_start_token_id=start,
        **sizes,
        **end,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        t.WhisperForConditionalGeneration(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    t.WhisperFeatureExtractor(feature_size=8, hop_length=1600, chunk_length=10).save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clips of one to three seconds in three languages, one of which the tokenizer of `whisper` does not know."""
    sentences = {
        "eng": [f"On day {i} the wind came from the north." for i in range(12)],
        "fra": [f"Le jour {i}, le vent venait du nord." for i in range(12)],
        "quy": [f"{i} punchawpi wayra hanaqmanta hamurqa." for i in range(12)],
    }
    return write_speech(tmp_path_factory.mktemp("speech") / "clips", sentences, seconds=(1.0, 3.0))


@pytest.fixture(scope="session")
def outer_blocks(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Checkpoint]:
    """Returns the function that gives a few of the embedded model's twelve blocks, the first and the last, as a model.

    Its weights are trained ones, and the work is that of so few blocks. It reads; what it writes are repetitions.
    """
    source, checkpoints = Checkpoint("embedded:tiny"), dict[int, Checkpoint]()

    def outer_blocks(count: int) -> Checkpoint:
        if count not in checkpoints:
            directory = tmp_path_factory.mktemp(f"{count}-blocks") / "tiny"
            model = source.load().half()
            blocks = model.transformer.h
            model.transformer.h = torch.nn.ModuleList([*blocks[: (count + 1) // 2], *blocks[12 - count // 2 :]])
            model.config.n_layer = count
            model.save_pretrained(directory)
            for name in ("tokenizer.json", "tokenizer_config.json"):
                shutil.copy(source.directory / name, directory)
            checkpoints[count] = Checkpoint(directory)
        return checkpoints[count]

    t.logging.disable_progress_bar()
    return outer_blocks


@pytest.fixture(scope="module")
def two_block_embedded(outer_blocks: Callable[[int], Checkpoint]) -> Iterator[Checkpoint]:
    """Returns what `embedded:tiny` stands for in a module that uses this: two of its blocks, a sixth of the work."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedded, "ASSETS", outer_blocks(2).directory.parent)
        yield Checkpoint("embedded:tiny")


@pytest.fixture(scope="module")
def four_block_embedded(outer_blocks: Callable[[int], Checkpoint]) -> Iterator[Checkpoint]:
    """Returns what `embedded:tiny` stands for in a module that uses this: four of its blocks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedded, "ASSETS", outer_blocks(4).directory.parent)
        yield Checkpoint("embedded:tiny")


@pytest.fixture
def command(monkeypatch, capsys) -> Callable[..., tuple[int, str, str]]:
    """Returns a function that runs a verb on 80 columns: exit code, stdout, and stderr less its lines of progress."""

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fairbits", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "80")
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        errors = re.sub(r"^.* …\n", "", captured.err, flags=re.MULTILINE)
        return int(ended.value.code or 0), captured.out, errors

    return run


@pytest.fixture
def watchdog() -> Iterator[None]:
    """Ends the process where a compiled loop does not end: no Python handler is called in it.

    The timer counts processor time, so a busy machine and a slow compilation do not set it off.
    """
    faulthandler.register(signal.SIGVTALRM, chain=True)
    signal.setitimer(signal.ITIMER_VIRTUAL, 300)
    yield
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    faulthandler.unregister(signal.SIGVTALRM)


@pytest.fixture
def count_calls() -> Callable[[Callable[[], object]], int]:
    """Returns the function that counts the calls, of Python and of C, that some work takes.

    It stands where time would be measured: it is the same on a busy machine.
    """

    def count_calls(work: Callable[[], object]) -> int:
        count, before = 0, sys.getprofile()

        def seen(_frame: object, event: str, _arg: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(seen)
        try:
            work()
        finally:
            sys.setprofile(before)
        return count

    return count_calls


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Checkpoint]:
    """Returns the function that saves a model of the test beside the embedded tokenizer."""

    def saved(model: Any, **tokenizer: Any) -> Checkpoint:
        save_with_tokenizer(model, tmp_path, **tokenizer)
        return Checkpoint(tmp_path)

    t.logging.disable_progress_bar()
    return saved


@pytest.fixture(scope="session")
def finished_run(reading_model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a directory that holds what a run leaves: audit, model, scores of three methods, widths."""
    out, model = tmp_path_factory.mktemp("run"), reading_model("llama")
    text = {"languages": ["eng_Latn", "heb_Hebr", "jpn_Jpan", "swh_Latn"], "sequence": 64}
    width = {"bits": 3, "group": "channel"}
    audit(model, **text, tokens=64, scheme=Scheme(bits=3, group="channel")).save(out / "audit.json")
    (out / "baselines").mkdir()
    methods = {
        out / "scores.json": {"policy": "gptq", **text, "tokens": 64},
        out / "baselines" / "gptq-mix-english.json": {"policy": "gptq", **text, "tokens": 64, "mix": "english"},
        out / "baselines" / "rtn.json": {"policy": "rtn"},
    }
    for path, asked in methods.items():
        directory = out / "model" if path.name == "scores.json" else tmp_path_factory.mktemp("made") / path.stem
        quantize(model, plan(model, **width, **asked), out=directory)
        evaluate(directory, reference=model, **text, tokens=64).save(path)
    sweep(model, bits=[3, 4], policy="rtn", group="channel", **text, evaluation_tokens=64).save(out / "sweep.json")
    record = {
        "schema": "fairbits.run/1",
        "fairbits": "0.1.0",
        "model": model.target,
        "fingerprint": model.fingerprint,
        "settings": width,
        "policy": "gptq",
        "hashes": {},
        "versions": versions(),
        "baselines": [
            {"name": "gptq:mix=english", "scores": "baselines/gptq-mix-english.json"},
            {"name": "rtn", "scores": "baselines/rtn.json"},
        ],
        "notes": ["a note of the run"],
    }
    (out / "run.json").write_text(json.dumps(record))
    return out


@pytest.fixture
def audit_data() -> Callable[[str, list[float]], dict[str, Any]]:
    """Returns the function that gives the content of an audit of a model with a fingerprint and κ of its blocks."""

    def audit_data(fingerprint: str, kappa: list[float]) -> dict[str, Any]:
        data = json.loads((DATA / "records" / "audit.json").read_text())
        data["model"] |= {"fingerprint": fingerprint, "stacks": ["decoder"] * len(kappa)}
        data["blocks"] = [data["blocks"][0] | {"block": i, "kappa": value} for i, value in enumerate(kappa)]
        for form in data["damage"].values():
            form["by_block"] = {code: [0.0] * len(kappa) for code in form["by_block"]}
        for pattern in data["patterns"].values():  # of the first blocks, as many as there are
            pattern["blocks"] = pattern["blocks"][: len(kappa)]
            for name in ("activation", "share"):
                pattern[name] = {code: row[: len(kappa)] for code, row in pattern[name].items()}
        return data

    return audit_data


@pytest.fixture(scope="session")
def adaptive(outer_blocks: Callable[[int], Checkpoint], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Returns four embedded blocks in 4 bits, and overlays "a" (English, Hebrew) and "b" (Japanese) of a few rows."""
    out, model = tmp_path_factory.mktemp("adaptive"), outer_blocks(4)
    quantize(model, plan(model, policy="rtn", bits=4), out=out / "base")
    base = Checkpoint(out / "base")
    linears = [weight for block in model.architecture.blocks for weight in block.linears.values()]
    overlays = []
    for name, codes, scales in (("a", linears[::5], linears[1::7]), ("b", linears[2::9], ())):
        patches = [_finer_rows(model, weight, first=len(name) + len(codes)) for weight in codes]
        for weight in set(scales) - set(codes):
            scale = base.read(f"{weight.name}_scale").clone()
            patches.append(Patch("steps", weight.name, weight.module, 4, None, scale * 1.125, None, scale))
        overlays.append(Overlay(name, {"a": ("eng_Latn", "heb_Hebr"), "b": ("jpn_Jpan",)}[name], tuple(patches)))
    served = {"eng_Latn": "a", "heb_Hebr": "a", "jpn_Jpan": "b", "fra_Latn": "base"}
    Overlays(base.fingerprint, tuple(overlays), served).save(out / "overlays")
    return out / "base", out / "overlays"


def _finer_rows(model: Checkpoint, weight: Any, *, first: int) -> Patch:
    """Returns every fourth row in 8 bits."""
    rows = torch.arange(first % 4, weight.shape[0], 4)
    W = model.read(weight.name).float()[rows]
    rounded = round_to_nearest(W, (W.abs().amax(1, keepdim=True) / 127.5).half(), grid=Grid(8, "twos"))
    return Patch("codes", weight.name, weight.module, 8, rows, rounded.scales, rounded.codes)


def save_with_tokenizer(model: Any, directory: Path, **tokenizer: Any) -> None:
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():  # norms are all alike at first
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=rng))
    model.save_pretrained(directory)
    source = Checkpoint("embedded:tiny").directory
    (directory / "tokenizer.json").write_text(smaller_tokenizer(source / "tokenizer.json", model.config.vocab_size))
    settings = json.loads((source / "tokenizer_config.json").read_text()) | tokenizer
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


def sample_of(document: int, scores: dict[str, Any], **changed: Any) -> dict[str, Any]:
    """Returns what lm-eval writes about one item, in its order."""
    return {
        "doc_id": document,
        "doc": {"text": f'„{document}“, "filter": "no"', "filter": 1},
        "target": "0",
        "arguments": {"gen_args_0": {"arg_0": "", "arg_1": "text"}},
        "resps": [[["-1.5", "False"]]],
        "filtered_resps": [["-1.5", "False"]],
        "filter": "none",
        "metrics": list(scores),
        **{f"{name}_hash": f"{document:064x}" for name in ("doc", "prompt", "target")},
        **scores,
    } | changed


@pytest.fixture
def lm_eval_run(tmp_path: Path) -> Callable[..., Path]:
    """Returns a function that writes a run of lm-eval: the scores of every item of every task.

    A score is that of `metric`, or a whole line. The results say that every task has version 1.
    """

    def write(name: str, tasks: dict[str, Any], *, metric: str = "acc", date: str = "05", **results: Any) -> Path:
        home = tmp_path / name / "model"
        home.mkdir(parents=True, exist_ok=True)
        stamp = f"2026-01-02T03-04-{date}.000006"
        for task, scores in tasks.items():
            lines = [
                score if isinstance(score, dict) else sample_of(i, {metric: score}) for i, score in enumerate(scores)
            ]
            text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
            (home / f"samples_{task}_{stamp}.jsonl").write_text(text, "utf-8")
        summary = {"versions": dict.fromkeys(tasks, 1), "n-shot": dict.fromkeys(tasks, 0)} | results
        (home / f"results_{stamp}.json").write_text(json.dumps(summary), "utf-8")
        return tmp_path / name

    return write


@pytest.fixture
def lm_eval_sample() -> Callable[..., dict[str, Any]]:
    """Returns the function that makes a line of samples."""
    return sample_of
