"""The dashboard: every run below a folder in a browser, from curves to spike texts. Read-only;
needs no torch.

    folder        the runs below a folder, by the names used in URLs; recent ones stay open within a
                  memory budget
    frame         what all pages share
    run_filter    the search box of the list
    runs_page     the list of runs
    compare_page  several runs compared
    run_page      the pages of one run
    event_page    the page of one step: verdict, curve, samples, tensors, commands
    replaying     the commands to run next
    guard         access control
    serve         the server and its routes; live updates, and the output of diagnoses and replays,
                  if allowed

Pages are built on the server from the same parts as the report (report/html), so everything that
comes from data is escaped. The script (web/src, built into static/) draws curves, follows a run and
turns links into partial page updates; the URL holds the state. Nothing is loaded from other hosts.
"""
