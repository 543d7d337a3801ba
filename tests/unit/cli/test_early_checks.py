"""Wrong arguments are refused before torch is imported, which takes seconds."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fairbits.cli.early_checks import check_model
from fairbits.core.errors import InputError
from fairbits.core.files import check_directory
from fairbits.models.io.file_names import check_packages
from fairbits.quantization.policies.variants import with_options

RECORDS = Path(__file__).parents[2] / "data" / "records"
TINY = "embedded:tiny"
WRONG = {  # what is typed, and a part of the answer
    "evaluate ./nope --reference embedded:tiny": "there is no ./nope",
    "evaluate embedded:tiny --reference ./nope": "there is no ./nope",
    "evaluate embedded:tiny --reference embedded:tiny --text missing": "there is no file or directory missing",
    "evaluate embedded:tiny --reference embedded:tiny --groups x --repeat x": "not a signature",
    "evaluate ./packed --reference embedded:tiny": "pip install hqq",
    "evaluate embedded:tiny --reference ./packed": "If the two are swapped",
    "run ./nope": "there is no ./nope",
    "run embedded:tiny --out file": "is not a directory",
    "run embedded:tiny --out full": "has no run.json",
    "run embedded:tiny --tokens 0": "tokens is 0",
    "run embedded:tiny --sequence 1": "sequence is 1",
    "run embedded:tiny --policy gptq:mux=equal": "has 'mux=equal' after gptq",
    "run embedded:tiny --baselines rtn,gpqt": "policy is 'gpqt'",
    "run embedded:tiny --languages xx-unknown": "'xx-unknown' is unknown",
    "quantize embedded:tiny --out q --policy gpqt": "policy is 'gpqt'",
    "quantize embedded:tiny --out q --bits 9": "bits is 9",
    "quantize embedded:tiny --out full": "is not empty",
    "quantize embedded:tiny --out file/below": "not a directory where you may write",
    "quantize embedded:tiny --out q --plan nope.json": "nope.json cannot be read",
    "quantize embedded:tiny --out q --plan scores.json": "it must be fairbits.plan",
    "plan embedded:tiny --policy mixed --tau x": "valid number",
    "plan embedded:tiny --policy mixed --audit nope.json": "nope.json cannot be read",
    "plan embedded:tiny --policy gptq:mix=english --mix equal": "give one of the two",
    "plan embedded:tiny --policy allocate --avg-bits 40": "avg",
    "plan embedded:tiny --out nowhere/plan.json": "is not a directory",
    "audit embedded:tiny --group 7x": "--group is '7x'",
    "audit embedded:tiny --device cdua": "device is 'cdua'",
    "audit embedded:tiny --text full --languages fra": "holds no text in fra_Latn",
    "sweep embedded:tiny --measure foo": "measure is 'foo'",
    "sweep embedded:tiny --bits 1..4": "bits is 1",
    "compare embedded:tiny --policies rtn --baseline mse": "baseline is 'mse'",
    "compare embedded:tiny --policies rtn --unit nats": "unit is 'nats'",
    "overlay embedded:tiny --base ./nope": "there is no ./nope",
    "generate ./nope text": "there is no ./nope",
    "imatrix embedded:tiny --out nowhere/i.gguf": "is not a directory",
    "mix embedded:tiny --out calib.jsonl --text missing": "there is no file or directory missing",
    "inspect ./nope": "there is no ./nope",
    "laaciq embedded:tiny --seed -1": "seed is -1",
    "tasks --languages eng --out full": "is not empty",
}
RUNNER = """
import contextlib, io, json, sys
from fairbits.cli import main
wrong = []
for line, answer in json.loads(sys.argv.pop()).items():
    sys.argv[1:] = line.split()
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code
    loaded = [name for name in ("torch", "transformers", "numba") if name in sys.modules]
    if (code, loaded) != (2, []) or answer not in errors.getvalue():
        wrong.append(f"{line}: exit code {code}, loaded {loaded}, said {errors.getvalue()}")
sys.exit("\\n".join(wrong) or None)
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "eng.txt").write_text("text\n")
    (tmp_path / "file").write_text("")
    (tmp_path / "scores.json").write_bytes((RECORDS / "scores.json").read_bytes())
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "model.safetensors").write_bytes(b"")
    config = {"model_type": "llama", "quantization_config": {"quant_method": "hqq"}}
    (tmp_path / "packed" / "config.json").write_text(json.dumps(config))
    return tmp_path


def test_wrong_arguments_are_refused_before_torch_is_imported(place: Path) -> None:
    command = [sys.executable, "-c", RUNNER, json.dumps(WRONG)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=place)
    assert done.returncode == 0, done.stderr


def test_a_missing_package_is_named_with_its_command(place: Path) -> None:
    check_packages("model", {"quantization_config": {"quant_method": "compressed-tensors"}})  # which is installed
    with pytest.raises(InputError, match=r"was quantized by hqq .* pip install hqq"):
        check_model(str(place / "packed"), packed=True)
    check_model(str(place / "packed"))  # its weights are not read


def test_a_directory_that_may_be_written(place: Path) -> None:
    assert check_directory(place / "new" / "below") == place / "new" / "below"
    check_directory(place / "full")
    check_directory(place / "full", holding=("eng.txt",))
    with pytest.raises(InputError, match=r"is not empty and has no run\.json"):
        check_directory(place / "full", holding=("run.json",))


def test_options_after_colons_may_repeat_a_flag_but_not_contradict_it() -> None:
    assert with_options("gptq:mix=english", {"mix": "english", "bits": 3}) == ("gptq", {"mix": "english", "bits": 3})
    with pytest.raises(InputError, match="policy is 'gptq:mix=english', and mix is equal"):
        with_options("gptq:mix=english", {"mix": "equal"})
