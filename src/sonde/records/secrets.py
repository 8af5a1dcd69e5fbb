"""Keep secrets out of a run: keys, tokens and passwords are masked before anything is written.

A value is masked if its name says that it is one (`--api-key X`, `{"password": …}`) or if it looks
like one (a token of a known service, a password in a URL). A command with a masked part cannot be
run as it was recorded.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

MASK: Final = "***"
"""Stands for what was masked."""

_SECRET_WORDS: Final = frozenset(
    {"apikey", "password", "passwd", "pwd", "secret", "secrets", "credential", "credentials"}
)
_SECRET_PAIRS: Final = frozenset(
    {("api", "key"), ("access", "key"), ("private", "key"), ("secret", "key"), ("auth", "key")}
)
_TOKEN_OWNERS: Final = frozenset(
    {"api", "auth", "access", "hf", "hub", "wandb", "github", "gitlab", "bearer", "refresh"}
)
"""`hf_token` is a secret; `eos_token` and `max_tokens` are not."""
_SHAPES: Final = re.compile(
    r"\b(?:hf_\w{20,}|sk-[\w-]{20,}|gh[pousr]_\w{20,}|glpat-[\w-]{16,}|xox[abprs]-[\w-]{10,}"
    r"|AKIA[0-9A-Z]{16}|AIza[\w-]{30,})"
)
_URL_PASSWORD: Final = re.compile(r"(\w+://[^/\s:@]*):[^/\s@]+@")


def is_secret_name(name: str) -> bool:
    """Return whether a name says that its value is a secret."""
    parts = re.findall(r"[a-z0-9]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower())
    if _SECRET_WORDS.intersection(parts) or parts == ["token"]:
        return True
    pairs = set(itertools.pairwise(parts))
    if pairs & _SECRET_PAIRS:
        return True
    return any(owner in _TOKEN_OWNERS and word == "token" for owner, word in pairs)


def mask_text(text: str) -> str:
    """Return a text without what looks like a secret."""
    return _URL_PASSWORD.sub(rf"\1:{MASK}@", _SHAPES.sub(MASK, text))


def mask_command(words: Sequence[str]) -> list[str]:
    """Return a command line without its secrets."""
    masked = []
    hides_next = False
    for word in words:
        name, equals, value = word.partition("=")
        is_flag = word.startswith("-")
        if hides_next and not is_flag:
            masked.append(MASK)
        elif equals and value and is_secret_name(name):
            masked.append(f"{name}={MASK}")
        else:
            masked.append(mask_text(word))
        hides_next = is_flag and not equals and is_secret_name(name)
    return masked


def mask_config(value: Any) -> Any:
    """Return plain data without its secrets."""
    if isinstance(value, str):
        return mask_text(value)
    if isinstance(value, Mapping):
        return {name: _mask_entry(name, inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [mask_config(inner) for inner in value]
    return value


def _mask_entry(name: Any, value: Any) -> Any:
    if isinstance(name, str) and isinstance(value, str) and value and is_secret_name(name):
        return MASK
    return mask_config(value)


def is_masked(words: Sequence[str]) -> bool:
    """Return whether something was masked in a command line."""
    return any(MASK in word for word in words)
