"""`sonde dashboard RUNS`: every run below a folder in a browser."""

from pathlib import Path

from sonde.errors import MissingDependency


def dashboard(
    runs: Path = Path("runs"),
    /,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    token: str | None = None,
    allow_jobs: bool = False,
    no_open: bool = False,
) -> None:
    """Show every run below a folder in a browser, live.

    Parameters
    ----------
    runs
        The folder, or a run.
    host
        The address to listen at. One that other machines can reach demands a token, which is part of the address that is printed.
    port
        The port; unless given, the first free one from 8642 on. 0 is any.
    token
        Use this token, of 16 letters and digits or more, instead of making one up.
    allow_jobs
        Let a button start a diagnosis or a replay here. Demands a token too.
    no_open
        Do not open a browser.
    """
    try:
        from sonde.dashboard.serve import DashboardServer, ServerSettings, open_browser
    except ImportError:
        raise MissingDependency("starlette or uvicorn", needed_for="sonde dashboard", extra="dashboard") from None
    server = DashboardServer(ServerSettings(runs=runs, host=host, port=port, token=token, allow_jobs=allow_jobs))
    print(f"{runs} at {server.address}  (Ctrl-C ends)", flush=True)
    if not no_open:
        open_browser(server.address)
    server.run()
