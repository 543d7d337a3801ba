"""Quantize: carries out a plan, block by block, into a checkpoint that transformers and vLLM load."""

import json
from dataclasses import asdict, replace
from pathlib import Path

from fairbits.checks import instance
from fairbits.errors import InputError
from fairbits.language import Corpus
from fairbits.model.checkpoint import Checkpoint
from fairbits.model.writing import QuantizedWriter
from fairbits.plans import Outcome, Plan
from fairbits.policies.assemble import stored_as
from fairbits.probe.prepare import text_for
from fairbits.probe.text import Text
from fairbits.rounding.engine import RoundedBlock, round_model
from fairbits.steps.audit import corpus_of
from fairbits.steps.bench import Progress, told


def quantize(
    model: str | Path | Checkpoint,
    plan: Plan,
    *,
    out: str | Path,
    text: str | Path | Corpus | None = None,
    resume: bool = False,
    device: str = "cpu",
    progress: Progress | None = None,
) -> Plan:
    """Returns the plan with what came of it, after writing the quantized model and the plan into `out`.

    `text` must be what the plan was made with; without it the embedded declaration is taken. `out` appears whole or
    not at all. What an interrupted run has finished stays beside it, and `resume` goes on from there to the same bytes.
    """
    checkpoint = model if isinstance(model, Checkpoint) else Checkpoint(model)
    instance("plan", plan, Plan)
    if plan.fingerprint != checkpoint.fingerprint:
        raise InputError(
            f"the plan was made for {plan.model}, and {checkpoint.target} has other weights; plan for this model first"
        )
    identity = {"plan": plan.digest, "model": plan.fingerprint}
    writer = QuantizedWriter(checkpoint, Path(out), stored=stored_as(plan.treatments), identity=identity, resume=resume)
    words = calibration_text(checkpoint, plan, text)
    found: dict[int | None, RoundedBlock] = {}

    def finished(index: int | None) -> RoundedBlock | None:
        block = _finished(writer, index)
        if block is not None:
            found[index] = block
        return block

    outcomes: list[Outcome] = []
    for block in round_model(
        checkpoint,
        plan,
        text=words,
        device=device,
        finished=finished,
        progress=told(progress, "rounding blocks"),
    ):
        if block.index not in found:
            record = json.dumps([asdict(each) for each in block.outcomes]).encode()
            writer.add(block.index, block.layers, extra=block.thresholds, record=record)
        outcomes += block.outcomes
    result = replace(plan, outcomes=tuple(outcomes))
    writer.finish({"plan.json": result.as_bytes()}, progress=told(progress, "copying what is kept"))
    return result


def calibration_text(checkpoint: Checkpoint, plan: Plan, text: str | Path | Corpus | None) -> Text | None:
    """Returns the text that the plan was made with; None if it was made without."""
    asked = plan.calibration
    if asked is None:
        return None
    corpus = corpus_of(text, plan.languages)
    found = corpus.hashes["calibration"]
    other = [code for code in plan.languages if found[code] != asked.hashes.get(code)]
    if other:
        raise InputError(
            f"the plan was made with other text of {', '.join(other)} ({asked.corpus}) than {corpus.name} has; "
            "give the same text, or plan again"
        )
    return text_for(checkpoint, corpus, tokens=asked.tokens, sequence=asked.sequence, seed=asked.seed)


def _finished(writer: QuantizedWriter, index: int | None) -> RoundedBlock | None:
    found = writer.finished(index)
    if found is None:
        return None
    outcomes = [
        {**each, "alpha": tuple(each["alpha"]), "notes": tuple(each["notes"])} for each in json.loads(found.record)
    ]
    return RoundedBlock(index, found.layers, tuple(Outcome(**each) for each in outcomes), found.extra)
