"""Alerts: tell somebody when a run has an event, without ever getting in its way.

    from sonde.alerts import Alerts, alert_of_event

    alerts = Alerts("https://hooks.slack.com/services/…")    # or another URL, a command, a function
    alerts.send(alert_of_event(run.directory, event, verdict))

`send` puts the alert into a queue and returns. A daemon thread delivers it: it cannot raise into
the training, block a step or keep the process alive. A target that fails is reported once in the
log, and given up after a few failures. Alerts are limited in rate; what was held back is counted in
the next one. `tell_trackers` puts the same text where W&B, MLflow or TensorBoard show it.

Writes nothing into the run. The address of a webhook is a secret: it never appears in a message.
"""

from sonde._public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
