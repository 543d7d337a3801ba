"""An audit shows tables of its results, and gives a DataFrame and figures of the same numbers."""

import io
import re
import shutil
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import transformers as t
from rich.cells import cell_len
from rich.console import Console

import fairbits as fb
from fairbits.api.audit import audit
from fairbits.auditing.record import Audit, _shares, audit_tables, detail_tables
from fairbits.core.errors import InputError
from fairbits.core.table import Table, render_tables, short_unit
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.scales.scheme import Scheme
from fairbits.stats.frame import worst_first
from fairbits.text.corpus import Corpus
from fairbits.text.language_codes import language_from_code

CORPUS = Corpus(
    "weather",
    {
        "heb": [f"ביום {i} באה הרוח מצפון והביאה גשם." for i in range(6)],
        "eng": [f"On day {i} the wind came from the north and brought {i} hours of rain." for i in range(6)],
    },
    {},
    parallel=True,
)


@pytest.fixture(scope="module")
def record(reading_model: Callable[[str], Checkpoint]) -> Audit:
    return audit(reading_model("llama"), text=CORPUS, scheme=Scheme(3, 16), tokens=100)


def test_table_and_pandas_are_worst_first(record: Audit) -> None:
    damage = record.predicted.bits_per_byte.by_language()
    order = sorted(damage, key=lambda code: -damage[code].value)
    table = record.to_pandas()
    assert list(table.index) == order
    assert table["predicted_bits_per_byte"].tolist() == [damage[code].value for code in order]
    assert table["trusted"].tolist() == [code in record.trusted for code in order]
    text = repr(record)
    assert "W3 group 16" in text.splitlines()[0]
    assert re.findall(r"([a-z]{3}_[A-Z][a-z]{3})  +\d", text) == record.order
    assert ("? text not known" in text) == (len(record.trusted) < 2)
    assert "<table" in record._repr_html_()


def test_figures_of_languages_and_of_blocks(record: Audit) -> None:
    languages, blocks = (record.plot(what).to_dict()["data"][0] for what in ("languages", "blocks"))
    assert languages["text"] == blocks["y"]
    order = [record.predicted.languages.index(code) for code in blocks["y"]]
    assert blocks["z"] == record.predicted.by_block[order].tolist()
    with pytest.raises(InputError, match="what is 'layers'"):
        record.plot("layers")


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


def printed(tables: list[Table]) -> str:
    console = Console(file=io.StringIO(), width=80, emoji=False)
    console.print(render_tables(tables))
    return console.file.getvalue()


@pytest.mark.parametrize("which", ["several", "single"])
@pytest.mark.parametrize("view", [audit_tables, detail_tables])
def test_it_fits_80_columns_and_leaves_no_number_out(view, which, request) -> None:
    lines = printed(view(request.getfixturevalue(which))).splitlines()
    assert max(cell_len(line) for line in lines) <= 80
    cut = [line for line in lines if "…" in line]
    assert all(line.split("…")[0].lstrip().startswith("Chinese (S") for line in cut)  # only a name gives way


def test_languages_are_sorted_by_predicted_damage(several) -> None:
    text = printed(audit_tables(several))
    order = codes_in(text)
    damage = several.predicted.estimates()
    assert order == worst_first(damage) == sorted(damage, key=lambda code: damage[code].value, reverse=True)
    top = damage[order[0]]
    row = next(line for line in text.splitlines() if order[0] in line)
    value, low, high = map(float, re.search(r"([\d.]+) \((-?[\d.]+)–([\d.]+)\)", row).groups())
    scale = short_unit(top.value)[0]
    assert (value, low, high) == pytest.approx((top.value * scale, top.low * scale, top.high * scale), rel=0.02)
    assert "████████" in row
    assert row.split()[-3] == f"{several.bits_per_byte[order[0]].value:.2f}"


def test_carriers_are_the_largest_shares(several) -> None:
    text = printed(audit_tables(several))
    mean = _shares(several.predicted.by_block).mean(0)
    blocks = [int(block) for block in re.findall(r"^  block (\d+) +[\d.]+%", text, flags=re.MULTILINE)]
    assert blocks == sorted(range(6), key=lambda block: -mean[block])[:5]
    largest = several.predicted.linears[_shares(several.predicted.by_linear).mean(0).argmax()]
    assert re.search(rf"^  {re.escape(largest)} +[\d.]+%", text, flags=re.MULTILINE)


def test_every_condition_and_every_box_has_its_number(several) -> None:
    text = " ".join(printed(audit_tables(several)).split())
    view = several.research_notes
    for condition in view.conditions:
        assert f"{condition.value:.3g}" in re.search(rf" {condition.name} (.*?) (holds|fails)", text)[1]
    assert sum(text.count(f"{mark} ") for mark in "✓✗") == len(view.checklist)
    for check in view.checklist:
        assert f"{'✓' if check.passed else '✗'} {check.text}: " in text
    assert f"Risk class {view.risk}." in text


def test_the_certificate_is_that_of_the_audit(several) -> None:
    text = " ".join(printed(audit_tables(several)).split())
    certificate = several.certificate
    assert f"differ by {certificate.worst.actual:.3g} (" in text
    assert (
        f"by more than {certificate.certified:.3g} (tightness {certificate.worst.actual / certificate.certified:.0%})"
        in text
    )
    assert "not the loss" in text


def test_one_language_is_compared_with_none(single) -> None:
    text = printed(audit_tables(single))
    assert "1 language," in text
    assert "Gap between worst and best" not in text
    assert "What is proven" not in text
    assert "unknown (too few blocks)" in " ".join(text.split())  # of two
    assert "C2 variance of R̂ ? > 0.001 unknown" in text
    assert "10⁻³ nats" in text  # 8 bits
    assert re.search(r"heb_Hebr .* –$", text, flags=re.MULTILINE)  # no English to compare with


def test_a_clear_gap_is_named_and_one_of_noise_is_not(several) -> None:
    text = " ".join(printed(audit_tables(several)).split())
    clear = several.predicted.nats_per_token.gap().low > 0
    assert (" times the predicted damage of " in text) == clear
    assert ("may be noise" in text) != clear


def with_foreign(audit: Audit, *codes: str) -> Audit:
    """Returns an audit whose text is foreign to the model in these languages, and in no others."""
    proxies = {
        code: replace(
            proxy, predictive_entropy=replace(proxy.loss, value=proxy.loss.value / (2 if code in codes else 1))
        )
        for code, proxy in audit.redundancy.items()
    }
    return replace(audit, redundancy=proxies)


def codes_in(text: str) -> list[str]:
    return re.findall(r"^\S.*? ([a-z]{3}_[A-Z][a-z]{3}) [\d.]+ \(", text, flags=re.MULTILINE)


def test_languages_that_cannot_be_trusted_come_last_and_leave_the_headline(several) -> None:
    damage = several.predicted.estimates()
    worst, second, *_ = worst_first(damage)
    audit = with_foreign(several, worst)
    text = printed(audit_tables(audit))
    assert codes_in(text) == [*worst_first(damage)[1:], worst]
    assert [line.startswith("? ") for line in text.splitlines() if re.search(r" [a-z]{3}_[A-Z][a-z]{3} ", line)] == [
        *[False] * (len(damage) - 1),
        True,
    ]
    plain = " ".join(text.split())
    assert "? text not known to the model: do not trust (loss over 1.25 times" in plain
    lead = re.search(r"English = 1\. (.*?)Gap between worst and best", plain)[1]
    assert language_from_code(worst).name not in lead
    assert language_from_code(second).name in lead
    gap = several.predicted.restrict([code for code in damage if code != worst]).nats_per_token.gap()
    assert f"corrected for noise: {gap.value:.3g} nats/token" in plain
    assert max(cell_len(line) for line in text.splitlines()) <= 80
    everything = printed(audit_tables(with_foreign(several)))
    assert "do not trust" not in everything
    assert codes_in(everything) == worst_first(damage)
    data = audit.as_data()["languages"]
    assert {code: entry["trusted"] for code, entry in data.items()} == {code: code != worst for code in damage}


def test_without_a_language_to_trust_nothing_is_ranked(several) -> None:
    text = " ".join(printed(audit_tables(with_foreign(several, *several.languages))).split())
    assert "The model knows the text of none of these languages: the prediction does not rank them." in text
    assert "Gap between worst and best" not in text
    assert "times the predicted damage" not in text
    one = " ".join(printed(audit_tables(with_foreign(several, *several.languages[1:]))).split())
    assert "Gap between worst and best" not in one


def test_text_of_the_model_cannot_steer_the_terminal(several) -> None:
    model = replace(several.model, target=HOSTILE, corpus=HOSTILE, class_name=HOSTILE, notes=(HOSTILE,))
    linears = (HOSTILE, *several.predicted.linears[1:])
    sums = several.predicted.sums.copy()
    sums[:, 0] += sums.sum()  # so that it carries most
    damage = several.damage | {"kronecker": replace(several.predicted, linears=linears, sums=sums)}
    text = printed(audit_tables(replace(several, model=model, damage=damage)))
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)
    assert text.count(SHOWN) == 5


def test_details_hold_every_form_and_every_block(several) -> None:
    text = printed(detail_tables(several))
    assert f"language {' '.join(several.damage)}" in " ".join(text.split())
    assert f"the form {several.predicted.form}." in text
    blocks = text[text.index("\nBlocks\n") :]
    assert re.findall(r"^  (\d) ", blocks, flags=re.MULTILINE) == list("012345")
    for condition in several.research_notes.conditions:
        assert " ".join(condition.remark.split()) in " ".join(text.split())
