"""A report as one self-contained HTML file: no network, no other files, only our own script.

page      the whole document: style (page.css), script (curve.js, built from web/src) and a
          policy that allows no others
sections  its parts about the run itself, which the dashboard shows too
verdicts  its parts about verdicts: causes, evidence, replay, tensors
events    its parts about events: the list, and samples with their text
markup    HTML elements; everything else is escaped
"""
