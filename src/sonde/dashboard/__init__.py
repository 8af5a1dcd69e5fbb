"""The live page: every run below a folder in a browser, from the curve to the text behind a spike. Reads only, and needs no torch.

    folder        the runs below a folder, by the names that addresses use; those looked at last kept open within a budget of memory
    curve_data    the points of curves for a stretch and a width: no peak is lost at any zoom
    frame         what all pages share
    list_pages    the pages over several runs: the list, and some of them compared
    run_page      the pages of one run, and of one event
    streams       what has changed, as it is written; and the words of diagnoses and replays that a button starts, if that was allowed
    guard         who may ask for what
    app, serve    addresses, and the server

Pages are made here, of the same parts as the report (report/html): whatever comes from data is text. The script (web/src, built into
static/) draws curves, follows a run and turns links into swaps; the address is the state. Nothing is loaded from anywhere else.
"""
