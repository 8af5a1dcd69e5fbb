"""Loss against length: what is usual, and how far above it a sample is."""

import json

import numpy as np
from numpy.typing import NDArray

from sonde.spikes.length_model import LengthModel


def draw_samples(
    generator: np.random.Generator, number: int, *, level: float = 3.0
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Losses that fall with the length, and vary more where samples are short."""
    lengths = np.exp(generator.uniform(np.log(4), np.log(400), number)).astype(np.int64)
    losses = (
        level
        - 0.3 * np.log(lengths / 40)
        + generator.normal(0, 1, number) * (0.1 + 1.2 / np.sqrt(lengths))
    )
    return lengths, losses


def take_step(
    model: LengthModel, lengths: NDArray[np.int64], losses: NDArray[np.float64]
) -> NDArray[np.float64]:
    z = model.z(lengths, losses)
    model.follow(float(np.mean(z)))
    model.learn(lengths, z)
    return z


def test_z_is_standard_at_every_length() -> None:
    lengths, losses = draw_samples(np.random.default_rng(1), 4000)
    z = LengthModel.fit(lengths, losses).z(lengths, losses)
    for low, high in ((4, 12), (12, 60), (60, 400)):
        here = z[(lengths >= low) & (lengths < high)]
        assert abs(float(np.median(here))) < 0.15
        assert 0.8 < float(np.std(here)) < 1.25


def test_a_long_sample_at_the_loss_of_short_ones_stands_out() -> None:
    lengths, losses = draw_samples(np.random.default_rng(2), 2000)
    model = LengthModel.fit(lengths, losses)
    short, long = model.z(np.array([5, 350]), np.array([3.7, 3.7]))
    assert short < 1
    assert long > 6


def test_a_few_wild_samples_change_nothing() -> None:
    lengths, losses = draw_samples(np.random.default_rng(3), 1000)
    clean = LengthModel.fit(lengths, losses)
    losses[::50] = 1e30
    losses[25::50] = np.nan
    spoilt = LengthModel.fit(lengths, losses)
    probe = np.array([6, 20, 80, 300])
    assert np.allclose(clean.z(probe, np.full(4, 4.0)), spoilt.z(probe, np.full(4, 4.0)), rtol=0.3)


def test_few_samples_of_many_lengths_give_a_sober_model() -> None:
    lengths, losses = draw_samples(np.random.default_rng(4), 24)
    z = LengthModel.fit(lengths, losses).z(lengths, losses)
    assert float(np.abs(z).max()) < 6


def test_without_lengths_all_samples_are_equal() -> None:
    losses = np.random.default_rng(5).normal(3, 0.5, 1000)
    z = LengthModel.fit(None, losses).z(None, np.array([3.0, 5.0]))
    assert abs(float(z[0])) < 0.2
    assert 3.5 < float(z[1]) < 4.5


def test_nothing_to_fit_is_no_error() -> None:
    model = LengthModel.fit(np.array([3]), np.array([np.nan]))
    assert np.isnan(model.level)
    assert not model.is_ready


def test_a_running_model_follows_a_falling_loss() -> None:
    generator = np.random.default_rng(6)
    model = LengthModel()
    last = [
        take_step(model, *draw_samples(generator, 32, level=9 * 0.98**step + 2))
        for step in range(300)
    ]
    z = np.concatenate(last[150:])
    assert model.is_ready
    assert abs(float(np.mean(z))) < 0.2
    assert 0.8 < float(np.std(z)) < 1.3


def test_a_running_model_judges_as_one_at_rest() -> None:
    generator = np.random.default_rng(7)
    model = LengthModel()
    for _ in range(400):
        take_step(model, *draw_samples(generator, 64))
    lengths, losses = draw_samples(generator, 500)
    at_rest = LengthModel.fit(*draw_samples(generator, 2000))
    assert float(np.abs(model.z(lengths, losses) - at_rest.z(lengths, losses)).mean()) < 0.3
    assert np.allclose(model.expected(lengths, 500), at_rest.expected(lengths, 500), atol=0.3)


def test_resumes_to_the_bit() -> None:
    generator = np.random.default_rng(8)
    steps = [draw_samples(generator, int(generator.integers(1, 90))) for _ in range(400)]
    whole = LengthModel()
    first = LengthModel()
    for step in steps[:217]:
        take_step(first, *step)
    second = LengthModel()
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    expected = [take_step(whole, *step) for step in steps][217:]
    found = [take_step(second, *step) for step in steps[217:]]
    assert all(np.array_equal(whole, other) for whole, other in zip(expected, found, strict=True))


def test_a_step_larger_than_the_memory_is_taken_in() -> None:
    lengths, losses = draw_samples(np.random.default_rng(9), 5000)
    model = LengthModel()
    take_step(model, lengths, losses)
    take_step(model, lengths, losses)
    assert model.is_ready


def test_lists_and_arrays_have_the_same_z() -> None:
    lengths, losses = draw_samples(np.random.default_rng(8), 2000)
    model = LengthModel.fit(lengths, losses)
    probes = np.array([3.0, 9.0, np.nan, np.inf])
    for counts in (None, np.array([4, 40, 80, 399]), np.array([4, 40, 80, 70_000])):
        listed = model.z_of_few(None if counts is None else counts.tolist(), probes.tolist())
        assert np.array_equal(listed, model.z(counts, probes), equal_nan=True)
    fresh = LengthModel()
    assert np.isnan(fresh.z_of_few(None, [np.nan])).all()
    assert np.array_equal(fresh.z_of_few([5, 6], [2.0, 4.0]), [-1.0, 1.0])
    assert fresh.level == 3.0
