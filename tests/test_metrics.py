"""Statistics against numpy, scipy and simulation."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from pivotrl.metrics import beta_posterior, clustered_mean, format_estimate, group_statistics, t_quantile_975


@given(st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=20))
def test_group_statistics_are_those_of_numpy(rewards):
    result = group_statistics(rewards)
    scored = np.array([round(r, 6) for r in rewards if r is not None])
    assert result.n == len(scored)
    if not len(scored):
        assert result.mean is None
        assert result.variance is None
        return
    assert result.mean == pytest.approx(scored.mean(), abs=1e-12)
    assert result.variance == pytest.approx(scored.var(), abs=1e-12)
    assert (result.variance == 0) == (len(set(scored)) == 1)


def test_population_variance_of_one_in_sixteen():
    """The value that NVIDIA's released data hold for a mean of 1/16."""
    assert group_statistics([1.0] + [0.0] * 15).variance == 0.05859375


def test_posterior_starts_from_jeffreys():
    posterior = beta_posterior([1.0, 0.0, None, 0.0])
    assert (posterior.a, posterior.b) == (1.5, 2.5)


@pytest.mark.parametrize("degrees", [1, 2, 3, 5, 10, 30, 200])
def test_t_quantiles_are_those_of_scipy(degrees):
    assert t_quantile_975(degrees) == pytest.approx(scipy.stats.t.ppf(0.975, degrees), rel=1e-4)


def test_singleton_clusters_give_the_ordinary_interval():
    values = np.random.default_rng(0).normal(size=40)
    estimate = clustered_mean(values.tolist(), list(range(40)))
    low, high = scipy.stats.t.interval(0.95, 39, values.mean(), scipy.stats.sem(values))
    assert estimate.mean == pytest.approx(values.mean())
    assert (estimate.low, estimate.high) == (pytest.approx(low, rel=1e-4), pytest.approx(high, rel=1e-4))


def test_duplicating_every_value_within_its_cluster_adds_no_precision():
    values = np.random.default_rng(1).normal(size=25).tolist()
    once = clustered_mean(values, list(range(25)))
    thrice = clustered_mean([v for v in values for _ in range(3)], [c for c in range(25) for _ in range(3)])
    assert (once.low, once.high) == (pytest.approx(thrice.low), pytest.approx(thrice.high))


def test_interval_covers_at_its_nominal_rate_under_correlation():
    """1,000 data sets of 20 correlated clusters: about 95% of intervals hold the truth, 0."""
    rng = np.random.default_rng(2)
    covered = 0
    for _ in range(1000):
        effects = rng.normal(size=20)
        clusters = np.repeat(np.arange(20), 6)
        values = effects[clusters] + 0.3 * rng.normal(size=120)
        estimate = clustered_mean(values.tolist(), clusters.tolist())
        covered += estimate.low <= 0 <= estimate.high
    assert 0.93 <= covered / 1000 <= 0.97


@pytest.mark.parametrize(("value", "low", "high"), [(0.0, 0.0, 0.0975), (1.0, 0.9025, 1.0)])
def test_equal_values_have_the_exact_interval(value, low, high):
    """Clopper and Pearson's, as scipy has it, here 36 of 36 and 0 of 36."""
    estimate = clustered_mean([value] * 72, [*range(36)] * 2, (0.0, 1.0))
    exact = scipy.stats.binomtest(round(36 * value), 36).proportion_ci(0.95)
    assert (estimate.low, estimate.high) == (pytest.approx(exact.low), pytest.approx(exact.high))
    assert (estimate.low, estimate.high) == (pytest.approx(low, abs=1e-3), pytest.approx(high, abs=1e-3))


@pytest.mark.parametrize("clusters", [36, 200])
def test_a_rare_event_has_no_narrower_interval_than_none(clusters):
    highs = [
        clustered_mean([1.0] * hits + [0.0] * (clusters - hits), list(range(clusters)), (0.0, 1.0)).high
        for hits in range(4)
    ]
    assert highs == sorted(highs)
    exact = [scipy.stats.binomtest(hits, clusters).proportion_ci(0.95).high for hits in range(4)]
    assert np.allclose(highs, exact, atol=0.35 * exact[-1])


def test_equal_changes_have_an_interval_on_both_sides():
    estimate = clustered_mean([0.0] * 36, list(range(36)), (-1.0, 1.0))
    assert estimate.high == -estimate.low == pytest.approx(scipy.stats.binomtest(0, 36).proportion_ci(0.95).high)
    assert clustered_mean([0.0, 0.0], ["a", "b"]).low is None, "nothing is known about values without bounds"


def test_one_cluster_has_no_interval():
    estimate = clustered_mean([0.0, 1.0], ["a", "a"])
    assert (estimate.mean, estimate.low, estimate.high) == (0.5, None, None)
    assert "unknown" in format_estimate(estimate)
    with pytest.raises(ValueError, match="2 values"):
        clustered_mean([0.0, 1.0], ["a"])
