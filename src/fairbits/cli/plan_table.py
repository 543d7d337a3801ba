"""A plan for a terminal of 80 columns: the decisions by block, the size, and the results once it is carried out."""

import re
from collections.abc import Iterator, Sequence

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

from fairbits.cli.table_parts import columns, notes_section, section
from fairbits.core.errors import count_of, printable
from fairbits.core.units import megabytes
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.io.compressed_tensors import layer_bytes
from fairbits.models.scales.scheme import Scheme
from fairbits.quantization.plan import LayerPlan, LayerResult, Plan, schemes_by_name
from fairbits.text.language_codes import language_from_code

NAMED = 6
"""Languages whose weights are shown."""


def plan_table(plan: Plan, checkpoint: Checkpoint) -> Group:
    """Returns the decisions block by block and, once the plan is carried out, the results."""
    return Group(
        *_heading(plan, checkpoint),
        "",
        _decisions(plan, checkpoint),
        *section("Results", [_outcomes(plan)] if plan.results else []),
        *section("Learning", _learned(plan)),
        *notes_section(_notes(plan)),
    )


def bits_per_weight(plan: Plan, checkpoint: Checkpoint) -> float:
    """Returns the bits that all tensors of the quantized model take, per weight of the source."""
    weights = checkpoint.architecture.weights
    return 8 * plan.size_bytes / sum(int(np.prod(each.shape)) * (each.stacked or 1) for each in weights.values())


def _heading(plan: Plan, checkpoint: Checkpoint) -> Iterator[Text]:
    source = sum(info.nbytes for info in checkpoint.tensors.values())
    yield Text.assemble((printable(plan.model), "bold cyan"), "  ", (plan.policy, "bold"))
    yield Text(
        f"{megabytes(plan.size_bytes)} in total, {plan.size_bytes / source:.1%} of {megabytes(source)}; "
        f"{bits_per_weight(plan, checkpoint):.2f} bits per weight, including scales and tensors that are kept"
    )
    if plan.calibration is not None:
        text = plan.calibration
        amount = f"{count_of(len(plan.languages), 'language')}, {text.tokens:,} tokens each, seed {text.seed}"
        yield Text(printable(f"text of {text.corpus}: {amount}"), style="dim")
    if len(set(plan.languages.values())) > 1:
        by_weight = sorted(plan.languages.items(), key=lambda item: -item[1])
        named = ", ".join(f"{language_from_code(code).name} {share:.1%}" for code, share in by_weight[:NAMED])
        more = f", and {len(by_weight) - NAMED} more" if len(by_weight) > NAMED else ""
        yield Text(f"weights of languages: {named}{more}", style="dim")


def _decisions(plan: Plan, checkpoint: Checkpoint) -> Table:
    """Returns one row per range of blocks that are treated alike, and one per role outside the blocks."""
    table = columns("block", "bits", "group", "clip", "languages", "rounding", "bytes", left=(3, 4, 5))
    for label, members in _runs(plan):
        scheme = next((each.scheme for each in members if each.scheme is not None), None)
        how = ("kept", *["–"] * 4) if scheme is None else _cells(scheme)
        table.add_row(Text(printable(label)), *how, f"{_bytes(members, checkpoint):,}")
    return table


def _cells(scheme: Scheme) -> tuple[str, ...]:
    """Returns bits, group, clip, objective and rounding."""
    return str(scheme.bits), str(scheme.group), scheme.clip, scheme.objective or "–", scheme.rounding


def _runs(plan: Plan) -> Iterator[tuple[str, list[LayerPlan]]]:
    """Yields each range of blocks that are treated alike, with their layers; tensors outside blocks by role."""
    blocks: dict[int | str, list[LayerPlan]] = {}
    for each in plan.layers:
        blocks.setdefault(each.role if each.block is None else each.block, []).append(each)
    run: list[int] = []
    for key, members in blocks.items():
        if isinstance(key, int) and run and _look(blocks[run[-1]]) == _look(members):
            run.append(key)
            continue
        yield from _joined(run, blocks)
        run = [key] if isinstance(key, int) else []
        if isinstance(key, str):
            yield key, members
    yield from _joined(run, blocks)


def _joined(run: Sequence[int], blocks: dict[int | str, list[LayerPlan]]) -> Iterator[tuple[str, list[LayerPlan]]]:
    if run:
        label = str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}"
        yield label, [each for key in run for each in blocks[key]]


def _look(members: Sequence[LayerPlan]) -> set[object]:
    """Returns how the layers of a block are treated; equal for blocks that are treated alike."""
    return {_cells(each.scheme) for each in members if each.scheme is not None}


def _bytes(members: Sequence[LayerPlan], checkpoint: Checkpoint) -> int:
    weights, schemes, dtype = checkpoint.architecture.weights, schemes_by_name(members), checkpoint.scale_dtype
    packed = (layer_bytes(weights[name], scheme, dtype=dtype) for name, scheme in schemes.items())
    return sum(packed) + sum(checkpoint.tensors[each.name].nbytes for each in members if each.name not in schemes)


def _outcomes(plan: Plan) -> Table:
    """Returns one row per block: median α, weight error, and the language with the largest error of outputs."""
    block_of = {each.name: each.block for each in plan.layers}
    by_block: dict[int | None, list[LayerResult]] = {}
    for each in plan.results:
        by_block.setdefault(block_of[each.name], []).append(each)
    table = columns("block", "α (median)", "‖ΔW‖²/‖W‖²", "worst language", "its error", left=(3,))
    for block, found in by_block.items():
        languages = found[0].error if all(each.error for each in found) else {}
        mean = {code: float(np.mean([each.error[code] for each in found])) for code in languages}
        worst = max(mean, key=lambda code: mean[code]) if mean else None
        table.add_row(
            "outside" if block is None else str(block),
            f"{np.median([each.alpha[1] for each in found]):.4g}",
            f"{np.mean([each.weight_error for each in found]):.3g}",
            "–" if worst is None else language_from_code(worst).name,
            "–" if worst is None else f"{mean[worst]:.3g}",
        )
    return table


def _learned(plan: Plan) -> Iterator[Text]:
    """Yields the result of learning on held-out text."""
    found = plan.learned
    if found is None:
        return
    yield Text("KL from the full-precision model on held-out calibration text, nats per token")
    for name, damage in (("before", found.start), ("after", found.damage)):
        worst = max(damage, key=lambda code: damage[code])
        mean = float(np.mean(list(damage.values())))
        yield Text(f"  {name:<6}  worst {damage[worst]:.4f} {language_from_code(worst).name}, mean {mean:.4f}")
    if not found.step:
        yield Text("no step improved the codes without making a language worse: they are unchanged")


def _notes(plan: Plan) -> Iterator[str]:
    """Yields the notes of the plan, then those of its layers; of notes that differ only in numbers, the first."""
    yield from plan.notes
    alike: dict[str, list[str]] = {}
    for each in plan.results:
        for note in each.notes:
            alike.setdefault(re.sub(r"[\d.]+", "#", note), []).append(f"{each.name}: {note}")
    for first, *others in alike.values():
        yield first + (f" (and {count_of(len(others), 'similar note')})" if others else "")
