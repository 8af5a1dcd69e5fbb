"""The live page: every run below a folder in a browser, from the curve to the text behind a spike. Reads only, and needs no torch.

    folder        the runs below a folder, by the names that addresses use
    open_runs     runs that were looked at, kept open within a budget of memory
    curve_data    the points of curves for a stretch and a width: no peak is lost at any zoom
    frame         what all pages share
    runs_page, run_page, event_page, compare_page    the pages
    live          what has changed, as it is written
    jobs          diagnoses and replays that a button starts, if that was allowed
    guard         who may ask for what
    app, serve    addresses, and the server

Pages are made here, of the same parts as the report (report/html): whatever comes from data is text. The script (web/src, built into
static/) draws curves, follows a run and turns links into swaps; the address is the state. Nothing is loaded from anywhere else.
"""
