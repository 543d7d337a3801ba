"""The commands that are disturbed, and what may be seen of their results before they are complete."""

import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fault_disk import is_json

TEXT = ("--languages", "eng,heb", "--sequence", "32")
FEW = ("--tokens", "48")
SHAPE = ("--bits", "4", "--group", "16")
OUT = "OUT"


@dataclass(frozen=True)
class Case:
    """A command; OUT stands for the directory that is compared.

    `again`     what is added to continue it
    `older`     the command that made what is there before
    `changing`  files that may have another content while the command runs, as long as they can be read
    `every`     of a fault, only every n-th point is tried, as the command takes long; other faults take other points
    """

    name: str
    command: tuple[str, ...]
    again: tuple[str, ...] = ()
    older: tuple[str, ...] = ()
    changing: tuple[str, ...] = ()
    every: int = 1

    def arguments(self, out: Path, *, again: bool = False) -> list[str]:
        """Returns the command line."""
        return placed(self.command + (self.again if again else ()), out)

    def half_written(self, files: Mapping[str, bytes], *, whole: Mapping[str, bytes], old: Mapping[str, bytes]) -> str:
        """Returns which file that a user sees is neither the old nor the new one; "" if none is."""
        for name, data in files.items():
            if name.endswith("/") or (name in self.changing and is_json(data)):  # a directory without a file
                continue
            if data not in (whole.get(name), old.get(name)):
                return f"{name} is seen before it is complete"
        return lost_files(files)


def placed(command: tuple[str, ...], out: Path) -> list[str]:
    """Returns a command line with its directory."""
    return [argument.replace(OUT, str(out), 1) if argument.startswith(OUT) else argument for argument in command]


def lost_files(files: Mapping[str, bytes]) -> str:
    """Returns which file a manifest of overlays names that is not there; "" if none is."""
    for name, data in files.items():
        if name.endswith("overlays.json"):
            manifest = json.loads(data)
            entries = [*manifest["overlays"], *([manifest["activations"]] if manifest["activations"] else [])]
            for entry in entries:
                if str(Path(name).with_name(entry["file"])) not in files:
                    return f"{name} names {entry['file']}, which is not there"
    return ""


def make_models(directory: Path) -> tuple[Path, Path]:
    """Returns a Llama of two blocks, and where it is to be quantized; needs no gradient, as forks do not bear one."""
    tests = Path(__file__).parents[1]
    sys.path[:0] = [str(tests), str(tests / "architectures"), str(tests.parent / "benchmarks")]
    import torch
    import transformers as t

    import conftest  # of tests: its small models

    model = directory / "llama"
    t.logging.disable_progress_bar()
    torch.manual_seed(0)
    size = conftest.GROUPED | {"hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2}
    size |= {"intermediate_size": 16, "vocab_size": 300}
    conftest.save_with_tokenizer(t.LlamaForCausalLM(t.LlamaConfig(**size)), model)
    return model, directory / "base"


def make_base(model: Path, base: Path) -> None:
    """Quantizes the model."""
    from fairbits.api.make_plan import plan
    from fairbits.api.quantize import quantize

    shutil.rmtree(base, ignore_errors=True)
    quantize(str(model), plan(str(model), policy="rtn", bits=3, group=16), out=base)


def cases(model: Path, base: Path) -> tuple[Case, ...]:
    """Returns all cases."""
    m, b = str(model), str(base)
    quantize = ("quantize", m, "--out", f"{OUT}/out", *SHAPE)
    overlay = ("overlay", m, "--base", b, "--out", f"{OUT}/out", *TEXT, *FEW, "--budget", "20%", "--clusters", "1")
    steps = ("--model-steps", "2", "--block-steps", "1")
    scores = ("evaluate", b, "--reference", m, "--out", f"{OUT}/scores.json", *TEXT)
    compare = ("compare", m, "--policies", "rtn,mse", *SHAPE, *TEXT, *FEW, "--evaluation-tokens", "48")
    run = (
        "run",
        m,
        "--out",
        f"{OUT}/out",
        "--policy",
        "gptq",
        "--baselines",
        "rtn",
        "--more-bits",
        "3",
        "--audit",
        *SHAPE,
        *TEXT,
    )
    return (
        Case("quantize rtn", (*quantize, "--policy", "rtn"), again=("--resume",), every=2),
        Case("quantize gptq", (*quantize, "--policy", "gptq", *TEXT, *FEW), again=("--resume",), every=9),
        Case("quantize fair", (*quantize, "--policy", "fair", *TEXT, *FEW, *steps), again=("--resume",), every=9),
        Case("quantize NVFP4", (*quantize[:4], "--scheme", "NVFP4", *TEXT, *FEW), again=("--resume",), every=9),
        Case("overlay", (*overlay, "--activations", "8"), every=2),
        Case("overlay over older", overlay, older=(*overlay, "--activations", "8", "--form", "codes"), every=2),
        Case("evaluate", (*scores, "--tokens", "48")),
        Case("evaluate over older", (*scores, "--tokens", "48"), older=(*scores, "--tokens", "64")),
        Case("compare", (*compare, "--out", f"{OUT}/compare.json", "--results", f"{OUT}/results"), every=2),
        Case("run", (*run, *FEW, "--evaluation-tokens", "48"), changing=("out/run.json",), every=14),
    )
