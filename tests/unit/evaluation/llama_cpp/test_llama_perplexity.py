"""What llama-perplexity prints, as numbers of every chunk."""

import numpy as np
import pytest

from fairbits.core.errors import InputError
from fairbits.evaluation.llama_cpp.llama_perplexity import check_engine, chunk_precision, parse_output

HEAD = "chunk             PPL               ln(PPL(Q)/PPL(base))          KL Divergence              Δp RMS            Same top p"  # noqa: E501
ROWS = (
    "   1     110.3641 ±   88.1163       0.10000 ±    0.02417       0.02000 ±    0.00211      4.411 ±  0.912 %    80.000 ±  4.444 %",  # noqa: E501
    "   2      97.2210 ±   55.7210       0.07500 ±    0.01804       0.03000 ±    0.00304      5.016 ±  0.812 %    85.000 ±  3.111 %",  # noqa: E501
    "   3    10097.2210 ±   55.7210      -0.01000 ±    0.01804       0.02900 ±    0.00304      5.016 ±  0.812 %    90.000 ±  3.111 %",  # noqa: E501
)
END = """
====== Perplexity statistics ======
Mean PPL(Q)                   :  97.221000 ±  55.721000
Mean PPL(base)                :  98.198061 ±  56.100000
Cor(ln(PPL(Q)), ln(PPL(base))):  99.42%
Mean ln(PPL(Q)/PPL(base))     :  -0.010001 ±   0.018040

====== KL divergence statistics ======
Mean    KLD:   0.029004 ±   0.003040
Maximum KLD:   1.204500
99.9%   KLD:   1.100000
99.0%   KLD:   0.900000
95.0%   KLD:   0.100000
Median  KLD:   0.010000
 1.0%   KLD:  -0.000011
Same top p: 90.000 ± 1.118 %
""".splitlines()
"""Lines of llama.cpp, with numbers that are easy to follow."""


def test_shares_of_chunks_are_differences_of_the_printed_means() -> None:
    sums = parse_output(["", HEAD, *ROWS, *END], chunks=3, predicted=40)
    np.testing.assert_allclose(sums.added, [40 * 0.1, 80 * 0.075 - 4, 120 * -0.010001 - 6])
    np.testing.assert_allclose(sums.kl, [0.8, 1.6, 120 * 0.029004 - 2.4])
    assert sums.flips.tolist() == [8, 4, 0]
    assert sums.percentiles == {"kl_p50": 0.01, "kl_p95": 0.1, "kl_p99": 0.9, "kl_p99_9": 1.1}
    assert sums.base == pytest.approx(np.log(98.198061))


def test_no_share_of_a_divergence_is_negative() -> None:
    falling = [ROWS[0], ROWS[1].replace("0.03000", "0.00999"), ROWS[2]]
    sums = parse_output([HEAD, *falling, *END], chunks=3, predicted=40)
    np.testing.assert_allclose(sums.kl, [0.8, 0.0, 120 * 0.029004 - 0.8], atol=1e-12)


def test_the_rounding_of_a_chunk_is_at_most_what_is_stated() -> None:
    rng = np.random.default_rng(0)
    exact = rng.exponential(0.01, 30)
    means = np.cumsum(exact) / np.arange(1, 31)
    rows = [
        ROWS[0].replace("   1 ", f"{i:4d} ", 1).replace("0.02000", f"{mean:.5f}") for i, mean in enumerate(means, 1)
    ]
    end = [line.replace("0.029004", f"{means[-1]:.6f}") for line in END]
    wrong = np.abs(parse_output([HEAD, *rows, *end], chunks=30, predicted=40).kl / 40 - exact)
    assert 0 < wrong.max() <= chunk_precision(30)


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([], "it printed no line 'Mean PPL"),
        ([*ROWS[:2], *END], "it printed 2 chunks; it must print all 3 chunks"),
        ([*ROWS[1:], ROWS[0], *END], "it must print all 3 chunks"),
        ([*ROWS, *END[:6]], "it printed no line 'Mean    KLD'"),
        ([ROWS[0].replace("0.02000", "    nan"), *ROWS[1:], *END], "it printed NaN or infinity"),
        ([*ROWS, *[line.replace("0.029004", "     inf") for line in END]], "it printed NaN or infinity"),
        ([*ROWS, *[line.replace("98.198061", "    -nan") for line in END]], "it printed NaN or infinity"),
    ],
)
def test_lines_that_are_missing_or_no_numbers_are_refused(lines: list[str], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        parse_output([HEAD, *lines], chunks=3, predicted=40)


def test_arguments_that_do_not_go_together_are_refused(tmp_path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    with pytest.raises(InputError, match="engine is 'vllm'"):
        check_engine("vllm", file, None)
    with pytest.raises(InputError, match=r"add --engine llama\.cpp"):
        check_engine("fairbits", file, "llama-perplexity")
    with pytest.raises(InputError, match=r"needs a \.gguf file that exists"):
        check_engine("llama.cpp", tmp_path / "other.gguf", "/bin/sh")
    with pytest.raises(InputError, match="--repeat is not available"):
        check_engine("llama.cpp", file, "/bin/sh", repeat="x")
    with pytest.raises(InputError, match=f"no llama-perplexity at {file}, or it may not be executed"):
        check_engine("llama.cpp", file, file)
    check_engine("llama.cpp", file, "/bin/sh")
