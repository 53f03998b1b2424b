"""Who listens to events: counters, logs, explanations, the folder of stages. None steers."""
