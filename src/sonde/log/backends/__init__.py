"""The backends.

stdout          the screen, in TCAP's format, and a bridge to Python's `logging`
json_stream     one JSON object per line, appended: the record of the run
csv             a table for a spreadsheet
trackers        TensorBoard, Weights & Biases and MLflow; each needs its extra
"""
