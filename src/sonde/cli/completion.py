"""`sonde completion SHELL`: the completion script of a shell, on standard output."""

import sys
from typing import Literal


def completion(shell: Literal["bash", "zsh", "fish"], /) -> None:
    """Print the completion script of a shell; for bash: `source <(sonde completion bash)`.

    Parameters
    ----------
    shell
        Which shell to write for.
    """
    from sonde.cli.main import build_app

    sys.stdout.write(build_app().generate_completion(prog_name="sonde", shell=shell))
