"""Recipes for other quantizers: those of the benchmark, with the versions that they were tested with."""

import argparse
import json
import re
from pathlib import Path

import pytest

import environments
import recipes
from fairbits import Checkpoint
from fairbits.text.included_texts import help_text

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/guides/other-quantizers.md").read_text(encoding="utf-8")
SCRIPTS = sorted((ROOT / "examples/recipes").glob("*.py"))


def test_the_benchmark_runs_every_recipe() -> None:
    assert [script.stem.removeprefix("with_") for script in SCRIPTS] == sorted(recipes.NAMES)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_recipe_names_the_versions_of_its_environment(script: Path) -> None:
    source = script.read_text(encoding="utf-8")
    compile(source, script, "exec")
    (versions,) = re.findall(r"^Tested with (.*)\.$", source, re.MULTILINE)
    tested = dict(item.split() for item in re.split(", | and ", versions))
    assert tested == dict(pin.split("==") for pin in environments.QUANTIZERS[script.stem.removeprefix("with_")])
    assert f"`examples/recipes/{script.name}`" in PAGE
    assert all(f"{name} {version}" in PAGE for name, version in tested.items())


def test_both_mixes_have_the_same_samples_and_tokens(tmp_path: Path) -> None:
    options = argparse.Namespace(out=tmp_path, tokens=512, sequence=64, seed=0)
    files = recipes.samples(help_text(["eng", "fin", "tur", "jpn"]), Checkpoint("embedded:tiny"), options)
    read = {name: [json.loads(line) for line in file.read_text().splitlines()] for name, file in files.items()}
    assert [len(read[name]) for name in recipes.MIXES] == [8, 8]
    assert {sample["lang"] for sample in read["english"]} == {"eng_Latn"}
    assert len({sample["lang"] for sample in read["equal"]}) == 4
    assert {sample["tokens"] for samples in read.values() for sample in samples} == {64}


def test_what_fairbits_cannot_read_is_measured_unpacked(tmp_path: Path) -> None:
    packed = tmp_path / "gptqmodel-equal"
    packed.mkdir()
    assert recipes.readable(packed) == packed
    plain = tmp_path / "gptqmodel-equal-plain"
    plain.mkdir()
    assert recipes.readable(packed) == plain
