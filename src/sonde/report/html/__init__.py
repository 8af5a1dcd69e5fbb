"""A report as one HTML file that needs nothing else: no network, no other file, no script that was not written here.

page      the whole, with its style (page.css), its script (curve.js, built from web/src) and the policy that allows no others
overview  what the run was, and what it ran with
verdict   what diagnoses found, and tensors around the step
events    what was noticed, with the text of the samples, tokens coloured by their loss
markup    elements; everything that is not one is escaped
"""
