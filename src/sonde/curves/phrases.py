"""Numbers and counts in sentences."""

from sonde.report.wording import number


def brief(value: float) -> str:
    """Format a measured value with four significant digits: more is noise in a sentence."""
    return number(float(f"{value:.4g}"))


def points(count: int) -> str:
    """Format a number of points."""
    return "one point" if count == 1 else f"{number(count)} points"
