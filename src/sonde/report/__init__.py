"""Reports about a run: one file to pass on, or a cell of a notebook.

    gather(run) ──> RunFacts ──> render_html       one self-contained page
                             └─> render_markdown      the same as Markdown

    facts          everything a report shows, as plain data; events include the text of their worst
                   samples
    run_curves     the series of a run by name: every update as columns, or the logged values
    curve          one series, thinned without losing peaks
    axes           what curves are drawn over: steps, tokens, time
    marks          everything that happened in a run, as one list
    panels         what a page draws of a run
    wording        formatting of numbers, times and untrusted text

Read-only, and needs no torch. A missing or damaged part is left out and reported as a problem.
Anything that came from data, settings or file names is always shown as text: html/markup.py and
markdown.py escape everything that is not their own.
"""

from sonde._public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
