"""Rules that watch the metrics, and alert people to what is unhealthy."""
