"""The dashboard: every run below a folder in a browser, from curves to spike texts. Read-only; needs no torch.

    folder        the runs below a folder, by the names used in URLs; recent ones stay open within a memory budget
    frame         what all pages share
    runs_pages    the pages about several runs: the list, and a comparison
    run_page      the pages of one run and of one event
    guard         access control
    serve         the server and its routes; live updates, and the output of diagnoses and replays, if allowed

Pages are built on the server from the same parts as the report (report/html), so everything that comes from data is
escaped. The script (web/src, built into static/) draws curves, follows a run and turns links into partial page updates;
the URL holds the state. Nothing is loaded from other hosts.
"""
