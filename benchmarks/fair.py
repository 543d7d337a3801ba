"""What learning adds to GPTQ: worst and mean damage of languages at the same bytes, on several texts, step by step.

    python benchmarks/fair.py --text TEXT --scores DIR [--model embedded:tiny …] [--evaluation OTHER …]
    python benchmarks/fair_tables.py DIR

Every policy is calibrated on the calibration split of TEXT, anew for every seed, and evaluated on its evaluation split,
on the declaration of human rights and on all of every OTHER: none of it was seen in calibration. What is measured goes
to DIR, one file for each policy, seed and text, and what is there already is not measured again: several processes can
share the seeds. The second command prints all of DIR.
"""

import argparse
import hashlib
import re
import tempfile
from pathlib import Path
from typing import Any

import torch

from bench import Bench, Setting, Store
from fairbits.api.make_plan import plan as planned
from fairbits.evaluation.scores import Scores
from fairbits.quantization.plan import Plan
from fairbits.quantization.policies.variants import variant
from fairbits.text.corpus import Corpus
from fairbits.text.included_texts import udhr
from fairbits.text.reading import read_corpus
from fairbits.text.text_request import TextRequest

POLICIES = (
    "gptq",
    "mse",
    "weighted",
    "fair:objective=mean:model_steps=0",
    "fair:objective=mean",
    "fair",
    "fair:avg_bits:widths=2+3+4+5+6",
)


class FairBench:
    """A model on all texts, and policies that are tried on it; learning starts from codes that policies share."""

    def __init__(self, target: str, corpus: Corpus, options: argparse.Namespace) -> None:
        self.corpus, self.options = corpus, options
        request = TextRequest("evaluation", options.evaluation_tokens, options.sequence)
        self.bench = Bench(target, corpus, self._texts(), request=request, device=options.device)
        self._starts = tempfile.TemporaryDirectory()

    def close(self) -> None:
        """Removes temporary files."""
        self._starts.cleanup()
        self.bench.close()

    def run(self, policy: str, setting: Setting, seed: int) -> tuple[dict[str, Scores], dict[str, Any]]:
        """Returns the scores of a policy on every text, and facts about it."""
        plan = self._plan(policy, setting, seed)
        return self.bench.run(plan, f"{policy}, {setting}, seed {seed}", saved=self._start(plan))

    def _plan(self, policy: str, setting: Setting, seed: int) -> Plan:
        """Returns the plan of a policy; avg_bits without a number is that of the setting."""
        asked = variant(re.sub(r"avg_bits(?!=)", f"avg_bits={setting.bits}", policy))
        own = {"group": setting.group, **asked.at(setting.bits)}
        if asked.policy == "fair":
            own = {"model_steps": self.options.model_steps, **own}
        options = self.options
        text = {"text": self.corpus, "tokens": options.tokens, "sequence": options.sequence, "seed": seed}
        return planned(self.bench.checkpoint, policy=asked.policy, device=options.device, **text, **own)

    def _start(self, plan: Plan) -> Path:
        """Returns where the codes lie that learning begins with: the same ones for whatever it makes of them."""
        how = plan.learning
        start = None if how is None else (how.block_steps, how.block_tokens, how.rows, how.rate, how.model_steps == 0)
        parts = (seed_of(plan), dict(plan.schemes), start)
        saved = Path(self._starts.name) / hashlib.sha256(repr(parts).encode()).hexdigest()
        (saved / "course.safetensors").unlink(missing_ok=True)
        return saved

    def _texts(self) -> dict[str, Corpus]:
        languages = [language.code for language in self.corpus.languages]
        texts = {"own": self.corpus, "udhr": udhr(languages)}
        for path in self.options.evaluation:
            other = read_corpus(path, evaluation_share=1.0)
            known = [language.code for language in other.languages if language.code in languages]
            texts[path.name] = other.restrict(known)
        return texts


def seed_of(plan: Plan) -> int:
    """Returns the seed of a plan's calibration text."""
    return 0 if plan.calibration is None else plan.calibration.seed


def arguments() -> argparse.Namespace:
    """Returns what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scores", type=Path, required=True, metavar="DIR", help="where what is measured goes")
    parser.add_argument("--model", nargs="+", default=["embedded:tiny"])
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--evaluation", type=Path, nargs="*", default=[])
    parser.add_argument("--languages", help="such as eng,fra; all of the text if not given")
    parser.add_argument("--settings", nargs="+", default=["4:channel", "3:64"])
    parser.add_argument("--policies", nargs="+", default=list(POLICIES))
    parser.add_argument("--model-steps", type=int, help="of fair, if not its own")
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--evaluation-tokens", type=int, default=8192)
    parser.add_argument("--sequence", type=int, default=512)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def main() -> None:
    """Measures what is not there yet."""
    options = arguments()
    store = Store(options.scores)
    corpus = read_corpus(options.text, languages=options.languages.split(",") if options.languages else None)
    for target in options.model:
        bench = FairBench(target, corpus, options)
        for setting in options.settings:
            for seed in options.seeds:
                for policy in options.policies:
                    place = store.place(target, setting, policy, seed)
                    if store.facts(place) is not None:
                        continue
                    scores, facts = bench.run(policy, Setting.of(setting), seed)
                    store.save(place, scores, facts)
                    print(f"{place.relative_to(store.root)}: {facts['seconds']:.0f} s", flush=True)
        bench.close()


if __name__ == "__main__":
    main()
