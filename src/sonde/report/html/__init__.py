"""A report as one self-contained HTML file: no network, no other files, only our own script.

`page.py` is the whole document: its style (page.css), its script (curve.js, built from web/src) and
a policy that allows no others. The other files are parts of it and of other pages:

    sections  about the run itself
    verdicts  about verdicts: causes, evidence, replay, tensors
    events    about events: the list, and samples with their text
    audits    the result of `sonde audit`
    checks    the result of `sonde check`
    cell      a run in a notebook cell
    markup    HTML elements; everything else is escaped
"""
