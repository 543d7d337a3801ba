import pytest

from fairbits.errors import InputError
from fairbits.science.stats import correlation_power, sample_size_for_power


@pytest.mark.parametrize("method", ["exact", "fisher"])
def test_power_grows_with_rho_n_and_alpha(method):
    powers = [correlation_power(rho, 20, method=method) for rho in (0, 0.2, 0.4, 0.8, 0.99)]
    assert powers == sorted(powers)
    assert correlation_power(0.4, 40, method=method) > correlation_power(0.4, 20, method=method)
    assert correlation_power(0.4, 20, alpha=0.1, method=method) > correlation_power(0.4, 20, method=method)
    assert correlation_power(-0.4, 20, method=method) == pytest.approx(correlation_power(0.4, 20, method=method))


def test_power_without_effect_is_the_level():
    assert correlation_power(0.0, 14, alpha=0.03) == pytest.approx(0.03, abs=1e-9)
    assert correlation_power(0.0, 4, alpha=0.05) == pytest.approx(0.05, abs=1e-9)


def test_power_is_certain_for_many_units():
    assert correlation_power(0.5, 100_000) == pytest.approx(1.0)


@pytest.mark.parametrize("method", ["exact", "fisher"])
def test_sample_size_is_the_least_that_reaches_the_power(method):
    n = sample_size_for_power(-0.25, 0.9, alpha=0.01, method=method)
    assert correlation_power(-0.25, n, alpha=0.01, method=method) >= 0.9
    assert correlation_power(-0.25, n - 1, alpha=0.01, method=method) < 0.9


def test_bad_arguments_are_refused():
    for arguments in ((1.0, 14), (0.3, 3), (0.3, 4.5)):
        with pytest.raises(InputError):
            correlation_power(*arguments)
    for arguments in ((0.0, 0.8), (0.3, 1.0), (0.3, 0.01)):
        with pytest.raises(InputError):
            sample_size_for_power(*arguments)
    with pytest.raises(InputError, match="method"):
        correlation_power(0.3, 14, method="guess")
    with pytest.raises(InputError, match="alpha"):
        correlation_power(0.3, 14, alpha=0)
