"""The plans of a run: for the model that is written, and for baselines and widths that are only measured."""

import gc

from fairbits.api.make_plan import plan as make_plan
from fairbits.api.run.run_settings import Job
from fairbits.core.errors import InputError
from fairbits.core.progress import Progress
from fairbits.quantization.evidence import Evidence
from fairbits.quantization.plan import Calibration, Plan
from fairbits.quantization.policies import decide
from fairbits.quantization.policies.variants import Variant
from fairbits.text.corpus import Corpus


def plan_to_write(job: Job, *, progress: Progress | None = None) -> Plan:
    """Returns the plan of the model that is written."""
    # always with text: policies that read none then report the error of every language in every layer
    return _plan(job, job.policy, bits=job.bits, text=job.corpus, progress=progress)


def plan_to_measure(job: Job, variant: Variant, *, bits: int, progress: Progress | None = None) -> Plan:
    """Returns the plan of a baseline, or of the policy at another width."""
    return _plan(job, variant, bits=bits, text=job.corpus if variant.reads_text else None, progress=progress)


def digest_without_search(job: Job, variant: Variant, *, bits: int) -> str | None:
    """Returns the digest of `plan_to_measure`; None if the policy needs weights or text to decide."""
    options = {"group": job.group, "embeddings": job.embeddings, **variant.at(bits)}
    corpus, read = job.corpus, variant.reads_text
    evidence = Evidence(job.checkpoint, tuple(corpus.calibration) if read else ())
    text = Calibration.of(corpus, job.calibration)
    try:
        return decide(variant.policy, evidence, calibration=text if read else None, **options).digest
    except InputError:  # it needs evidence that is not there; all else was checked when the job was made
        return None


def _plan(job: Job, variant: Variant, *, bits: int, text: Corpus | None, progress: Progress | None) -> Plan:
    found = make_plan(
        job.checkpoint,
        policy=variant.policy,
        text=text,
        device=job.device,
        progress=progress,
        **{"group": job.group, "embeddings": job.embeddings, **job.calibration.settings, **variant.at(bits)},
    )
    gc.collect()  # evidence refers to itself, and to the model if it was loaded
    return found
