"""`sonde completion SHELL`: print the completion script for a shell."""

import sys
from typing import Literal


def completion(shell: Literal["bash", "zsh", "fish"], /) -> None:
    """Print the completion script for a shell. For bash: `source <(sonde completion bash)`.

    Parameters
    ----------
    shell
        The shell to complete for.
    """
    from sonde.cli.main import build_app

    sys.stdout.write(build_app().generate_completion(prog_name="sonde", shell=shell))
