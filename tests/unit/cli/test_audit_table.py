import io
import re
import shutil
from dataclasses import replace

import pytest
import torch
import transformers as t
from rich.cells import cell_len
from rich.console import Console, RenderableType

import fairbits as fb
from fairbits.auditing.record import Audit
from fairbits.cli.audit_details import audit_details
from fairbits.cli.audit_table import audit_table, shares_of
from fairbits.cli.table_parts import bar, formatter, unit_of, worst_first
from fairbits.core.errors import InputError
from fairbits.stats.intervals import Estimate
from fairbits.text.language_codes import language_from_code

HOSTILE = "[red]\x1b[2J:key:\u202e"
SHOWN = r"[red]\u001b[2J:key:\u202e"


def audited(place, *, blocks: int, languages: list[str], scheme: fb.Scheme) -> Audit:
    """Returns the audit of a random BLOOM that speaks the embedded model's tokens."""
    t.logging.disable_progress_bar()
    torch.manual_seed(0)
    config = t.BloomConfig(vocab_size=16384, hidden_size=16, n_layer=blocks, n_head=2, initializer_range=0.3)
    t.BloomForCausalLM(config).save_pretrained(place)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(fb.Checkpoint("embedded:tiny").directory / name, place)
    return fb.audit(place, languages=languages, scheme=scheme, tokens=64)


@pytest.fixture(scope="module")
def several(tmp_path_factory) -> Audit:
    place = tmp_path_factory.mktemp("several")
    languages = ["eng", "heb", "Chinese (Simplified)", "tha"]
    return audited(place, blocks=6, languages=languages, scheme=fb.Scheme(3, "channel"))


@pytest.fixture(scope="module")
def single(tmp_path_factory) -> Audit:
    place = tmp_path_factory.mktemp("single")
    return audited(place, blocks=2, languages=["heb"], scheme=fb.Scheme(8, 8))


def printed(part: RenderableType) -> str:
    console = Console(file=io.StringIO(), width=80, emoji=False)
    console.print(part)
    return console.file.getvalue()


@pytest.mark.parametrize("which", ["several", "single"])
@pytest.mark.parametrize("view", [audit_table, audit_details])
def test_it_fits_80_columns_and_leaves_no_number_out(view, which, request) -> None:
    lines = printed(view(request.getfixturevalue(which))).splitlines()
    assert max(cell_len(line) for line in lines) <= 80
    cut = [line for line in lines if "…" in line]
    assert all(line.split("…")[0].lstrip().startswith("Chinese (S") for line in cut)  # only a name gives way


def test_languages_are_sorted_by_predicted_damage(several) -> None:
    text = printed(audit_table(several))
    order = codes_in(text)
    damage = several.predicted.estimates()
    assert order == worst_first(damage) == sorted(damage, key=lambda code: damage[code].value, reverse=True)
    top = damage[order[0]]
    row = next(line for line in text.splitlines() if order[0] in line)
    value, low, high = map(float, re.search(r"([\d.]+) \((-?[\d.]+)–([\d.]+)\)", row).groups())
    scale = unit_of(top.value)[0]
    assert (value, low, high) == pytest.approx((top.value * scale, top.low * scale, top.high * scale), rel=0.02)
    assert "████████" in row
    assert row.split()[-3] == f"{several.bits_per_byte[order[0]].value:.2f}"


def test_carriers_are_the_largest_shares(several) -> None:
    text = printed(audit_table(several))
    mean = shares_of(several.predicted.by_block).mean(0)
    blocks = [int(block) for block in re.findall(r"^  block (\d+) +[\d.]+%", text, flags=re.MULTILINE)]
    assert blocks == sorted(range(6), key=lambda block: -mean[block])[:5]
    largest = several.predicted.linears[shares_of(several.predicted.by_linear).mean(0).argmax()]
    assert re.search(rf"^  {re.escape(largest)} +[\d.]+%", text, flags=re.MULTILINE)


def test_every_condition_and_every_box_has_its_number(several) -> None:
    text = " ".join(printed(audit_table(several)).split())
    view = several.founders
    for each in view.conditions:
        assert f"{each.value:.3g}" in re.search(rf" {each.name} (.*?) (holds|fails)", text)[1]
    assert sum(text.count(f"{mark} ") for mark in "✓✗") == len(view.checklist)
    for check in view.checklist:
        assert f"{'✓' if check.passed else '✗'} {check.text}: " in text
    assert f"Risk class {view.risk}." in text


def test_the_certificate_is_that_of_the_audit(several) -> None:
    text = " ".join(printed(audit_table(several)).split())
    found = several.certificate
    assert f"differ by {found.worst.actual:.3g} (" in text
    assert f"by more than {found.certified:.3g} (tightness {found.worst.actual / found.certified:.0%})" in text
    assert "not the loss" in text


def test_one_language_is_compared_with_none(single) -> None:
    text = printed(audit_table(single))
    assert "1 language," in text
    assert "Gap between worst and best" not in text
    assert "What is proven" not in text
    assert "unknown (too few blocks)" in " ".join(text.split())  # of two
    assert "C2 variance of R̂ ? > 0.001 unknown" in text
    assert "10⁻³ nats" in text  # 8 bits
    assert re.search(r"heb_Hebr .* –$", text, flags=re.MULTILINE)  # no English to compare with


def test_a_clear_gap_is_named_and_one_of_noise_is_not(several) -> None:
    text = " ".join(printed(audit_table(several)).split())
    clear = several.predicted.nats_per_token.gap().low > 0
    assert (" times that of " in text) == clear
    assert ("may be noise" in text) != clear


def with_foreign(audit: Audit, *codes: str) -> Audit:
    """Returns an audit whose text is foreign to the model in these languages, and in no others."""
    proxies = {
        code: replace(each, predictive_entropy=replace(each.loss, value=each.loss.value / (2 if code in codes else 1)))
        for code, each in audit.redundancy.items()
    }
    return replace(audit, redundancy=proxies)


def codes_in(text: str) -> list[str]:
    return re.findall(r"^\S.*? ([a-z]{3}_[A-Z][a-z]{3}) [\d.]+ \(", text, flags=re.MULTILINE)


def test_languages_that_cannot_be_trusted_come_last_and_leave_the_headline(several) -> None:
    damage = several.predicted.estimates()
    worst, second, *_ = worst_first(damage)
    audit = with_foreign(several, worst)
    text = printed(audit_table(audit))
    assert codes_in(text) == [*worst_first(damage)[1:], worst]
    assert [line.startswith("? ") for line in text.splitlines() if re.search(r" [a-z]{3}_[A-Z][a-z]{3} ", line)] == [
        *[False] * (len(damage) - 1),
        True,
    ]
    plain = " ".join(text.split())
    assert "? text not known to the model: do not trust (loss over 1.25 times" in plain
    lead = re.search(r"((The predicted damage of|Per token) .*?)Gap between worst and best", plain)[1]
    assert language_from_code(worst).name not in lead
    assert language_from_code(second).name in lead
    gap = several.predicted.restrict([code for code in damage if code != worst]).nats_per_token.gap()
    assert f"corrected for noise: {gap.value:.3g} nats/token" in plain
    assert max(cell_len(line) for line in text.splitlines()) <= 80
    everything = printed(audit_table(with_foreign(several)))
    assert "do not trust" not in everything
    assert codes_in(everything) == worst_first(damage)
    data = audit.as_data()["languages"]
    assert {code: each["trusted"] for code, each in data.items()} == {code: code != worst for code in damage}


def test_without_a_language_to_trust_nothing_is_ranked(several) -> None:
    text = " ".join(printed(audit_table(with_foreign(several, *several.languages))).split())
    assert "The model knows the text of none of these languages: the prediction does not rank them." in text
    assert "Gap between worst and best" not in text
    assert "times that of" not in text
    one = " ".join(printed(audit_table(with_foreign(several, *several.languages[1:]))).split())
    assert "Gap between worst and best" not in one


def test_text_of_the_model_cannot_steer_the_terminal(several) -> None:
    subject = replace(several.subject, target=HOSTILE, corpus=HOSTILE, class_name=HOSTILE, notes=(HOSTILE,))
    linears = (HOSTILE, *several.predicted.linears[1:])
    sums = several.predicted.sums.copy()
    sums[:, 0] += sums.sum()  # so that it carries most
    damage = several.damage | {"kronecker": replace(several.predicted, linears=linears, sums=sums)}
    text = printed(audit_table(replace(several, subject=subject, damage=damage)))
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)
    assert text.count(SHOWN) == 5


def test_details_hold_every_form_and_every_block(several) -> None:
    text = printed(audit_details(several))
    assert f"language {' '.join(several.damage)}" in " ".join(text.split())
    assert f"the form {several.predicted.form}." in text
    blocks = text[text.index("\nBlocks\n") :]
    assert re.findall(r"^  (\d) ", blocks, flags=re.MULTILINE) == list("012345")
    for each in several.founders.conditions:
        assert " ".join(each.remark.split()) in " ".join(text.split())


def test_only_audits_are_shown() -> None:
    for view in (audit_table, audit_details):
        with pytest.raises(InputError, match="audit"):
            view({})


def test_numbers_are_written_alike_and_short() -> None:
    assert bar(0.0, 1.0).plain.strip() == bar(1.0, 0.0).plain.strip() == ""
    assert bar(1.0, 16.0).plain.strip() == "▌"
    assert unit_of(0.5) == (1.0, "")
    assert unit_of(2e-6) == (1e6, "10⁻⁶ ")
    assert unit_of(0.0) == (1.0, "")
    assert [formatter(top)(top) for top in (0.0, 0.0765, 3.25, 123.4, 123456.0)] == [
        *("0.000", "0.0765", "3.250", "123.4", "123456"),
    ]
    equal = {code: Estimate(1.0, 1.0, 1.0, 5) for code in ("b", "a")}
    assert worst_first(equal) == ["b", "a"]
