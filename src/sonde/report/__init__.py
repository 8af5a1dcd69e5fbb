"""What there is to say about a run, for someone who was not there: one file to send on, or a plot in the terminal.

    gather(run) ──> RunFacts ──> render_html       one self-contained page
                             └─> render_markdown      the same as Markdown

    facts          everything that is told, as plain data, events with the text of their worst samples; nothing here writes
    run_curves     the series of a run by name: every update as columns, or what was logged
    panels         curves as the data that a page draws
    curve          one series, thinned so that no peak is lost
    terminal_plot  curves in characters
    inline         curves and events in a notebook
    wording        numbers, times and foreign text as they are shown

Reads only, and needs no torch. A part that is missing or damaged is said and left out. What came from data, settings or file names is
text wherever it appears: html/markup.py and markdown.py escape everything that is not their own.
"""

from sonde._public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
