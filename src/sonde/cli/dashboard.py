"""`sonde dashboard RUNS`: show every run below a folder in a browser."""

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
        A folder of runs, or a single run.
    host
        Address to listen on. If other machines can reach it, a token is required; it is part of the
            printed URL.
    port
        Port to listen on (default: the first free port from 8642). 0 picks any free port.
    token
        Token to use instead of a generated one; at least 16 letters and digits.
    allow_jobs
        Allow starting a diagnosis or a replay from the dashboard. This also requires a token.
    no_open
        Do not open a browser.
    """
    try:
        from sonde.dashboard.serve import DashboardServer, open_browser
    except ImportError:
        raise MissingDependency(
            "starlette or uvicorn", needed_for="sonde dashboard", extra="dashboard"
        ) from None
    server = DashboardServer(runs, host=host, port=port, token=token, allow_jobs=allow_jobs)
    print(f"{runs} at {server.address}  (Ctrl-C ends)", flush=True)
    if not no_open:
        open_browser(server.address)
    server.run()
