"""The backends.

    stdout       the screen, in TCAP's format, and a bridge to Python's `logging`
    json_stream  one JSON object per line, appended: the record of the run
    csv          a table for a spreadsheet
    tensorboard  TensorBoard
    wandb        Weights & Biases
    mlflow       MLflow

The last three need their extras.
"""
