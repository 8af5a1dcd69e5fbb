"""One backend a file.

    stdout          the screen, in TCAP's format
    json_stream     one JSON object a line, appended: the record of the run
    csv             a table that a spreadsheet opens
    python_logging  a bridge to Python's `logging`
    tensorboard     event files
    wandb           Weights & Biases
    mlflow          MLflow

The last three need their extra, and import it when they are made.
"""
