"""A report as one self-contained HTML file: no network, no other files, only our own script.

page      the whole document: style (page.css), script (curve.js, built from web/src) and a policy that allows no others
sections  its parts, which the dashboard shows too
markup    HTML elements; everything else is escaped
"""
