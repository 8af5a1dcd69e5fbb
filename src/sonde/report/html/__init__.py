"""A report as one self-contained HTML file: no network, no other files, only our own script.

page      the whole document: style (page.css), script (curve.js, built from web/src) and a policy that allows no others
overview  what the run was, and its settings
verdict   the diagnoses, and tensors around the step
events    the recorded events with the text of their samples, tokens colored by loss
markup    HTML elements; everything else is escaped
"""
