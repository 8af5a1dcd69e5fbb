"""From a spike to its cause: replay a step, ask what made it so by experiment, plan the way back."""
