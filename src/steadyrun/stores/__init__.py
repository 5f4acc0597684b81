"""The engines behind `steadyrun.store`."""
