"""Positions count tokens, sinusoids follow their formula, rotations only feel distance."""

import math

import torch

from sonde.models.layers import positions_of, rotary_angles, rotate, sinusoids


def test_padding_on_either_side_does_not_move_tokens() -> None:
    is_token = torch.tensor([[0, 0, 1, 1], [1, 1, 0, 0]], dtype=torch.bool)
    assert positions_of(is_token).tolist() == [[0, 0, 0, 1], [0, 1, 1, 1]]


def test_sinusoids_are_sines_then_cosines_of_falling_frequencies() -> None:
    row = sinusoids(torch.tensor([[3]]), 4)[0, 0].tolist()
    expected = [math.sin(3), math.sin(0.03), math.cos(3), math.cos(0.03)]
    torch.testing.assert_close(torch.tensor(row), torch.tensor(expected))


def test_rotated_inner_products_depend_on_distance_only() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(2, 1, 1, 1, 8)

    def product(at: int, other: int) -> float:
        turned = rotate(query, rotary_angles(torch.tensor([[at]]), 8))
        return float((turned * rotate(key, rotary_angles(torch.tensor([[other]]), 8))).sum())

    assert math.isclose(product(7, 4), product(103, 100), abs_tol=1e-4)
    assert not math.isclose(product(7, 4), product(7, 5), abs_tol=1e-2)
