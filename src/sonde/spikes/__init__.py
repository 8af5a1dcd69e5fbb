"""Loss spikes."""
